"""What the end-to-end tests share: runs of the real programs, processes found by their environment,
record logs read without swax's own code."""
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SPEC = os.path.join(SOURCE, "jobs", "micro.toml")
FULL = os.environ.get("SWAX_TEST_FULL") == "1"
SKIPPED = 77
TRIES = 5
LOOK_SECONDS_MAX = 1.0
# Small and quick, with every part that a larger run has: 12 checkpoints, retention, validation.
SETTINGS = ["training.steps=36", "training.seq_len=128", "training.global_batch_size=4",
            "checkpoint.interval=3", "checkpoint.keep_latest_k=2", "validation.freq=12",
            "validation.sequences=4", "lr_scheduler.warmup_steps=5"]
STEPS = 36
STEPS_LEFT_MIN = 6  # of a run that is to be disturbed


class Failure(Exception):
    pass


def check(condition, message):
    if not condition:
        raise Failure(message)


def say(text):
    print(text, flush=True)


class Through(Exception):
    """A run was through before it was disturbed: the machine is fast, or it held the script up."""


def in_time(what, trial):
    """What trial(number) returns; once more while it comes too late, with another number."""
    for number in range(TRIES):
        try:
            return trial(number)
        except Through:
            say(f"  {what}: the run was through too early, once more")
    raise Failure(f"{what}: {TRIES} runs were through before they were disturbed")


class Patience:
    """A limit of time that is not used up while the whole machine stands still: what passes between
    two looks counts for a second at most."""

    def __init__(self, seconds):
        self.left, self.looked, self.stood_still = seconds, time.monotonic(), 0.0

    def over(self):
        now = time.monotonic()
        counted = min(now - self.looked, LOOK_SECONDS_MAX)
        self.stood_still += now - self.looked - counted
        self.left -= counted
        self.looked = now
        return self.left < 0


def wait_until(condition, seconds, what, pause=0.02):
    patience = Patience(seconds)
    while True:
        over = patience.over()  # asked first: who comes late has a look all the same
        value = condition()
        if value:
            return value
        check(not over, f"not within {seconds} s: {what}")
        time.sleep(pause)


def environment(extra=None):
    """Ours without what would change the programs, and `extra`."""
    variables = {k: v for k, v in os.environ.items()
                 if not k.startswith("SWAX_") or k == "SWAX_LOG"}
    variables.update(extra or {})
    return variables


def words(changes):
    return [word for change in changes for word in ("--set", change)]


def settings(extra=()):
    return words([*SETTINGS, *extra])


class Run:
    """One typing of `swax run`. `state` is the state folder."""

    def __init__(self, bin_folder, state, ranks=2, extra=(), env=None, words=()):
        self.state, self.ranks = state, ranks
        self.errors_path = state + ".stderr"
        with open(self.errors_path, "ab") as errors:
            self.process = subprocess.Popen(
                [os.path.join(bin_folder, "swax"), "run", SPEC, "--ranks", str(ranks), "--state",
                 state, "-o", "json", *settings(extra), *words],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment(env),
                start_new_session=True)

    def finish(self, seconds=400):  # seconds on a free machine, minutes beside a build
        try:
            out, _ = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise Failure(f"`swax run` did not end within {seconds} s\n{self.errors()}") from None
        self.code = self.process.returncode
        lines = out.decode().splitlines()
        self.result = json.loads(lines[-1]) if lines else None
        return self.code

    def errors(self):
        with open(self.errors_path, errors="replace") as file:
            return file.read()


def run_to_end(bin_folder, state, **options):
    run = Run(bin_folder, state, **options)
    code = run.finish()
    check(code == 0, f"exit code {code}, must be 0\n{run.errors()}")
    return run.result


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def job_folder(state):
    """Where a run's records and checkpoints lie; the service's tests name that folder themselves."""
    if os.path.isdir(os.path.join(state, "store")):
        return os.path.join(state, "store", "jobs", "micro")
    return state


def processes_of(state):
    """pid -> (name, environment) of every running process of the run's worker."""
    mark = ("SWAX_STATE=" + os.path.join(os.path.realpath(state), "worker")).encode()
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        environment = read(f"/proc/{entry}/environ").split(b"\0")
        if mark in environment:
            name = read(f"/proc/{entry}/comm").decode(errors="replace").strip()
            found[int(entry)] = (name, environment)
    return found


def started(pid):
    """When a process began, as time.time() counts; infinity when it is gone."""
    stat = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(stat) < 20:
        return float("inf")
    up = float(read("/proc/uptime").split()[0])
    return time.time() - up + int(stat[19]) / os.sysconf("SC_CLK_TCK")


def epoch_of(environment):
    """SWAX_EPOCH of the variables of processes_of; 0: none."""
    for variable in environment:
        if variable.startswith(b"SWAX_EPOCH="):
            return int(variable.split(b"=")[1])
    return 0


def rank_pids(state):
    """rank -> pid"""
    pids = {}
    for pid, (_, environment) in processes_of(state).items():
        for variable in environment:
            if variable.startswith(b"OMPI_COMM_WORLD_RANK="):
                pids[int(variable.split(b"=")[1])] = pid
    return pids


def mpirun_pid(state):
    for pid, (name, _) in processes_of(state).items():
        if name == "mpirun":
            return pid
    return None


def kill(pid, how=signal.SIGKILL):
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        pass


def half_way(bin_folder, state, step=None, checkpoints=2, **options):
    """A run that has done half of its steps (or `step`) and has so many checkpoints, or has ended."""
    run = Run(bin_folder, state, **options)
    step = STEPS // 2 if step is None else step
    wait_until(lambda: (newest_step(state) >= step and len(committed(state)) >= checkpoints)
               or run.process.poll() is not None, 300, f"step {step} and {checkpoints} checkpoints")
    return run


def hold(run):
    """Stops the run's ranks, of which some steps must be left, until go_on(): rank -> pid. What is
    done meanwhile meets them in mid-training, however late it is."""
    pids = rank_pids(run.state)
    for pid in pids.values():
        kill(pid, signal.SIGSTOP)
    if len(pids) == run.ranks and newest_step(run.state) <= STEPS - STEPS_LEFT_MIN:
        return pids
    go_on(pids)
    run.finish()
    raise Through


def go_on(pids):
    for pid in pids.values():
        kill(pid, signal.SIGCONT)


# ---- record logs: u32 length, u64 hash, Protobuf RankReport -----------------------------------------

def fields(message):
    """Field number -> last value of a Protobuf message: int for numbers, bytes for the rest."""
    values, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        number, kind = key >> 3, key & 7
        if kind == 0:
            values[number] = varint()
        elif kind == 1:
            values[number] = struct.unpack_from("<Q", message, at)[0]
            at += 8
        elif kind == 2:
            length = varint()
            values[number] = message[at:at + length]
            at += length
        elif kind == 5:
            values[number] = struct.unpack_from("<I", message, at)[0]
            at += 4
        else:
            raise Failure(f"Protobuf wire type {kind}")
    return values


def records_path(state, epoch):
    return os.path.join(job_folder(state), "records", f"a{epoch}.log")


def reports(state, epoch):
    """The whole reports of an attempt, in order, as field maps of RankReport."""
    data, at, out = read(records_path(state, epoch)), 0, []
    while at + 12 <= len(data):
        length = struct.unpack_from("<I", data, at)[0]
        if at + 12 + length > len(data):
            break
        out.append(fields(data[at + 12:at + 12 + length]))
        at += 12 + length
    return out


def epochs(state):
    folder = os.path.join(job_folder(state), "records")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(int(name[1:-4]) for name in names)


def newest_step(state):
    for epoch in reversed(epochs(state)):
        steps = [fields(r[2]).get(1, 0) for r in reports(state, epoch) if 2 in r]
        if steps:
            return max(steps)
    return 0


def start_steps(state):
    """epoch -> steps that were done in the state it loaded (HelloReport.start_step)."""
    return {epoch: fields(r[1]).get(6, 0) for epoch in epochs(state)
            for r in reports(state, epoch) if 1 in r}


def check_equal_bits(state):
    """Steps that several attempts made have equal loss and norm bits. How many were made again."""
    known, again = {}, 0
    for epoch in epochs(state):
        for report in reports(state, epoch):
            if 2 not in report:
                continue
            step = fields(report[2])
            bits = (step.get(4, 0), step.get(5, 0))
            if step[1] in known:
                again += 1
                check(known[step[1]][1] == bits,
                      f"step {step[1]} of attempts {known[step[1]][0]} and {epoch} differs")
            known.setdefault(step[1], (epoch, bits))
    check(set(known) == set(range(1, STEPS + 1)), f"recorded steps: {sorted(known)}")
    return again


# ---- checkpoints and leftovers ---------------------------------------------------------------------

def checkpoint_folder(state):
    return os.path.join(state, "store", "jobs", "micro", "ckpt")


def committed(state):
    """Steps of committed checkpoints that are not marked bad, newest last."""
    folder, steps = checkpoint_folder(state), []
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        inside = os.path.join(folder, name)
        if name.startswith("step-") and os.path.exists(os.path.join(inside, "COMMITTED")) \
                and not os.path.exists(os.path.join(inside, "BAD")):
            steps.append(int(name[5:].split(".")[0]))
    return sorted(steps)


def newest_checkpoint(state):
    folder = checkpoint_folder(state)
    names = [n for n in os.listdir(folder) if n.startswith("step-")
             and os.path.exists(os.path.join(folder, n, "COMMITTED"))]
    return os.path.join(folder, max(names))


def shared_leftovers():
    """Shared memory of any MPI: only a run that is killed in the wrong moment leaves some."""
    return {n for n in os.listdir("/dev/shm") if "vader" in n or "open_mpi" in n}


def check_nothing_left(state, before):
    wait_until(lambda: not processes_of(state), 5, "processes with its SWAX_STATE are left")
    for folder in (os.path.join(job_folder(state), "attempts"),
                   os.path.join(state, "worker", "attempts")):
        left = os.listdir(folder)
        check(not left, f"{folder} is not empty: {left}")
    wait_until(lambda: shared_leftovers() <= before, 5, "shared memory is left in /dev/shm")


def main(body):
    """body(bin_folder, scratch_folder); prints what failed and keeps the folder then."""
    if len(sys.argv) != 2:
        sys.exit("usage: TEST BIN_FOLDER")
    if shutil.which("mpirun") is None:
        say("skipped: no mpirun")
        sys.exit(SKIPPED)
    # What a shell starts in the background is to ignore SIGINT (below nohup SIGHUP, too), and its children
    # inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    scratch = tempfile.mkdtemp(prefix="swax-e2e-")
    started = time.monotonic()
    try:
        body(os.path.abspath(sys.argv[1]), scratch)
    except Failure as failure:
        say(f"FAILED: {failure}")
        say(f"state folders are kept in {scratch}")
        sys.exit(1)
    finally:
        say(f"{time.monotonic() - started:.1f} s")
    if os.environ.get("SWAX_TEST_KEEP") != "1":
        shutil.rmtree(scratch)
