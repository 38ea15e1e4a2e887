"""Goal: whatever is killed, and whenever, a run that is typed again ends with the bits of an
undisturbed one, and nothing is lost or left. Method: each round starts a fresh run, kills once at a
named failpoint and once at a random step (a rank, mpirun or `swax run` itself), types again until it
has ended, and compares. Kills are counted, as are those at failpoints and those of each target: too
few fail the test. Last, ranks are killed as soon as they are there. The seed is printed;
SWAX_TEST_SEED repeats it."""
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
# What the kills must come to. A run that has ended before its timed kill, or has saved so seldom (a slow
# disk) that nobody passed its failpoint so often, is made up by a further round.
ROUNDS, KILLS_MIN, AT_FAILPOINTS_MIN = (len(FAILPOINTS), 20, 10) if e2e.FULL else (3, 5, 3)
TARGETS_WANTED = set(TARGETS) if e2e.FULL else set()
FURTHER_ROUNDS_MAX = 6
BIRTHS = 12 if e2e.FULL else 3
LEFT_SECONDS_MAX = 5


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


def struck(once):
    """When the failpoint's process left its mark there and ended; None: it has not yet."""
    moments = [entry.stat().st_mtime for entry in os.scandir(once)]
    return max(moments) if moments else None


class Deaths:
    """Whatever ran at a death is gone within 5 s of it, whether somebody types again or not."""

    def __init__(self, state):
        self.state, self.pending = state, []  # [moment, newest attempt that ran then, patience]

    def add(self, moment):
        """`moment` lies before the death, and before anything that is started for it."""
        self.pending.append([moment, 0, e2e.Patience(LEFT_SECONDS_MAX)])

    def look(self):
        if not self.pending:
            return
        late = [death[2].over() for death in self.pending]
        running = e2e.processes_of(self.state)
        for death, over in zip(self.pending[:], late):
            moment = death[0]
            before = {pid for pid in running if e2e.started(pid) <= moment}
            epochs = {pid: e2e.epoch_of(variables) for pid, (_, variables) in running.items()}
            death[1] = max([death[1], *(epochs[pid] for pid in before)])
            # What an old process started after the death is of its attempt.
            left = before | {pid for pid, epoch in epochs.items() if 0 < epoch <= death[1]}
            if not left:
                self.pending.remove(death)
            check(not left or not over,
                  f"{time.time() - moment:.1f} s after a death: {[(p, running[p][0]) for p in left]}")

    def wait(self):
        while self.pending:
            self.look()
            time.sleep(0.02)


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
    """Steps that were made again; whether its failpoint struck; whether its target was killed."""
    point, target, step = plan
    before = e2e.shared_leftovers()
    once = state + ".once"
    os.mkdir(once)
    env = {"SWAX_FAILPOINTS": point, "SWAX_FAILPOINT_ONCE_DIR": once}
    watch, deaths, at_point, killed, typed = Watch(state), Deaths(state), False, False, 0
    while True:
        typed += 1
        check(typed <= 6, "typed 6 times and it has not ended")
        run = e2e.Run(bin_folder, state, env=env)
        while run.process.poll() is None:
            if not at_point and struck(once):
                at_point = True
                deaths.add(struck(once))
            # Only after the failpoint struck: two deaths, not one hidden behind the other.
            if at_point and not killed and e2e.newest_step(state) >= step:
                time.sleep(rng.random() * 0.05)
                moment = time.time()
                killed = kill_target(rng, run, target)
                if killed:
                    deaths.add(moment)
            deaths.look()
            time.sleep(0.01)
        if not at_point and struck(once):
            at_point = True
            deaths.add(struck(once))
        code = run.finish()
        watch.look()
        if code >= 0:
            break
        # Typed again at once, or after all that the kill leaves running is gone.
        if rng.random() < 0.5:
            deaths.wait()
    deaths.wait()
    check(code == 0, f"exit code {code}\n{run.errors()}")
    check(at_point or ":1" not in point, f"nobody passed {point}")
    check(run.result["digest"] == digest, f"digest {run.result['digest']}, must be {digest}")
    check(run.result["state"] == "SUCCEEDED" and run.result["step"] == e2e.STEPS, str(run.result))
    check("diverged" not in run.errors(), run.errors())
    again = e2e.check_equal_bits(state)
    e2e.check_nothing_left(state, before)
    say(f"  {point}, then {'kill -9 of ' + target if killed else 'nothing'} at step {step}: "
        f"typed {typed} times, {run.result['attempt']} attempts, {again} steps made again")
    return again, at_point, killed


def killed_at_birth(rng, bin_folder, state, digest):
    """A rank that hardly exists: mpirun itself would wait 30 s for the others, which do not hear it."""
    run, deaths = e2e.Run(bin_folder, state), Deaths(state)
    pids = e2e.wait_until(lambda: e2e.rank_pids(state), 60, "a rank")
    time.sleep(rng.random() * 0.06)
    moment = time.time()
    e2e.kill(pids[rng.choice(sorted(pids))])
    deaths.add(moment)
    late = e2e.newest_step(state) > e2e.STEPS - e2e.STEPS_LEFT_MIN
    while run.process.poll() is None:
        deaths.look()
        time.sleep(0.01)
    check(run.finish() == 0, f"exit code {run.code}\n{run.errors()}")
    if late:
        raise e2e.Through
    check(run.result["digest"] == digest and run.result["attempt"] == 2, str(run.result))
    deaths.wait()


def body(bin_folder, scratch):
    seed = int(os.environ.get("SWAX_TEST_SEED", time.time_ns() % 1_000_000))
    say(f"seed {seed}: SWAX_TEST_SEED={seed} repeats it")
    rng = random.Random(seed)
    digest = e2e.run_to_end(bin_folder, os.path.join(scratch, "undisturbed"))["digest"]
    again, points, hit = 0, 0, {target: 0 for target in TARGETS}

    def enough():
        return (points + sum(hit.values()) >= KILLS_MIN and points >= AT_FAILPOINTS_MIN
                and again > 0 and all(hit[target] for target in TARGETS_WANTED))
    plans = choose(rng, ROUNDS + FURTHER_ROUNDS_MAX)
    for i, plan in enumerate(plans):
        if i >= ROUNDS and enough():
            break
        made, struck_there, killed = one_round(rng, bin_folder, os.path.join(scratch, f"round{i}"),
                                               plan, digest)
        again += made
        points += struck_there
        if not struck_there:  # its first passage is in every run
            name, _, *rank = plan[0].split(":")
            plans.insert(i + 1, (":".join([name, "1", *rank]), *plan[1:]))
        hit[plan[1]] += killed
    say(f"{points + sum(hit.values())} kills, {points} of them at failpoints, {hit} at random steps; "
        f"{again} steps made again, digest {digest}")
    check(again > 0, "no step was made again: nothing was compared")
    check(enough(), f"too few kills: {KILLS_MIN}, {AT_FAILPOINTS_MIN} at failpoints are wanted")
    for i in range(BIRTHS):
        e2e.in_time("a birth", lambda number, i=i: killed_at_birth(
            rng, bin_folder, os.path.join(scratch, f"birth{i}-{number}"), digest))
    say(f"{BIRTHS} ranks were killed as soon as they were there")


if __name__ == "__main__":
    e2e.main(body)
