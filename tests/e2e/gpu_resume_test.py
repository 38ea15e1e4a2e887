"""Goal: a run on a GPU keeps the promise through the real programs: `swax run`, mpirun, a rank on the
device, its checkpoints. Method: nano on backend cuda, once undisturbed; once with a rank killed in
mid-training (the run starts it again by itself); once with `swax run` itself killed and typed again.
Equal digests, equal bits of every step that was made twice, one choice of product forms for all
attempts. Skipped with the reason where a rank finds no device."""
import os
import random
import subprocess
import sys
import time

import swax_e2e as e2e
from swax_e2e import check, say

STEPS = 300
# The job keeps the name that the helpers look for.
e2e.SPEC = os.path.join(e2e.SOURCE, "jobs", "nano.toml")
e2e.STEPS = STEPS
e2e.SETTINGS = ["job.name=micro", "training.backend=cuda", f"training.steps={STEPS}",
                "parallelism.allowed_ranks=[1]", "checkpoint.interval=20", "validation.freq=100",
                "validation.sequences=8", "debug.hash_every=50"]


def skip_without_device(bin_folder):
    said = subprocess.run([os.path.join(bin_folder, "swax-train"), "doctor"], capture_output=True,
                          text=True, timeout=120, check=False)
    facts = [line.split("\t") for line in said.stdout.splitlines()]
    if any(f[0] == "GPU 0 self test" and f[1] == "ok" for f in facts if len(f) == 3):
        return
    why = [": ".join(f[::2]) for f in facts if len(f) == 3 and f[0].startswith(("GPU", "CUDA"))]
    say("skipped: " + ("; ".join(why) if why else "this build has no CUDA"))
    sys.exit(e2e.SKIPPED)


def choices(state):
    return e2e.read(os.path.join(e2e.job_folder(state), "kernel-choices"))


def kill_at(run, step, target):
    """Kills the rank or `swax run` once this step is reported."""
    e2e.wait_until(lambda: run.process.poll() is not None or e2e.newest_step(run.state) >= step,
                   120, f"step {step} of {run.state}")
    check(run.process.poll() is None, f"it ended before step {step}\n{run.errors()}")
    e2e.kill(run.process.pid if target == "run" else e2e.rank_pids(run.state)[0])


def disturbed(bin_folder, state, step, target, digest):
    before = e2e.shared_leftovers()
    run = e2e.Run(bin_folder, state, ranks=1)
    kill_at(run, step, target)
    chosen = choices(state)
    check(chosen, "no choices were kept before the first step")
    code = run.finish()
    if target == "run":
        check(code < 0, f"exit code {code} of a killed run")
        run = e2e.Run(bin_folder, state, ranks=1)
        code = run.finish()
    check(code == 0, f"exit code {code}\n{run.errors()}")
    check(run.result["digest"] == digest, f"digest {run.result['digest']}, must be {digest}")
    check(run.result["step"] == STEPS and run.result["attempt"] == 2, str(run.result))
    check(choices(state) == chosen, "a later attempt chose other forms")
    again = e2e.check_equal_bits(state)
    e2e.check_nothing_left(state, before)
    say(f"  kill -9 of {target} at step {step}: {again} steps made again")
    return again


def body(bin_folder, scratch):
    skip_without_device(bin_folder)
    seed = int(os.environ.get("SWAX_TEST_SEED", time.time_ns() % 1_000_000))
    say(f"seed {seed}: SWAX_TEST_SEED={seed} repeats it")
    rng = random.Random(seed)
    undisturbed = os.path.join(scratch, "undisturbed")
    result = e2e.run_to_end(bin_folder, undisturbed, ranks=1)
    say(f"undisturbed: {result['digest']}")
    again = 0
    for target in ("rank", "run"):
        again += disturbed(bin_folder, os.path.join(scratch, target), rng.randint(30, 200), target,
                           result["digest"])
    check(again > 0, "no step was made again: nothing was compared")


if __name__ == "__main__":
    e2e.main(body)
