"""Goal: a run on several GPUs of one host has the bits of a run on one, whatever happens to its ranks.
Method: real runs of the 125m preset over NCCL, with a batch so small that it takes minutes and a step
so long that a checkpoint stands before half of them are done; no number of ranks divides the batch:
  1. 1, 2, 4, 8 ranks, as far as there are GPUs: equal digests, and no difference for `swax diff`
  2. kill -9 of a rank: the run starts it again by itself; then the run is asked to stop and typed again
     with half the ranks: equal bits of steps made twice, the same digest
  3. a stopped rank: the call that waits for it ends within its limit, the late rank is named, the run
     goes on by itself to the same digest
Prints how long it takes from kill -9 of a rank to the next step that was not made before.

Usage: ranks_test.py FOLDER              (FOLDER: bin of a build or of a bundle)
       ranks_test.py FOLDER --restart JOB.toml [--set KEY=VALUE]...   only that time, of this job
MULTI_RANKS: numbers of ranks ("1 2 4 8" up to the GPUs). MULTI_STEPS: steps of a run (40).
MULTI_BACKEND=cpu: the same on the CPU with the micro preset and 1, 2, 4 ranks, to try this script."""
import os
import re
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))

import swax_e2e as e2e  # noqa: E402
from swax_e2e import check, say  # noqa: E402

CPU = os.environ.get("MULTI_BACKEND") == "cpu"
STEPS = int(os.environ.get("MULTI_STEPS", "40"))
COMM_LIMIT_S = 5
OPTIONS = []
RUNS = []
RUN_SECONDS_MAX = 200
# What is left of a run when it is disturbed.
STEPS_LEFT_MIN = 4

COMMON = ["job.name=micro", f"training.steps={STEPS}", "lr_scheduler.warmup_steps=5", "checkpoint.keep_latest_k=2",
          "validation.freq=20", "debug.hash_every=10"]
GPU = ["training.backend=cuda", "training.seq_len=4096", "checkpoint.interval=5", "validation.sequences=8",
       "parallelism.allowed_ranks=[1, 2, 4, 8]"]
SMALL = ["training.seq_len=128", "checkpoint.interval=5", "validation.sequences=4",
         "parallelism.allowed_ranks=[1, 2, 4]"]


def gpus():
    try:
        said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False).stdout
    except OSError:
        return 0
    return len(re.findall(r"^GPU ", said, re.M))


def write_text(path):
    with open(path, "w", encoding="utf-8") as file:
        for number in range(1, 20001):
            file.write(f"Of the {7 * number} sheep that the shepherd counted, number {number} was the first to "
                       "sleep.\n\n")


def write_spec(job, scratch):
    """The job with one text of our own instead of its data sets."""
    text = os.path.join(scratch, "text")
    write_text(text)
    with open(job, encoding="utf-8") as file:
        spec = file.read()
    head, _, tail = spec.partition("[data]")
    rest = re.search(r"^\[(?!\[?data)", tail, re.M)
    check(rest is not None, f"{job}: nothing follows [data]")
    data = f'[data]\n[[data.sources]]\nname = "sheep"\ntext = "file:{text}"\n\n'
    path = os.path.join(scratch, os.path.basename(job))
    with open(path, "w", encoding="utf-8") as file:
        file.write(head + data + tail[rest.start():])
    return path


class Clock:
    def __init__(self):
        self.begin = time.monotonic()

    def text(self):
        return f"{time.monotonic() - self.begin:.1f} s"


def start(bin_folder, state, ranks, env=None):
    RUNS.append(e2e.Run(bin_folder, state, ranks=ranks, env=env))
    return RUNS[-1]


def end_all():
    """What is left of runs that failed would take the GPUs from whoever comes next."""
    for run in RUNS:
        if run.process.poll() is None:
            for pid in [run.process.pid, *e2e.processes_of(run.state)]:
                e2e.kill(pid)
            run.process.communicate()


def finish(run, name):
    code = run.finish(RUN_SECONDS_MAX)
    check(code == 0, f"{name}: exit code {code}\n{run.errors()}\n{log_ends(run.state)}")
    return run.result


def log_ends(state):
    ends = []
    for folder, _, names in os.walk(os.path.join(e2e.job_folder(state), "logs")):
        for name in sorted(names):
            lines = e2e.read(os.path.join(folder, name)).decode(errors="replace").splitlines()
            ends += [f"{name}: {line}" for line in lines[-4:]]
    return "\n".join(ends)


def in_training(run, step):
    """Until `step` is done and a checkpoint stands. The run must not be through."""
    e2e.wait_until(lambda: run.process.poll() is not None or (e2e.newest_step(run.state) >= step
                                                              and e2e.committed(run.state)), 150,
                   f"step {step} and a checkpoint of {run.state}")
    check(run.process.poll() is None or run.process.poll() == 0,
          f"it failed before step {step}\n{run.errors()}\n{log_ends(run.state)}")
    if run.process.poll() is not None or e2e.newest_step(run.state) > STEPS - STEPS_LEFT_MIN:
        run.finish(RUN_SECONDS_MAX)
        raise e2e.Through


def rank_pid(state, rank):
    pids = e2e.rank_pids(state)
    check(rank in pids, f"rank {rank} is not among the processes {pids}")
    return pids[rank]


def every_number(bin_folder, scratch, numbers):
    digest = None
    for ranks in numbers:
        clock, state = Clock(), os.path.join(scratch, f"w{ranks}")
        result = finish(start(bin_folder, state, ranks), f"{ranks} ranks")
        say(f"{ranks} ranks: digest {result['digest']}, {result['tokens_per_s']:.0f} tokens/s, {clock.text()}")
        check(result["step"] == STEPS and result["attempt"] == 1, str(result))
        digest = digest or result["digest"]
        check(result["digest"] == digest, f"{ranks} ranks: digest {result['digest']}, one rank: {digest}")
        if ranks != numbers[0]:
            first = os.path.join(scratch, f"w{numbers[0]}")
            diff = subprocess.run([os.path.join(bin_folder, "swax"), "diff", first, state], capture_output=True,
                                  text=True, timeout=120, check=False)
            check(diff.returncode == 0, f"swax diff: {diff.stdout}{diff.stderr}")
    return digest


def restart_seconds(run, rank):
    """kill -9 of a rank; seconds until a step is done that was not done before."""
    pid, epoch = rank_pid(run.state, rank), e2e.epochs(run.state)[-1]
    e2e.kill(pid)
    begin = time.monotonic()
    before = None
    while time.monotonic() - begin < 300:
        check(run.process.poll() is None, f"it ended after kill -9\n{run.errors()}")
        newest = e2e.epochs(run.state)[-1]
        if before is None and newest > epoch:
            before = max(e2e.fields(r[2])[1] for r in e2e.reports(run.state, epoch) if 2 in r)
        if before is not None and e2e.newest_step(run.state) > before:
            return time.monotonic() - begin, before, e2e.start_steps(run.state)[newest]
        time.sleep(0.02)
    raise e2e.Failure(f"no new step within 300 s of kill -9\n{run.errors()}\n{log_ends(run.state)}")


def killed(bin_folder, scratch, ranks, digest, number):
    clock, state = Clock(), os.path.join(scratch, f"killed{number}")
    run = start(bin_folder, state, ranks)
    in_training(run, 6)
    seconds, before, loaded = restart_seconds(run, ranks - 1)
    say(f"kill -9 of rank {ranks - 1} of {ranks} after step {before}: from step {loaded} again, the next new step "
        f"after {seconds:.1f} s")
    if e2e.newest_step(state) > STEPS - STEPS_LEFT_MIN:
        run.finish(RUN_SECONDS_MAX)
        raise e2e.Through
    run.process.send_signal(signal.SIGINT)
    code = run.finish(RUN_SECONDS_MAX)
    if code == 0:
        raise e2e.Through
    half = max(1, ranks // 2)
    result = finish(start(bin_folder, state, half), f"typed again with {half} ranks")
    last = e2e.epochs(state)[-1]
    check(last >= 3, f"attempts: {e2e.epochs(state)}")
    check(0 < e2e.start_steps(state)[last] < STEPS, f"it began at step {e2e.start_steps(state)}")
    check(result["digest"] == digest, f"after kill -9: digest {result['digest']}, must be {digest}")
    again = e2e.check_equal_bits(state)
    say(f"  stopped, then {half} ranks from step {e2e.start_steps(state)[last]}: the same digest, {again} steps were "
        f"made again with equal bits, {clock.text()}")


def late_lines(state):
    """What the logs say of late ranks."""
    found = []
    for folder, _, names in os.walk(state):
        for name in names:
            if name.startswith("rank-") and name.endswith(".log"):
                text = e2e.read(os.path.join(folder, name)).decode(errors="replace")
                found += re.findall(r"[^\n]*late: rank \d+ [^\n]*", text)
    return found


def stopped(bin_folder, scratch, ranks, digest, number):
    clock, state = Clock(), os.path.join(scratch, f"stopped{number}")
    run = start(bin_folder, state, ranks, {"SWAX_COMM_LIMIT_MS": str(COMM_LIMIT_S * 1000)})
    in_training(run, 6)
    e2e.kill(rank_pid(state, 1), signal.SIGSTOP)
    begin = time.monotonic()
    e2e.wait_until(lambda: late_lines(state), 3 * COMM_LIMIT_S, "a log names the late rank")
    seconds, line = time.monotonic() - begin, late_lines(state)[0]
    check("late: rank 1 " in line, f"another rank is named: {line}")
    result = finish(run, "a stopped rank")
    check(result["attempt"] >= 2, str(result))
    ended = re.findall(r"^attempt 1 ended .*$", run.errors(), re.M)
    check(any("late: rank 1 " in text for text in ended), f"who waits for the run is not told why: {ended}")
    check(result["digest"] == digest, f"after a stopped rank: digest {result['digest']}, must be {digest}")
    say(f"stopped rank 1 of {ranks}: named after {seconds:.1f} s (limit {COMM_LIMIT_S} s), the same digest, "
        f"{clock.text()}")
    say("  " + line.strip()[:300])


def restart_only(bin_folder, scratch, job, settings, ranks):
    e2e.SPEC = write_spec(job, scratch)
    e2e.SETTINGS = ["job.name=micro", "training.backend=cuda", "validation.freq=0", "training.reduction_lanes=1",
                    f"training.global_batch_size={ranks}", f"parallelism.allowed_ranks=[{ranks}]", *settings]
    state = os.path.join(scratch, "restart")
    run = start(bin_folder, state, ranks)
    e2e.wait_until(lambda: run.process.poll() is not None or e2e.committed(state), 300, "a checkpoint")
    check(run.process.poll() is None, f"it ended\n{run.errors()}\n{log_ends(state)}")
    seconds, before, loaded = restart_seconds(run, ranks - 1)
    say(f"{os.path.basename(job)}, {ranks} ranks: kill -9 of rank {ranks - 1} after step {before}: from step "
        f"{loaded} again, the next new step after {seconds:.1f} s")


def checks(bin_folder, scratch):
    if OPTIONS[:1] == ["--restart"]:
        settings = [word for flag, word in zip(OPTIONS[2:], OPTIONS[3:]) if flag == "--set"]
        restart_only(bin_folder, scratch, OPTIONS[1], settings, gpus())
        return
    numbers = [1, 2, 4] if CPU else [n for n in (1, 2, 4, 8) if n <= gpus()]
    if "MULTI_RANKS" in os.environ:
        numbers = [int(word) for word in os.environ["MULTI_RANKS"].split()]
    most = max(numbers, default=0)
    if most < 2:
        say(f"skipped: {gpus()} GPUs, needs 2")
        sys.exit(e2e.SKIPPED)
    e2e.SPEC = write_spec(os.path.join(e2e.SOURCE, "jobs", "micro.toml" if CPU else "125m.toml"), scratch)
    e2e.STEPS = STEPS
    # No number of ranks divides it: some have no slot in the last micro-step.
    e2e.SETTINGS = COMMON + (SMALL if CPU else GPU) + [f"training.global_batch_size={2 * most + 1}"]
    digest = every_number(bin_folder, scratch, numbers)
    e2e.in_time("kill -9", lambda number: killed(bin_folder, scratch, most, digest, number))
    if not CPU:  # MPI has no limit of its own: the agent's is a minute
        e2e.in_time("a stopped rank", lambda number: stopped(bin_folder, scratch, most, digest, number))
    say(f"passed: {numbers} ranks, {STEPS} steps, digest {digest}")


def body(bin_folder, scratch):
    try:
        checks(bin_folder, scratch)
    finally:
        end_all()


if __name__ == "__main__":
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast objects of NVLink belong to the whole host
    OPTIONS, sys.argv[2:] = sys.argv[2:], []
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    e2e.main(body)
