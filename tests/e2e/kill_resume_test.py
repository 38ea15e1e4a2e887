"""Goal: whatever is killed, and whenever, a run that is typed again ends with the bits of an
undisturbed one, and nothing is lost or left. Method: each round starts a fresh run, kills once at a
named failpoint and once at a random step (a rank, mpirun or `swax run` itself), types again until it
has ended, and compares. The seed is printed; SWAX_TEST_SEED repeats it."""
import os
import random
import time

import swax_e2e as e2e
from swax_e2e import check, say

# Where a process may end itself, and how often a run passes there at least. Ranks end at the points
# of a shard; at the others `swax run` does, in which coordinator and worker are.
FAILPOINTS = [
    ("checkpoint.committed_written", 4), ("checkpoint.ingested", 6), ("coord.start_journaled", 1),
    ("checkpoint.retention_half", 3), ("checkpoint.sst_finished", 6), ("checkpoint.save_begun", 6),
    ("agent.launched", 1), ("checkpoint.durable", 6), ("dataset.manifest_written", 1),
    ("coord.submit_journaled", 1), ("coord.commit_record_synced", 4), ("agent.durable_sent", 6),
]
SHARD_POINTS = ("checkpoint.sst_finished", "checkpoint.save_begun", "checkpoint.ingested")
TARGETS = ["run", "rank", "mpirun"]


def choose(rng, count):
    """count rounds: (failpoint, its passage, timed target, step at which it is killed)."""
    rounds = []
    points = rng.sample(FAILPOINTS, len(FAILPOINTS))
    for i in range(count):
        name, passages = points[i % len(points)]
        point = f"{name}:{rng.randint(1, passages)}"
        if name in SHARD_POINTS:
            point += f":rank={rng.randint(0, 1)}"
        rounds.append((point, TARGETS[i % len(TARGETS)], rng.randint(1, e2e.STEPS - 2)))
    return rounds


def kill_target(rng, run, target):
    """False: there is no such process right now."""
    if target == "run":
        pid = run.process.pid
    elif target == "mpirun":
        pid = e2e.mpirun_pid(run.state)
    else:
        pids = e2e.rank_pids(run.state)
        pid = pids[rng.choice(sorted(pids))] if pids else None
    if pid is not None:
        e2e.kill(pid)
    return pid is not None


class Watch:
    """What was committed at each death must still be there for the next attempt."""

    def __init__(self, state):
        self.state, self.seen, self.newest = state, set(), 0

    def look(self):
        steps = e2e.committed(self.state)
        check(not self.newest or (steps and steps[-1] >= self.newest),
              f"checkpoint of step {self.newest} is gone; there are {steps}")
        for epoch, start in e2e.start_steps(self.state).items():
            if epoch in self.seen:
                continue
            self.seen.add(epoch)
            check(start >= self.newest,
                  f"attempt {epoch} began at step {start}, step {self.newest} was committed")
        self.newest = steps[-1] if steps else 0


def one_round(rng, bin_folder, state, plan, digest):
    point, target, step = plan
    before = e2e.shared_leftovers()
    once = state + ".once"
    os.mkdir(once)
    env = {"SWAX_FAILPOINTS": point, "SWAX_FAILPOINT_ONCE_DIR": once}
    watch, killed, typed = Watch(state), False, 0
    while True:
        typed += 1
        check(typed <= 6, "typed 6 times and it has not ended")
        run = e2e.Run(bin_folder, state, env=env)
        while run.process.poll() is None:
            # Only after the failpoint struck: two deaths, not one hidden behind the other.
            if not killed and os.listdir(once) and e2e.newest_step(state) >= step:
                time.sleep(rng.random() * 0.05)
                killed = kill_target(rng, run, target)
            time.sleep(0.01)
        code = run.finish()
        watch.look()
        if code >= 0:
            break
        # Typed again at once, or after a look at what the kill itself leaves running.
        if rng.random() < 0.5:
            e2e.wait_until(lambda: not e2e.processes_of(state), 5, "ranks outlive `swax run`")
    check(code == 0, f"exit code {code}\n{run.errors()}")
    check(os.listdir(once), f"nobody passed {point}")
    check(run.result["digest"] == digest, f"digest {run.result['digest']}, must be {digest}")
    check(run.result["state"] == "SUCCEEDED" and run.result["step"] == e2e.STEPS, str(run.result))
    check("diverged" not in run.errors(), run.errors())
    again = e2e.check_equal_bits(state)
    e2e.check_nothing_left(state, before)
    say(f"  {point}, then {'kill -9 of ' + target if killed else 'nothing'} at step {step}: "
        f"typed {typed} times, {run.result['attempt']} attempts, {again} steps made again")
    return again, killed


def body(bin_folder, scratch):
    seed = int(os.environ.get("SWAX_TEST_SEED", time.time_ns() % 1_000_000))
    say(f"seed {seed}: SWAX_TEST_SEED={seed} repeats it")
    rng = random.Random(seed)
    digest = e2e.run_to_end(bin_folder, os.path.join(scratch, "undisturbed"))["digest"]
    again = kills = 0
    for i, plan in enumerate(choose(rng, len(FAILPOINTS) if e2e.FULL else 3)):
        made, killed = one_round(rng, bin_folder, os.path.join(scratch, f"round{i}"), plan, digest)
        again += made
        kills += 1 + killed
    say(f"{kills} kills, {again} steps made again, digest {digest}")
    check(again > 0, "no step was made again: nothing was compared")


if __name__ == "__main__":
    e2e.main(body)
