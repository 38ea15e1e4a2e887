"""Goal: what only stands still is not taken for dead, and what hangs does not stay. Method: SIGSTOP and
SIGCONT of a rank below and beyond its limit, of a worker for longer than the coordinator waits, and of
the coordinator; the coordinator killed and away for a while. SWAX_TEST_FULL=1: longer gaps."""
import os
import signal
import time

import swax_e2e as e2e
import swax_service as service
from swax_e2e import check, say

LOST_SECONDS = 5
GAP_SECONDS = 60 if e2e.FULL else 10
# A rank may say nothing for four seconds while it trains; longer in other phases, and in the first step
# of an attention window.
TIMES = {"SWAX_TEST_AGENT_TIMES": "train_floor_ms=4000,train_factor=1,launch_limit_ms=60000"}
# Long enough that the job is still training after every pause.
LONG = ["training.steps=4000", "checkpoint.interval=25", "validation.freq=0"]


def started(bin_folder, folder, env=None):
    s = service.Service(bin_folder, folder, workers=1, env=env)
    s.submit(extra=LONG)
    s.wait_until(lambda: s.newest_step() >= 10, 120, "step 10")
    return s


def bad_ends(s):
    return [e for e in s.events("attempt_ended") if not e["text"].startswith("done")]


def expect_step(s, step, seconds=120):
    s.wait_until(lambda: s.newest_step() >= step, seconds, f"step {step}")


def expect_commit_above(s, step, seconds=90):
    s.wait_until(lambda: s.committed() and s.committed()[-1] > step, seconds,
                 f"a checkpoint above step {step}")


def rank_pauses(bin_folder, folder):
    s = started(bin_folder, folder, TIMES)
    try:
        pid = s.rank_pids()[1]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2)
        os.kill(pid, signal.SIGCONT)
        expect_step(s, s.newest_step() + 5)
        check(not bad_ends(s), f"a pause of 2 s below the limit ended an attempt: {bad_ends(s)}")
        say("  rank stopped for 2 s, limit 4 s: goes on")
        before = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        s.wait_until(lambda: bad_ends(s), 120, "the hang is seen")
        seconds = time.monotonic() - before
        end = bad_ends(s)[0]
        # Which of two ranks that wait for each other is at fault shows only when one is a step behind.
        check(end["text"].startswith("hang") and "rank" in end["fields"], str(end))
        s.wait_until(lambda: s.step_of(2) > 0, 120, "attempt 2 makes a step")
        say(f"  rank stopped for good: the hang is seen after {seconds:.1f} s, attempt 2 trains")
    finally:
        s.stop()


def worker_pauses(bin_folder, folder):
    s = started(bin_folder, folder)
    try:
        worker = s.workers[0]
        worker.signal(signal.SIGSTOP)
        s.wait_until(lambda: bad_ends(s), LOST_SECONDS + 20, "the worker is lost")
        check(bad_ends(s)[0]["text"].startswith("node_lost"), str(bad_ends(s)[0]))
        worker.signal(signal.SIGCONT)
        s.wait_until(lambda: s.step_of(2) > 0, 120, "attempt 2 makes a step")
        s.wait_until(lambda: len(s.rank_pids()) == 2 and all(
            b"SWAX_EPOCH=2" in v for n, v in s.processes().values()), 10,
            f"only attempt 2 runs: {[v for _, v in s.processes().values()]}")
        check(len(bad_ends(s)) == 1, str(bad_ends(s)))
        say("  worker stopped until it was lost: attempt 2 trains, nothing of attempt 1 is left")
    finally:
        s.stop()


def coordinator_pauses(bin_folder, folder, how):
    s = started(bin_folder, folder)
    try:
        before = s.newest_step()
        if how == "SIGSTOP":
            s.coordinator.signal(signal.SIGSTOP)
            time.sleep(GAP_SECONDS)
            s.coordinator.signal(signal.SIGCONT)
        else:
            s.coordinator.kill()
            time.sleep(GAP_SECONDS)
            s.coordinator.start()
        after = s.newest_step()
        check(after > before, f"training stood still: step {before}, then {after}")
        expect_commit_above(s, after)
        check(not bad_ends(s), f"attempts ended: {bad_ends(s)}")
        check(s.newest_epoch() == 1, "another attempt was started")
        say(f"  coordinator away for {GAP_SECONDS} s ({how}): steps {before} to {after} meanwhile, "
            f"0 attempts restarted, step {s.committed()[-1]} committed")
    finally:
        s.stop()


def worker_leaves(bin_folder, folder):
    """SIGTERM: a checkpoint, then exit 99; the next start goes on from it."""
    s = started(bin_folder, folder)
    try:
        worker = s.workers[0]
        worker.signal(signal.SIGTERM)
        code = worker.process.wait(timeout=60)
        check(code == 99, "exit code {code}, must be 99")
        kept = s.committed()[-1]
        check(kept >= s.step_of(1), f"step {s.step_of(1)} was done, step {kept} is kept")
        worker.start()
        s.wait_until(lambda: s.step_of(2) > kept, 120, "attempt 2 goes on")
        starts = e2e.start_steps(s.job_folder)
        check(starts[2] == kept, f"attempt 2 began at step {starts[2]}, must be {kept}")
        say(f"  worker left at SIGTERM with step {kept}, attempt 2 goes on from there")
    finally:
        s.stop()


def body(bin_folder, scratch):
    rank_pauses(bin_folder, os.path.join(scratch, "rank"))
    worker_pauses(bin_folder, os.path.join(scratch, "worker"))
    coordinator_pauses(bin_folder, os.path.join(scratch, "stop"), "SIGSTOP")
    coordinator_pauses(bin_folder, os.path.join(scratch, "kill"), "kill -9")
    worker_leaves(bin_folder, os.path.join(scratch, "leave"))


if __name__ == "__main__":
    e2e.main(body)
