"""A coordinator and workers on loopback, as processes that tests start, kill and start again."""
import json
import os
import random
import shutil
import signal
import subprocess
import time

import swax_e2e as e2e
from swax_e2e import Failure, check, environment

JOB = "micro"


class Daemon:
    """One program with one command line; start() is the same again after every kill."""

    def __init__(self, folder, name, command, env=None):
        self.name, self.command, self.env = name, command, env or {}
        self.log_path = os.path.join(folder, name + ".log")
        self.process = None

    def start(self):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=environment(self.env), start_new_session=True)

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, how):
        if self.alive():
            os.kill(self.process.pid, how)

    def kill(self):
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def log(self):
        return e2e.read(self.log_path).decode(errors="replace")


class Service:
    """A coordinator, its workers, and the job that was submitted last: what is asked is about it."""

    def __init__(self, bin_folder, folder, workers=2, slots=2, env=None, coordinator_env=None):
        os.makedirs(folder, exist_ok=True)
        self.folder, self.swax = folder, os.path.join(bin_folder, "swax")
        self.store = os.path.join(folder, "c", "store")
        self.job = JOB
        state = os.path.join(folder, "c")
        self.coordinator = Daemon(folder, "coordinator", [
            self.swax, "coordinator", "--state", state, "--listen", "tcp://127.0.0.1:0"],
            coordinator_env)
        self.coordinator.start()
        self.address = e2e.wait_until(self._listening, 60, "the coordinator says its address")
        self.coordinator.command[-1] = self.address
        self.workers = []
        for i in range(workers):
            name = f"w{i}"
            self.workers.append(Daemon(folder, name, [
                self.swax, "worker", "--name", name, "--slots", str(slots), "--state",
                os.path.join(folder, name), "--coordinator", self.address], env))
            self.workers[-1].start()

    @property
    def job_folder(self):
        return os.path.join(self.store, "jobs", self.job)

    def _listening(self):
        check(self.coordinator.alive(), f"the coordinator ended\n{self.coordinator.log()}")
        for line in self.coordinator.log().splitlines():
            if line.startswith("listening "):
                return line.split()[1]
        return None

    def daemons(self):
        return [self.coordinator, *self.workers]

    def ask(self, *words, timeout=60):
        return subprocess.run([self.swax, *words, "--coordinator", self.address],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env=environment(), timeout=timeout, check=False)

    def submit(self, job=JOB, spec=e2e.SPEC, ranks=2, extra=(), words=()):
        self.job = job
        settings = e2e.settings(extra) if spec == e2e.SPEC else e2e.words(extra)
        answer = self.ask("submit", spec, "--ranks", str(ranks), *settings, "--set",
                          f"job.name={job}", *words)
        check(answer.returncode == 0, f"submit: exit code {answer.returncode}\n{answer.stderr}")

    def status(self):
        answer = self.ask("status", self.job, "-o", "json")
        check(answer.returncode == 0, f"status: exit code {answer.returncode}\n{answer.stderr}")
        return json.loads(answer.stdout)

    def wait(self, seconds=180):
        answer = self.ask("wait", self.job, "--timeout", str(seconds), "-o", "json",
                          timeout=seconds + 60)
        check(answer.returncode == 0,
              f"wait: exit code {answer.returncode}\n{answer.stdout}{answer.stderr}"
              f"{self.tails()}")
        return json.loads(answer.stdout)

    def cancel(self):
        answer = self.ask("cancel", self.job, "--now")
        check(answer.returncode == 0, f"cancel: exit code {answer.returncode}\n{answer.stderr}")
        job = b"SWAX_JOB=" + self.job.encode()  # the slots may be another one's by now
        self.wait_until(lambda: not [p for p, (_, v) in self.processes().items() if job in v], 60,
                        "the cancelled job's ranks have gone")

    def nodes(self):
        """Worker -> its state."""
        answer = self.ask("nodes", "-o", "json")
        check(answer.returncode == 0, f"nodes: exit code {answer.returncode}\n{answer.stderr}")
        return {node["node"]: node["state"] for node in json.loads(answer.stdout)["nodes"]}

    def bad_ends(self):
        return [e for e in self.events("attempt_ended") if not e["text"].startswith("done")]

    def events(self, kind=None):
        answer = self.ask("events", self.job, "-o", "json")
        check(answer.returncode == 0, f"events: exit code {answer.returncode}\n{answer.stderr}")
        events = json.loads(answer.stdout)
        return [e for e in events if kind is None or e["kind"] == kind]

    def tails(self):
        return "".join(f"--- {d.name}\n" + "\n".join(d.log().splitlines()[-25:]) + "\n"
                       for d in self.daemons())

    def wait_until(self, condition, seconds, what):
        """As e2e.wait_until, and the daemons' newest lines when it fails."""
        try:
            return e2e.wait_until(condition, seconds, what)
        except Failure as failure:
            raise Failure(f"{failure}\n{self.tails()}") from None

    # ---- what the ranks do, from their files ----
    def newest_step(self):
        return e2e.newest_step(self.job_folder)

    def step_of(self, epoch):
        """Highest step that the attempt recorded; 0: none."""
        return max([e2e.fields(r[2]).get(1, 0) for r in e2e.reports(self.job_folder, epoch)
                    if 2 in r], default=0)

    def newest_epoch(self):
        return max(e2e.epochs(self.job_folder), default=0)

    def saved(self):
        """Steps that have a checkpoint folder, committed or not."""
        folder = os.path.join(self.job_folder, "ckpt")
        names = os.listdir(folder) if os.path.isdir(folder) else []
        return sorted(int(n[5:].split(".")[0]) for n in names if n.startswith("step-"))

    def committed(self):
        folder = os.path.join(self.job_folder, "ckpt")
        names = os.listdir(folder) if os.path.isdir(folder) else []
        return sorted(int(n[5:].split(".")[0]) for n in names if n.startswith("step-")
                      and os.path.exists(os.path.join(folder, n, "COMMITTED")))

    def processes(self):
        """pid -> (name, environment) of every process of the job's attempts below this service."""
        found = {}
        mark, job = ("SWAX_STATE=" + os.path.realpath(self.folder)).encode(), b"SWAX_JOB="
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            variables = e2e.read(f"/proc/{entry}/environ").split(b"\0")
            if any(v.startswith(mark) for v in variables) and \
                    any(v.startswith(job) for v in variables):
                name = e2e.read(f"/proc/{entry}/comm").decode(errors="replace").strip()
                found[int(entry)] = (name, variables)
        return found

    def rank_pids(self):
        pids = {}
        for pid, (name, variables) in self.processes().items():
            for variable in variables:
                if name == "swax-train" and variable.startswith(b"OMPI_COMM_WORLD_RANK="):
                    pids[int(variable.split(b"=")[1])] = pid
        return pids

    def hold(self, ranks, steps_left):
        """Stops the job's ranks until e2e.go_on: rank -> pid; None: not all are there. Raises Through
        when fewer steps are left: what is done meanwhile meets them in mid-training."""
        pids = self.rank_pids()
        for pid in pids.values():
            e2e.kill(pid, signal.SIGSTOP)
        through = self.newest_step() > e2e.STEPS - steps_left
        if len(pids) == ranks and not through:
            return pids
        e2e.go_on(pids)
        if through:
            raise e2e.Through
        return None

    def mpirun_pids(self):
        return [pid for pid, (name, _) in self.processes().items() if name == "mpirun"]

    def worker_of_ranks(self):
        """The worker whose ranks run now; None: nobody's."""
        for _, variables in self.processes().values():
            for variable in variables:
                if variable.startswith(b"SWAX_WORKER="):
                    name = variable.split(b"=")[1].decode()
                    return next(w for w in self.workers if w.name == name)
        return None

    def stop(self):
        for daemon in self.daemons():
            daemon.signal(signal.SIGCONT)
            daemon.kill()
        # Nobody starts these workers again: what their notes name is ours to remove.
        for worker in self.workers:
            notes = os.path.join(self.folder, worker.name, "attempts")
            for note in os.listdir(notes) if os.path.isdir(notes) else []:
                session = e2e.read(os.path.join(notes, note)).decode().strip()
                if session.startswith("/tmp/swax-"):
                    e2e.wait_until(lambda: not self.processes(), 10, "ranks outlive their worker")
                    shutil.rmtree(session, ignore_errors=True)

    def check_checkpoints(self):
        """Committed = present + retired: nothing is lost, nothing stands there unknown. Old ones are
        retired beside everything else: what is gone is told in a moment."""
        folder, seen = os.path.join(self.job_folder, "ckpt"), {}

        def look():
            events = self.events()
            for kind in ("committed", "retired"):
                seen[kind] = {(e["step"], e["attempt"]) for e in events
                              if e["kind"] == "checkpoint_" + kind}
            seen["present"] = set()
            for name in os.listdir(folder):
                if name.startswith("step-") and \
                        os.path.exists(os.path.join(folder, name, "COMMITTED")):
                    step, attempt = name[5:].split(".a")
                    seen["present"].add((int(step), int(attempt)))
            return seen["present"] == seen["committed"] - seen["retired"]
        try:
            self.wait_until(look, 30, "committed checkpoints are present or retired")
        except Failure as failure:
            raise Failure(f"{failure}\n{ {kind: sorted(keys) for kind, keys in seen.items()} }") \
                from None

    def check_nothing_left(self):
        e2e.wait_until(lambda: not self.processes(), 5,
                       f"processes are left: {[n for n, _ in self.processes().values()]}")


def seed():
    value = int(os.environ.get("SWAX_TEST_SEED", time.time_ns() % 1_000_000))
    e2e.say(f"seed {value}: SWAX_TEST_SEED={value} repeats it")
    return random.Random(value)


def check_ends(service, expected):
    """One attempt_ended for each of the expected kills, with what is known of it: the attempt, the
    signal, the rank that was first, the node, the result. None: nothing may be told; a tuple: one
    of these. The order is that of the kills."""
    def fits(value, known):
        return value in known if isinstance(known, tuple) else value == known
    ends = service.bad_ends()
    told = [(e["attempt"], e["text"], e["fields"]) for e in ends]
    check(len(ends) == len(expected), f"{len(ends)} attempts ended, {expected} were killed: {told}")
    for end, known in zip(ends, expected):
        fields = {**end["fields"], "attempt": end["attempt"],
                  "result": end["text"].split(":")[0]}
        check(fields["node"] and all(fits(fields.get(key), value) for key, value in known.items()),
              f"an attempt ended as {end['text']} {fields}, must be {known}; all: {told}")


def finish(service, digest, ends):
    """The job's end and all that must hold then. `ends`: what must be told of each attempt that was
    killed, in order. Returns the job's result; `again`: how many steps were made a second time."""
    result = service.wait()
    check(result["state"] == "SUCCEEDED" and result["step"] == e2e.STEPS, str(result))
    check(digest in (None, result["digest"]), f"digest {result['digest']}, must be {digest}")
    check_ends(service, ends)
    check(not service.events("diverged"), "equal steps with different bits")
    result["again"] = e2e.check_equal_bits(service.job_folder)
    service.check_checkpoints()
    service.check_nothing_left()
    return result


__all__ = ["Daemon", "Failure", "JOB", "Service", "environment", "finish", "seed"]
