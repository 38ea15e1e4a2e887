"""Goal: whatever of the service is killed, and whenever, the job ends with the bits of an undisturbed
one, exactly the attempts that were killed are seen to end, and nothing is lost or left. Method: each
round starts a coordinator and two workers, submits one job and kills ranks, workers, the coordinator
or all of them, at random steps or at named failpoints; what was killed is started again with the same
command. The seed is printed; SWAX_TEST_SEED repeats it."""
import os
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
TARGETS = ["rank", "coordinator", "worker", "mpirun", "all"]
RESTART_SECONDS_MAX = 3.0
TARGET_RESTART_SECONDS = 3.0


class Round:
    def __init__(self, bin_folder, folder, rng, point=None):
        self.rng, self.point, self.kills, self.ends, self.restarts = rng, point, 0, 0, []
        self.once = folder + ".once"
        os.mkdir(self.once)
        armed = {"SWAX_FAILPOINT_ONCE_DIR": self.once}
        if point is not None:
            early = point.startswith(("coord.s", "agent.l"))
            armed["SWAX_FAILPOINTS"] = f"{point}:{1 if early else rng.randint(1, 3)}"
        ours = point in COORDINATOR_POINTS
        self.service = service.Service(bin_folder, folder, coordinator_env=armed if ours else None,
                                       env=None if ours else armed)

    def pump(self):
        """Starts again what a failpoint killed."""
        for daemon in self.service.daemons():
            if not daemon.alive():
                time.sleep(self.rng.random() * RESTART_SECONDS_MAX)
                daemon.start()

    def wait_step(self, step, seconds=120):
        def reached():
            self.pump()
            return self.service.newest_step() >= step
        self.service.wait_until(reached, seconds, f"step {step}")

    def submit(self):
        """Again when the coordinator died before its answer: the job is there once, or not yet."""
        answer = self.service.ask("submit", e2e.SPEC, "--ranks", "2", "--timeout", "5",
                                  "--request-id", "0" * 31 + "1", *e2e.settings())
        if answer.returncode != 0:
            self.pump()
            answer = self.service.ask("submit", e2e.SPEC, "--ranks", "2", "--request-id",
                                      "0" * 31 + "1", *e2e.settings())
        check(answer.returncode == 0, f"submit: {answer.returncode}\n{answer.stderr}"
                                      f"{self.service.tails()}")

    def kill(self, target):
        s, epoch, before = self.service, self.service.newest_epoch(), time.monotonic()
        dead = []
        if target == "rank":
            pids = e2e.wait_until(s.rank_pids, 30, "ranks run")
            e2e.kill(pids[self.rng.choice(sorted(pids))])
        elif target == "mpirun":
            e2e.kill(e2e.wait_until(s.mpirun_pids, 30, "mpirun runs")[0])
        elif target == "coordinator":
            dead = [s.coordinator]
        elif target == "worker":
            dead = [e2e.wait_until(s.worker_of_ranks, 30, "a worker has ranks")]
        else:
            dead = s.daemons()
        for daemon in dead:
            daemon.kill()
        self.kills += 1
        self.ends += target != "coordinator"
        for daemon in dead:
            time.sleep(self.rng.random() * RESTART_SECONDS_MAX / len(dead))
            daemon.start()
        if target == "coordinator":
            return
        s.wait_until(lambda: s.step_of(epoch + 1) > 0, 120,
                     f"attempt {epoch + 1} makes a step")
        if target == "rank":
            self.restarts.append(time.monotonic() - before)

    def finish(self, digest):
        self.service.wait_until(lambda: self.pump() or self.service.newest_step() >= e2e.STEPS, 150,
                                "the last step")
        if self.point is not None:
            struck = os.listdir(self.once)
            check(struck, f"nobody passed {self.point}")
            self.kills += 1
            self.ends += self.point in RANK_POINTS + WORKER_POINTS
        try:
            return service.finish(self.service, digest, self.ends)
        finally:
            self.service.stop()


def undisturbed(bin_folder, folder):
    s = service.Service(bin_folder, folder)
    s.submit()
    result = service.finish(s, None, 0)
    s.stop()
    check(result["restarts"] == 0, str(result))
    return result["digest"]


def gang(bin_folder, folder, digest):
    """One rank on each of two workers: mpirun's daemon is started by the agents. A rank is killed."""
    s = service.Service(bin_folder, folder, slots=1)
    try:
        s.submit()
        s.wait_until(lambda: s.newest_step() >= 6, 120, "step 6")
        workers = {v for _, variables in s.processes().values() for v in variables
                   if v.startswith(b"SWAX_WORKER=")}
        check(len(workers) == 2, f"both workers have ranks: {workers}")
        e2e.kill(s.rank_pids()[1])
        service.finish(s, digest, 1)
    finally:
        s.stop()
    say("  a gang over two workers, kill -9 of a rank: same digest")


def body(bin_folder, scratch):
    rng = service.seed()
    digest = undisturbed(bin_folder, os.path.join(scratch, "u"))
    gang(bin_folder, os.path.join(scratch, "g"), digest)
    points = rng.sample(RANK_POINTS + COORDINATOR_POINTS + WORKER_POINTS, 11)
    # CI: two rounds of three kills; in full every failpoint and thirty kills.
    plans = [(points[i % 11], 2) for i in range(11 if e2e.FULL else 2)]
    kills, restarts = 1, []
    for i, (point, timed) in enumerate(plans):
        r = Round(bin_folder, os.path.join(scratch, f"r{i}"), rng, point)
        try:
            r.submit()
            # The failpoint strikes in the first saves; then comes the clock.
            r.service.wait_until(lambda: r.pump() or os.listdir(r.once), 120,
                           f"{point} is passed")
            targets = [TARGETS[(i * timed + k) % len(TARGETS)] for k in range(timed)]
            for k, target in enumerate(targets):
                r.wait_step(rng.randint(12 + 8 * k, 18 + 8 * k))
                r.kill(target)
            result = r.finish(digest)
        finally:
            r.service.stop()
        kills += r.kills
        restarts += r.restarts
        say(f"  {point}, then kill -9 of {', '.join(targets)}: {result['attempt']} attempts")
    for seconds in restarts:
        say(f"kill -9 of a rank -> first step of the next attempt: {seconds:.2f} s "
            f"(target {TARGET_RESTART_SECONDS:.0f} s on an idle machine)")
    say(f"{kills} kills, digest {digest}")


if __name__ == "__main__":
    e2e.main(body)
