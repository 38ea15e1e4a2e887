"""Goal: while the coordinator is away, nothing stops and nothing is lost. Method: the coordinator is
stopped and continued, and killed and started again, each after 10 s and more (SWAX_TEST_FULL=1:
60 s); a checkpoint falls into each gap and is committed after it. Another job ends while nobody listens. No
attempt is started again and no worker is lost."""
import os
import signal
import time

import swax_e2e as e2e
import swax_service as service
from swax_e2e import check, say

GAP_SECONDS = 60 if e2e.FULL else 10
# An agent tells what the two newest saves say, and after a long gap it may take 8 s and more until it
# asks again: two saves must take longer than that, however fast steps are.
SAVE_SECONDS = 10 if e2e.FULL else 5
# It trains longer than all gaps.
LONG = ["training.steps=1000000", "validation.freq=0"]
SHORT = ["training.steps=60", "checkpoint.interval=10"]


def away(s, how, over):
    """The coordinator is away until over(). Returns the newest steps before and after."""
    before = s.newest_step()
    if how == "SIGSTOP":
        s.coordinator.signal(signal.SIGSTOP)
    else:
        s.coordinator.kill()
    s.wait_until(over, 300, "the job goes on alone")
    after = s.newest_step()
    if how == "SIGSTOP":
        s.coordinator.signal(signal.SIGCONT)
    else:
        s.coordinator.start()
    return before, after


def check_nobody_lost(s, workers, seconds):
    """Looks at the workers from the return on. A coordinator that has just started knows none yet."""
    end, states = time.monotonic() + seconds, {}
    while time.monotonic() < end or len(states) < workers:
        check(time.monotonic() < end + 60, f"workers that came back: {states}")
        states = s.nodes()
        check("LOST" not in states.values(), f"workers after the return: {states}")
        time.sleep(0.2)


def gap(s, how):
    start, before = time.monotonic(), s.newest_step()
    before, after = away(s, how, lambda: time.monotonic() - start > GAP_SECONDS and [
        step for step in s.saved() if before < step <= s.newest_step()])
    seconds = time.monotonic() - start
    check(after > before, f"training stood still: step {before}, then {after}")
    saved = [step for step in s.saved() if before < step <= after]
    check(saved, f"no checkpoint fell into the gap of steps {before} to {after}")
    check_nobody_lost(s, 1, 2)

    def committed():
        return {e["step"] for e in s.events("checkpoint_committed")} & set(saved)
    s.wait_until(committed, 60, f"a checkpoint of the gap is committed: one of {saved}")
    s.wait_until(lambda: s.committed()[-1] > after, 300, f"a checkpoint above step {after}")
    # Saves of the gap that nobody can commit any more do not stay on the disk.
    s.wait_until(lambda: not [step for step in set(s.saved()) - set(s.committed())
                              if step < s.committed()[-1]], 60, "only newer saves are uncommitted")
    check(not s.bad_ends() and s.newest_epoch() == 1, f"attempts ended: {s.bad_ends()}")
    say(f"  coordinator away for {seconds:.0f} s ({how}): steps {before} to {after} and "
        f"{len(saved)} checkpoints meanwhile, {len(committed())} of them committed, 0 attempts "
        "restarted, 0 workers lost")


def end_in_the_gap(s, how):
    """The job's digest and the nanoseconds of its fastest step."""
    s.submit(job=f"ends-{how.lower().replace(' ', '')}", extra=SHORT)
    s.wait_until(lambda: s.newest_step() >= 5, 120, "step 5")
    _, after = away(s, how, lambda: s.newest_step() == 60 and not s.rank_pids())
    check_nobody_lost(s, 1, 1)
    result = s.wait()
    check(result["state"] == "SUCCEEDED" and result["step"] == after == 60, str(result))
    check(result["restarts"] == 0 and s.committed()[-1] == 60, f"{result} {s.committed()}")
    s.check_checkpoints()
    s.check_nothing_left()
    say(f"  the job ended while the coordinator was away ({how}): SUCCEEDED, 0 restarts")
    return result["digest"], min(e2e.fields(r[2])[8] for r in e2e.reports(s.job_folder, 1) if 2 in r)


def body(bin_folder, scratch):
    s = service.Service(bin_folder, os.path.join(scratch, "s"), workers=1)
    try:
        ends = [end_in_the_gap(s, how) for how in ("SIGSTOP", "kill -9")]
        check(ends[0][0] == ends[1][0], f"the same job, other digests: {ends}")
        steps = round(SAVE_SECONDS * 1e9 / min(fastest_ns for _, fastest_ns in ends)) + 1
        s.submit(extra=[*LONG, f"checkpoint.interval={steps}"])
        s.wait_until(lambda: s.newest_step() >= 10, 120, "step 10")
        gap(s, "SIGSTOP")
        gap(s, "kill -9")
        s.cancel()
    finally:
        s.stop()


if __name__ == "__main__":
    e2e.main(body)
