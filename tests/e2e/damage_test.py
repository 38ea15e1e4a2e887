"""Goal: damage on disk is found, said and survived: a run whose newest checkpoint is damaged goes on
from the one before and ends with the same bits; damaged training data ends it, naming shard and
block. Method: one run is stopped half-way; copies of its state are damaged and typed again. `generate`
tells a damaged checkpoint from one that is not there."""
import glob
import os
import shutil
import signal
import subprocess

import swax_e2e as e2e
from swax_e2e import check, say


def flip_bit(path, at=None):
    with open(path, "r+b") as file:
        file.seek(0, os.SEEK_END)
        position = file.tell() // 2 if at is None else at
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x08]))


def cut(path, part=0.5):
    os.truncate(path, int(os.path.getsize(path) * part))


def one(pattern, folder):
    found = sorted(glob.glob(os.path.join(folder, pattern), recursive=True))
    check(found, f"no {pattern} in {folder}")
    return found[-1]


CASES = [
    ("a flipped bit in a table", "rank-*.db/*.sst", flip_bit),
    ("a cut table", "rank-*.db/*.sst", cut),
    ("a missing table", "rank-*.db/*.sst", os.remove),
    ("a cut MANIFEST", "rank-*.db/MANIFEST-*", cut),
    ("a missing rank", "rank-*.db", shutil.rmtree),
    ("a flipped bit in COMMITTED", "COMMITTED", flip_bit),
]


def stopped_half_way(bin_folder, state):
    run = e2e.half_way(bin_folder, state)
    run.process.send_signal(signal.SIGTERM)
    code = run.finish()
    if code == 0:
        raise e2e.Through
    check(code == 143, f"exit code {code}, must be 143\n{run.errors()}")
    check(len(e2e.committed(state)) >= 2, f"checkpoints: {e2e.committed(state)}")
    return state


def damaged_checkpoint(bin_folder, state, name, pattern, damage):
    newest = e2e.newest_checkpoint(state)
    steps = e2e.committed(state)
    damage(one(pattern, newest))
    run = e2e.Run(bin_folder, state)
    code = run.finish()
    check(code == 0, f"{name}: exit code {code}\n{run.errors()}")
    start = max(e2e.start_steps(state).items())[1]
    check(start == steps[-2], f"{name}: began at step {start}, must be {steps[-2]}\n{run.errors()}")
    e2e.check_equal_bits(state)
    said = [line for line in run.errors().splitlines() if line.startswith("checkpoint bad")]
    check(said and os.path.basename(newest) in said[0], f"{name}: not said\n{run.errors()}")
    say(f"  {name}: {said[0]}")
    return run.result["digest"]


def damaged_shard(bin_folder, state):
    path = one("store/data/*/train-*.swt", state)
    flip_bit(path)
    run = e2e.Run(bin_folder, state)
    code = run.finish()
    check(code == 10, f"damaged shard: exit code {code}, must be 10\n{run.errors()}")
    reason = run.result["reason"]
    check(run.result["state"] == "FAILED" and run.result["digest"] is None, str(run.result))
    check(os.path.basename(path) in reason and "block" in reason, f"reason: {reason}")
    attempts = run.result["attempt"]
    say(f"  a flipped bit in a shard: {reason}")
    again = e2e.Run(bin_folder, state)
    check(again.finish() == 10 and again.result["reason"] == reason, str(again.result))
    check(again.result["attempt"] == attempts, "a failed run that is typed again starts nothing")


def generate_codes(bin_folder, state):
    def expect(code, what, *words):
        done = subprocess.run([os.path.join(bin_folder, "swax"), "generate", "--state", state,
                               "--tokens", "1", *words], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=100, check=False)
        check(done.returncode == code and done.stderr, f"generate, {what}: exit code "
              f"{done.returncode}, must be {code}\n{done.stderr}")
        say(f"  generate, {what}: {done.stderr.splitlines()[-1]}")
    steps = e2e.committed(state)
    expect(2, "a value out of range", "--top-k", "-1")
    expect(3, "a step without checkpoint", "--step", str(steps[-1] + 1))
    expect(0, "the checkpoint before", "--step", str(steps[-2]))
    newest = e2e.newest_checkpoint(state)
    shutil.rmtree(one("rank-*.db", newest))
    expect(4, "a missing rank", "--step", str(steps[-1]))
    expect(0, "the newest good one")
    cut(one("COMMITTED", newest))
    expect(4, "a cut COMMITTED", "--step", str(steps[-1]))
    for step in steps[:-1]:
        shutil.rmtree(one(f"step-{step:09}.a*/rank-00000.db", e2e.checkpoint_folder(state)))
    expect(4, "none is whole")
    shutil.rmtree(e2e.checkpoint_folder(state))
    expect(3, "there is none")


def body(bin_folder, scratch):
    digest = e2e.run_to_end(bin_folder, os.path.join(scratch, "undisturbed"))["digest"]
    origin = e2e.in_time("a run that is stopped half-way", lambda number: stopped_half_way(
        bin_folder, os.path.join(scratch, f"origin{number}")))
    for i, (name, pattern, damage) in enumerate(CASES):
        state = os.path.join(scratch, f"case{i}")
        shutil.copytree(origin, state)
        got = damaged_checkpoint(bin_folder, state, name, pattern, damage)
        check(got == digest, f"{name}: digest {got}, must be {digest}")
    state = os.path.join(scratch, "shard")
    shutil.copytree(origin, state)
    damaged_shard(bin_folder, state)
    state = os.path.join(scratch, "generate")
    shutil.copytree(origin, state)
    generate_codes(bin_folder, state)


if __name__ == "__main__":
    e2e.main(body)
