"""Goal: whatever of the service is killed, and whenever, the job ends with the bits of an undisturbed
one, exactly the attempts that were killed are seen to end, and nothing is lost or left. Method: each
round starts a coordinator and two workers, submits one job and kills ranks, workers, the coordinator
or all of them, at a named failpoint first and at random steps then; what was killed is started again
with the same command after 0 to 3 s, and nothing else is done. The kills are counted at the end: a
round whose job is through too early is made up by a further one. The seed is printed;
SWAX_TEST_SEED repeats it. SWAX_TEST_FULL=1: 30 kills and more, at least six of each kind, and every
failpoint."""
import os
import re
import signal
import subprocess
import time

import swax_e2e as e2e
import swax_service as service
from swax_e2e import check, say

RANK_POINTS = ["checkpoint.save_begun", "checkpoint.sst_finished", "checkpoint.ingested",
               "checkpoint.durable"]
COORDINATOR_POINTS = ["checkpoint.committed_written", "coord.commit_record_synced",
                      "checkpoint.retention_half", "coord.start_journaled",
                      "coord.submit_journaled"]
WORKER_POINTS = ["agent.durable_sent", "agent.launched"]
POINTS = RANK_POINTS + COORDINATOR_POINTS + WORKER_POINTS
KINDS = ["rank", "worker", "coordinator", "all"]
TIMED = {"rank": 6, "worker": 6, "coordinator": 6, "all": 6, "mpirun": 2}
# What the kills of all rounds must come to.
KILLS_MIN, RUNS_MIN, KIND_MIN, AT_POINTS_MIN = (30, 5, 6, 10) if e2e.FULL else (7, 3, 1, 2)
POINTS_WANTED = POINTS if e2e.FULL else []
FURTHER_ROUNDS_MAX = 8
RESTART_SECONDS_MAX = 3.0
RANKS = 2
# So many that a job is seldom through when its kill comes: what is saved then needs no attempt.
e2e.STEPS = 400 if e2e.FULL else 120
e2e.SETTINGS[0] = f"training.steps={e2e.STEPS}"
# So near to its end a job is left alone: whether a kill is seen to end an attempt would be chance.
STEPS_LEFT_MIN = 40


def kind_of_point(point):
    if point in RANK_POINTS:
        return "rank"
    return "coordinator" if point in COORDINATOR_POINTS else "worker"


def worker_end(name):
    """What is known of an attempt whose worker was killed: nobody saw its ranks go."""
    return {"result": ("killed", "node_lost"), "node": name, "rank": None, "signal": None}


class Round:
    """One job. `kills`: the kinds of what was killed, in order; `struck`: its failpoint was reached;
    `fell`: daemons that a failpoint killed."""

    def __init__(self, bin_folder, folder, rng, point):
        self.rng, self.point, self.kills, self.ends, self.struck = rng, point, [], [], False
        self.fell = []
        self.once = folder + ".once"
        os.mkdir(self.once)
        # Failpoints of a job's first moments are passed once; a save is passed again and again.
        early = point.startswith(("coord.s", "agent.l"))
        armed = {"SWAX_FAILPOINT_ONCE_DIR": self.once,
                 "SWAX_FAILPOINTS": f"{point}:{1 if early else rng.randint(1, 3)}"}
        ours = point in COORDINATOR_POINTS
        self.service = service.Service(bin_folder, folder, coordinator_env=armed if ours else None,
                                       env=None if ours else armed)

    def pump(self):
        """Starts again what a failpoint killed."""
        for daemon in self.service.daemons():
            if not daemon.alive():
                self.fell.append(daemon.name)
                time.sleep(self.rng.random() * RESTART_SECONDS_MAX)
                daemon.start()

    def wait_for(self, condition, what):
        def reached():
            self.pump()
            return condition()
        return self.service.wait_until(reached, 180, what)

    def submit(self):
        """The client bears a coordinator that dies before its answer: it asks again by itself."""
        command = [self.service.swax, "submit", e2e.SPEC, "--ranks", str(RANKS), "--coordinator",
                   self.service.address, *e2e.settings()]
        client = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, env=service.environment())
        self.wait_for(lambda: client.poll() is not None, "the answer to `swax submit`")
        text = client.communicate()[0]
        check(client.returncode == 0, f"submit: {client.returncode}\n{text}{self.service.tails()}")

    def check_not_through(self):
        if self.service.newest_step() > e2e.STEPS - STEPS_LEFT_MIN:
            raise e2e.Through

    def rank_at_point(self):
        """The rank that ended at the failpoint, as it says itself with its last words."""
        folder = os.path.join(self.service.job_folder, "logs", "a1")
        text = b"".join(e2e.read(os.path.join(folder, name)) for name in sorted(os.listdir(folder)))
        ranks = re.findall(rb"failpoint " + self.point.encode() + rb":\d+ rank=(\d+) ", text)
        check(len(ranks) == 1, f"who ended at {self.point}? {ranks}")
        return ranks[0].decode()

    def strike(self):
        """Waits for the failpoint."""
        def passed():
            if os.listdir(self.once):
                return True
            self.check_not_through()
            return False
        self.wait_for(passed, f"{self.point} is passed")
        self.struck = True
        self.kills.append(kind_of_point(self.point))
        if self.point in COORDINATOR_POINTS:
            return
        # Two kills of one attempt would be one end.
        self.wait_for(lambda: self.service.step_of(2) > 0, "attempt 2 makes a step")
        if self.point in RANK_POINTS:
            self.ends.append({"attempt": 1, "result": "signal", "signal": "9",
                              "rank": self.rank_at_point()})
        else:
            self.ends.append({"attempt": 1, **worker_end(self.fell[0])})

    def kill_what_trains(self, target):
        """Kills a rank, or what takes the ranks along. What must be told of it, and the daemons that
        are dead."""
        s, dead = self.service, []
        pids = self.wait_for(lambda: s.hold(RANKS, STEPS_LEFT_MIN), "ranks run")
        if target == "rank":
            rank = self.rng.choice(sorted(pids))
            e2e.kill(pids[rank])
            end = {"result": "signal", "rank": str(rank), "signal": "9"}
        elif target == "mpirun":
            e2e.kill(self.wait_for(s.mpirun_pids, "mpirun runs")[0])
            # It takes its ranks along.
            end = {"result": "signal", "rank": ("0", "1"), "signal": "9"}
        else:
            worker = self.wait_for(s.worker_of_ranks, "a worker has ranks")
            dead = [worker] if target == "worker" else s.daemons()
            end = worker_end(worker.name)
        for daemon in dead:
            daemon.kill()
        e2e.go_on(pids)
        return end, dead

    def kill(self, target):
        """One kill, and what must be told of it."""
        s, epoch = self.service, self.service.newest_epoch()
        end, dead = {}, [s.coordinator]
        if target == "coordinator":
            s.coordinator.kill()
        else:
            end, dead = self.kill_what_trains(target)
        self.kills.append(target)
        for daemon in dead:
            time.sleep(self.rng.random() * RESTART_SECONDS_MAX / len(dead))
            daemon.start()
        if target == "coordinator":
            return
        self.ends.append({"attempt": epoch, **end})
        self.wait_for(lambda: s.step_of(epoch + 1) > 0, f"attempt {epoch + 1} makes a step")

    def wait_step(self, step):
        self.wait_for(lambda: self.service.newest_step() >= step, f"step {step}")
        self.check_not_through()

    def finish(self, digest):
        self.wait_for(lambda: self.service.newest_step() >= e2e.STEPS, "the last step")
        return service.finish(self.service, digest, self.ends)


def undisturbed(bin_folder, folder):
    s = service.Service(bin_folder, folder)
    try:
        s.submit()
        result = service.finish(s, None, [])
    finally:
        s.stop()
    check(result["restarts"] == 0, str(result))
    return result["digest"]


def gang(bin_folder, folder, digest):
    """One rank on each of two workers: mpirun's daemon is started by the agents. A rank is killed."""
    s = service.Service(bin_folder, folder, slots=1)
    try:
        s.submit()
        s.wait_until(lambda: s.newest_step() >= 6, 120, "step 6")
        pids = s.wait_until(lambda: s.hold(RANKS, STEPS_LEFT_MIN), 60, "ranks run")
        workers = {v for _, variables in s.processes().values() for v in variables
                   if v.startswith(b"SWAX_WORKER=")}
        check(len(workers) == 2, f"both workers have ranks: {workers}")
        e2e.kill(pids[1])
        e2e.go_on(pids)
        result = service.finish(s, digest, [{"attempt": 1, "rank": "1", "signal": "9"}])
    finally:
        s.stop()
    say("  a gang over two workers, kill -9 of a rank: same digest")
    return result


def plans(rng):
    """Of each round: its failpoint and what is killed at which steps after it."""
    points = rng.sample(POINTS, len(POINTS))
    if not e2e.FULL:
        return [(points[0], ["rank", "coordinator"]), (points[1], ["all", "worker"])]
    timed = [target for target, count in TIMED.items() for _ in range(count)]
    rng.shuffle(timed)
    return [(point, timed[i::len(points)]) for i, point in enumerate(points)]


class Account:
    """The kills of all rounds: one row each of what was killed, where, and how it came out."""

    def __init__(self):
        self.rows = []  # (failpoint or None, kinds killed in order, attempts)
        self.again = 0  # steps that were made more than once, with equal bits

    def add(self, point, kills, result):
        self.rows.append((point, kills, result["attempt"]))
        self.again += result["again"]

    def of(self, kind):
        return sum(kills.count(kind) for _, kills, _ in self.rows)

    def missing(self, rng):
        """Plans of the rounds that are still needed; none: all was killed that should be."""
        seen = [point for point, _, _ in self.rows if point]
        points = [point for point in POINTS_WANTED if point not in seen]
        while len(seen) + len(points) < AT_POINTS_MIN or \
                len(self.rows) + len(points) < RUNS_MIN:
            points.append(rng.choice(POINTS))
        timed = [kind for kind in KINDS for _ in range(KIND_MIN - self.of(kind))]
        total = sum(len(kills) for _, kills, _ in self.rows) + len(points) + len(timed)
        timed += [rng.choice(KINDS) for _ in range(KILLS_MIN - total)]
        if timed and not points:
            points.append(rng.choice(POINTS))
        return [(point, timed[i::len(points)]) for i, point in enumerate(points)]

    def table(self):
        lines = [f"  {'failpoint':<30} {'kill -9 of':<34} attempts"]
        for point, kills, attempts in self.rows:
            lines.append(f"  {point or '-':<30} {', '.join(kills) or '-':<34} {attempts:>8}")
        counts = ", ".join(f"{self.of(kind)} {kind}" for kind in [*KINDS, "mpirun"])
        seen = [point for point, _, _ in self.rows if point]
        total = sum(len(kills) for _, kills, _ in self.rows)
        lines.append(f"  {total} kills in {len(self.rows)} runs: {counts}; {len(seen)} at "
                     f"{len(set(seen))} of {len(POINTS)} failpoints; {self.again} steps made again "
                     "with equal bits")
        return "\n".join(lines)


def one_round(bin_folder, folder, rng, plan, digest, account):
    point, targets = plan
    r = Round(bin_folder, folder, rng, point)
    try:
        r.submit()
        try:
            r.strike()
            for k, target in enumerate(targets):
                r.wait_step(rng.randint(12 + 7 * k, 17 + 7 * k))
                r.kill(target)
        except e2e.Through:
            say(f"  {point}: the job is nearly through after {len(r.kills)} of "
                f"{len(targets) + 1} kills")
        result = r.finish(digest)
    finally:
        r.service.stop()
    account.add(point if r.struck else None, r.kills, result)
    say(f"  {point}: kill -9 of {', '.join(r.kills) or 'nothing'}: {result['attempt']} attempts, "
        f"{result['again']} steps made again")


def body(bin_folder, scratch):
    rng, account = service.seed(), Account()
    digest = undisturbed(bin_folder, os.path.join(scratch, "u"))
    account.add(None, ["rank"], e2e.in_time("a gang", lambda number: gang(
        bin_folder, os.path.join(scratch, f"g{number}"), digest)))
    rounds, further = plans(rng), 0
    for i, plan in enumerate(rounds):
        one_round(bin_folder, os.path.join(scratch, f"r{i}"), rng, plan, digest, account)
        if i + 1 == len(rounds):
            more = account.missing(rng)
            further += len(more)
            check(further <= FURTHER_ROUNDS_MAX, f"too many rounds end early\n{account.table()}")
            rounds += more
    say(account.table())
    # A few kills may all come right after a checkpoint; so many cannot.
    check(not e2e.FULL or account.again > 0, "no step was made twice: nothing was compared")
    say(f"digest {digest}")


if __name__ == "__main__":
    e2e.main(body)
