"""Goal: what happens when `swax run` is typed, interrupted and typed again is what its help says.
Method: each case is a run of its own or goes on with a copy of one that was stopped half-way; exit
code, last object, events and digest are compared."""
import os
import shutil
import signal
import subprocess

import swax_e2e as e2e
from swax_e2e import check, say


def expect(run, code):
    got = run.finish()
    if got == 0 and code != 0:
        raise e2e.Through  # nothing was left that could be disturbed
    check(got == code, f"exit code {got}, must be {code}\n{run.errors()}")
    return run.result


def finished(case):
    first = expect(e2e.Run(case.bin, case.path("finished")), 0)
    again = expect(e2e.Run(case.bin, case.path("finished")), 0)
    check(first == again, f"{first} and then {again}")
    check(first["restarts"] == 0 and first["checkpoint"]["step"] == e2e.STEPS, str(first))
    check(set(first) >= {"schema_version", "job", "name", "state", "reason", "step", "total_steps",
                         "loss", "validation_bpb", "tokens_per_s", "digest", "attempt", "restarts",
                         "checkpoint", "state_dir"}, str(first))
    text = subprocess.run([os.path.join(case.bin, "swax"), "run", e2e.SPEC, "--ranks", "2", "--state",
                           case.path("finished"), *e2e.settings()], capture_output=True, check=True)
    for word in (first["digest"], "SUCCEEDED", "bits per byte", e2e.checkpoint_folder(first["state_dir"])):
        check(word.encode() in text.stdout, f"{word} is not in\n{text.stdout.decode()}")


def stopped(case):
    """SIGTERM: a checkpoint of the step that was reached, exit code 143."""
    case.origin = case.path("origin")
    run = e2e.half_way(case.bin, case.origin)
    run.process.send_signal(signal.SIGTERM)
    result = expect(run, 143)
    check(result["state"] == "STOPPED" and result["digest"] is None, str(result))
    check(result["checkpoint"]["step"] == result["step"], f"no checkpoint at the stop: {result}")
    e2e.check_nothing_left(case.origin, case.before)


def other_ranks(case):
    """A free field changes: an event, and the same bits."""
    state = case.copy("ranks")
    run = e2e.Run(case.bin, state, ranks=3, extra=["checkpoint.interval=5"])
    result = expect(run, 0)
    check(result["digest"] == case.digest, f"{result['digest']}, must be {case.digest}")
    check("spec changed" in run.errors() and "parallelism.ranks: 2 -> 3" in run.errors(), run.errors())
    check(result["restarts"] == 1, str(result))


def other_spec(case):
    state = case.copy("lr")
    run = e2e.Run(case.bin, state, extra=["optimizer.lr=0.001"])
    run.finish()
    check(run.code == 4, f"exit code {run.code}, must be 4")
    check("optimizer.lr" in run.errors() and "0.001" in run.errors(), run.errors())
    check(expect(e2e.Run(case.bin, state), 0)["digest"] == case.digest, "the run was changed")


def second_run(case):
    state = case.path("second")
    first = e2e.half_way(case.bin, state)
    held = e2e.hold(first)
    second = e2e.Run(case.bin, state)
    second.finish()
    check(second.code == 4, f"exit code {second.code}, must be 4")
    check("another `swax run` works in" in second.errors(), second.errors())
    check("RUNNING" in case.ask("status", "--state", state), "status beside the run")
    check("attempt_started" in case.ask("events", "--state", state), "events beside the run")
    check("good" in case.ask("checkpoints", "list", "--state", state), "checkpoints beside the run")
    e2e.go_on(held)
    check(expect(first, 0)["digest"] == case.digest, "the second one disturbed the first")


def cancelled(case):
    """The run's coordinator is one like any other; a cancelled run that is typed again goes on."""
    state = case.path("cancelled")
    run = e2e.half_way(case.bin, state)
    held = e2e.hold(run)
    log = e2e.read(os.path.join(state, "run.log")).decode()
    address = log.split(" serving address=")[1].split()[0]
    case.ask("cancel", "micro", "--coordinator", address)
    e2e.go_on(held)
    result = expect(run, 11)
    check(result["state"] == "CANCELLED" and result["checkpoint"] is not None, str(result))
    check("CANCELLED" in case.ask("status", "--state", state), "status of a cancelled run")
    result = expect(e2e.Run(case.bin, state), 0)
    check(result["digest"] == case.digest and result["restarts"] == 1, str(result))
    check("resumed" in case.ask("events", "--state", state), "events")


def two_signals(case):
    state = case.path("signals")
    run = e2e.half_way(case.bin, state)
    e2e.hold(run)  # ranks that cannot answer: only the second signal ends them
    run.process.send_signal(signal.SIGINT)
    e2e.wait_until(lambda: "SIGINT" in run.errors(), 30, "the first signal is heard")
    check(run.process.poll() is None, "it did not wait for the checkpoint")
    run.process.send_signal(signal.SIGINT)
    expect(run, 130)
    e2e.check_nothing_left(state, case.before)
    check(expect(e2e.Run(case.bin, state), 0)["digest"] == case.digest, "other digest")


def hang(case):
    state = case.path("hang")
    # It may be in the first step of a window, or validate, when it is stopped.
    run = e2e.half_way(case.bin, state, env={"SWAX_TEST_AGENT_TIMES":
                       "train_floor_ms=5000,validate_limit_ms=60000,launch_limit_ms=60000"})
    e2e.kill(e2e.hold(run)[0], signal.SIGCONT)
    result = expect(run, 0)
    check(result["digest"] == case.digest and result["attempt"] == 2, str(result))
    check("hang step" in run.errors() and "rank 1 said nothing for" in run.errors(), run.errors())


def damaged_records(case):
    """A record log that cannot be read never stops a run."""
    state = case.copy("records")
    path = e2e.records_path(state, 1)
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        file.write(b"\xff\xff\xff\xff\xff\xff\xff\xff")
    run = e2e.Run(case.bin, state)
    check(expect(run, 0)["digest"] == case.digest, "other digest")
    check("a1.log" in case.ask("status", "--state", state), "status names the damaged log")


def other_bits(case):
    """A gradient bit flips when a step is made again: DIVERGED names both attempts."""
    state = case.path("bits")
    no_save = ["checkpoint.interval=1000", "validation.freq=4"]
    run = e2e.half_way(case.bin, state, step=6, checkpoints=0, extra=no_save)
    e2e.hold(run)
    # What the ranks say is told in order: the steps before this are known, too.
    e2e.wait_until(lambda: "validation step 4" in run.errors(), 60, "the coordinator knows of step 4")
    e2e.kill(run.process.pid)
    run.finish()
    flip = {"SWAX_TEST_FLIP_GRADIENT": "3:layers.0.attn.wq:5:30"}
    run = e2e.Run(case.bin, state, extra=no_save, env=flip)
    result = expect(run, 0)
    lines = [line for line in run.errors().splitlines() if line.startswith("diverged")]
    check(lines and "attempt 2 has" in lines[0] and "attempt 1 had" in lines[0], run.errors())
    check(lines[0].startswith("diverged step 3"), lines[0])
    check(result["digest"] != case.digest, "a flipped gradient left no trace")


def wrong_spec(case):
    state = case.path("wrong")
    for extra, word in ((["training.steps=0"], "training.steps"), (["model.nothing=1"], "nothing")):
        run = e2e.Run(case.bin, state, extra=extra)
        run.finish()
        check(run.code == 2 and word in run.errors(), f"{run.code}\n{run.errors()}")
    run = e2e.Run(case.bin, state, ranks=9)
    run.finish()
    check(run.code == 2, f"9 ranks are not allowed: exit code {run.code}")
    run = e2e.Run(case.bin, state, extra=["training.seq_len=1048576", "model.dim=65536",
                                          "training.steps=1"])
    run.finish()
    check(run.code == 2 and "are available" in run.errors(), f"{run.code}\n{run.errors()}")
    check(not os.path.exists(state), "a spec that is wrong left a folder")


def nameless_host(case):
    """Nothing resolves the own host name."""
    if os.geteuid() != 0:
        return "skipped: not root"
    state = case.path("host")
    done = subprocess.run(["unshare", "-u", "sh", "-c", 'hostname nowhere.invalid; exec "$@"', "sh",
                           os.path.join(case.bin, "swax"), "run", e2e.SPEC, "--ranks", "2", "--state",
                           state, *e2e.settings()], capture_output=True)
    if b"unshare" in done.stderr:
        return "skipped: no unshare"
    check(done.returncode == 0 and case.digest.encode() in done.stdout, done.stderr.decode())
    return "done"


class Case:
    def __init__(self, bin_folder, scratch):
        self.bin, self.scratch, self.number = bin_folder, scratch, 0
        self.origin = None
        self.before = e2e.shared_leftovers()
        self.digest = e2e.run_to_end(bin_folder, self.path("undisturbed"))["digest"]

    def path(self, name):
        return os.path.join(self.scratch, f"{name}{self.number or ''}")

    def trial(self, test, number):
        self.number = number
        return test(self)

    def ask(self, *words):
        done = subprocess.run([os.path.join(self.bin, "swax"), *words], capture_output=True,
                              text=True, check=False)
        check(done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    def copy(self, name):
        """A copy of the run that `stopped` left half-way."""
        shutil.copytree(self.origin, self.path(name))
        return self.path(name)


def body(bin_folder, scratch):
    case = Case(bin_folder, scratch)
    for test in (finished, stopped, other_ranks, other_spec, second_run, cancelled, two_signals,
                 hang, damaged_records, other_bits, wrong_spec, nameless_host):
        said = e2e.in_time(test.__name__, lambda number, t=test: case.trial(t, number))
        say(f"  {test.__name__}: {said or 'passed'}")


if __name__ == "__main__":
    e2e.main(body)
