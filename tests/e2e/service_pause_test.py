"""Goal: what only stands still is not taken for dead, and what hangs does not stay. Method: SIGSTOP of a
rank below and beyond its limit; SIGSTOP of a worker for 15 s, longer than the coordinator waits, while
its ranks train on and another worker has room; SIGTERM of a worker, without another one and beside one
that goes on with one of two ranks until the first is back. Beside it: a gang of two ranks on each of
two workers."""
import os
import signal
import time

import swax_e2e as e2e
import swax_service as service
from swax_e2e import check, say

STOPPED_SECONDS = 15
# A rank may say nothing for so long while it trains; longer in other phases, and in the first step of an
# attention window. Four times the short pause: the machine may pause as well.
PAUSE_SECONDS, LIMIT_SECONDS = 2, 8
TIMES = {"SWAX_TEST_AGENT_TIMES":
         f"train_floor_ms={LIMIT_SECONDS * 1000},train_factor=1,launch_limit_ms=60000"}
SOON = {"SWAX_TEST_COORDINATOR_TIMES": "shrink_after_ms=5000,grow_after_ms=1000"}
# Long enough that the job is still training after every pause.
LONG = ["training.steps=1000000", "checkpoint.interval=25", "validation.freq=0"]


def started(bin_folder, folder, workers, **options):
    s = service.Service(bin_folder, folder, workers=workers, **options)
    s.wait_until(lambda: len(s.nodes()) == workers, 60, "the workers have come")
    s.submit(extra=LONG)
    s.wait_until(lambda: s.newest_step() >= 10, 120, "step 10")
    return s


def rank_pauses(s):
    pid = s.rank_pids()[1]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(PAUSE_SECONDS)
    os.kill(pid, signal.SIGCONT)
    step = s.newest_step() + 5
    s.wait_until(lambda: s.newest_step() >= step, 120, f"step {step}")
    check(not s.bad_ends(), f"a pause below the limit ended an attempt: {s.bad_ends()}")
    check(not s.events("hang"), str(s.events("hang")))
    say(f"  rank stopped for {PAUSE_SECONDS} s, limit {LIMIT_SECONDS} s: goes on")
    before = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    s.wait_until(s.bad_ends, 120, "the hang is seen")
    seconds = time.monotonic() - before
    hangs, end = s.events("hang"), s.bad_ends()[0]
    check(len(hangs) == 1 and hangs[0]["attempt"] == 1, str(hangs))
    check("rank 1 " in hangs[0]["text"] and "in phase " in hangs[0]["text"], str(hangs[0]))
    check(end["text"].startswith("hang") and end["fields"]["rank"] == "1" and end["fields"]["phase"],
          str(end))
    s.wait_until(lambda: s.step_of(2) > 0, 120, "attempt 2 makes a step")
    s.wait_until(lambda: pid not in s.processes(), 30, "the stopped rank is gone")
    say(f"  rank stopped for good: the hang is seen after {seconds:.1f} s, attempt 2 trains; "
        f"{hangs[0]['text']}")


def worker_leaves(s):
    """SIGTERM: a checkpoint, then exit 99; the next start goes on from it."""
    worker, epoch = s.workers[0], s.newest_epoch()
    worker.signal(signal.SIGTERM)
    code = worker.process.wait(timeout=60)
    check(code == 99, f"exit code {code}, must be 99")
    s.wait_until(lambda: max(s.committed(), default=0) >= s.step_of(epoch), 30,
                 f"step {s.step_of(epoch)} was done and is kept")
    kept = s.committed()[-1]
    worker.start()
    s.wait_until(lambda: s.step_of(epoch + 1) > kept, 120, f"attempt {epoch + 1} goes on")
    starts = e2e.start_steps(s.job_folder)
    check(starts[epoch + 1] == kept, f"it began at step {starts[epoch + 1]}, must be {kept}")
    say(f"  worker left at SIGTERM with step {kept}, attempt {epoch + 1} goes on from there")


def worker_pauses(s):
    worker = s.worker_of_ranks()
    old = set(s.processes())
    began = time.monotonic()
    worker.signal(signal.SIGSTOP)
    s.wait_until(s.bad_ends, 60, "the worker is lost")
    check(s.bad_ends()[0]["text"].startswith("node_lost"), str(s.bad_ends()[0]))
    check(s.nodes()[worker.name] == "LOST", str(s.nodes()))
    s.wait_until(lambda: s.step_of(2) > 0, 120, "attempt 2 makes a step elsewhere")
    both = len(set(s.processes()) & old)
    time.sleep(max(0, began + STOPPED_SECONDS - time.monotonic()))
    worker.signal(signal.SIGCONT)
    s.wait_until(lambda: not set(s.processes()) & old, 30, "the ranks of attempt 1 are gone")
    s.wait_until(lambda: s.nodes()[worker.name] == "IDLE", 60, "the worker is back")
    check(len(s.bad_ends()) == 1 and s.newest_epoch() == 2, str(s.bad_ends()))
    late = [e for e in s.events() if e["sequence"] > s.bad_ends()[0]["sequence"]
            and e["attempt"] == 1 and e["kind"] in ("checkpoint_committed", "attempt_running")]
    check(not late, f"taken of attempt 1 after its end: {late}")
    say(f"  worker stopped for {STOPPED_SECONDS} s: attempt 2 trains on the other one, {both} "
        "processes of attempt 1 went on meanwhile and are gone")


def two_and_two(bin_folder, scratch, s):
    """Two ranks on each of two workers of one machine: Open MPI would mix up their shared memory."""
    s.cancel()
    few = ["training.steps=12"]
    s.submit(job="four", ranks=4, extra=few)
    result = s.wait()
    check(result["attempt"] == 1, f"attempts: {s.bad_ends()}")
    digest = e2e.run_to_end(bin_folder, os.path.join(scratch, "alone"), extra=few)["digest"]
    check(result["digest"] == digest, f"{result['digest']}, must be {digest}")
    say("  two ranks on each of two workers of this machine: the digest of one worker")


def grows_back(s):
    """Fewer ranks while a worker is away, all of them when it is back; no step is made twice."""
    away = s.workers[1]
    away.signal(signal.SIGTERM)
    check(away.process.wait(timeout=60) == 99, "the worker leaves")
    s.wait_until(lambda: s.step_of(2) > 0, 180, "attempt 2 makes a step")
    s.wait_until(lambda: "1 of 2 ranks" in s.status()["message"], 60, "the coordinator knows that, too")
    away.start()
    before = time.monotonic()
    s.wait_until(lambda: s.step_of(3) > 0, 180, "attempt 3 makes a step")
    seconds = time.monotonic() - before
    ranks = [e["text"].split(":")[0] for e in s.events("attempt_started")]
    check(ranks == ["2 ranks", "1 rank", "2 ranks"], f"attempts: {ranks}")
    told = [e["text"] for e in s.events("growing")]
    check(told == ["1 of 2 ranks: room for 2"], str(told))
    ends = [(e["text"].split(":")[0], e["fields"]["restarts_since_commit"]) for e in s.bad_ends()]
    check(ends == [("stopped", "0")] * 2, f"the attempts ended as {ends}")
    starts = e2e.start_steps(s.job_folder)
    check(starts[2] == s.step_of(1) and starts[3] == s.step_of(2), f"they began at {starts}")
    say(f"  worker left: 1 of 2 ranks went on; it came back: 2 again after {seconds:.1f} s, from the "
        "step before")


def body(bin_folder, scratch):
    s = started(bin_folder, os.path.join(scratch, "rank"), 1, env=TIMES)
    try:
        rank_pauses(s)
        worker_leaves(s)
    finally:
        s.stop()
    s = started(bin_folder, os.path.join(scratch, "worker"), 2)
    try:
        worker_pauses(s)
        two_and_two(bin_folder, scratch, s)
    finally:
        s.stop()
    s = started(bin_folder, os.path.join(scratch, "gang"), 2, slots=1, coordinator_env=SOON)
    try:
        grows_back(s)
    finally:
        s.stop()


if __name__ == "__main__":
    e2e.main(body)
