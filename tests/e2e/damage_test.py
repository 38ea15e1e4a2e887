"""Goal: damage on disk is found, said and survived: a run whose newest checkpoint is damaged goes on
from the one before and ends with the same bits; damaged training data ends it, naming shard and
block. Method: one run is stopped half-way; copies of its state are damaged and typed again."""
import glob
import os
import shutil
import signal

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
    run = e2e.Run(bin_folder, state)
    e2e.wait_until(lambda: e2e.newest_step(state) >= e2e.STEPS // 2 or run.process.poll() is not None,
                   300, "half of the steps")
    run.process.send_signal(signal.SIGTERM)
    code = run.finish()
    check(code == 143, f"exit code {code}, must be 143\n{run.errors()}")
    check(len(e2e.committed(state)) >= 2, f"checkpoints: {e2e.committed(state)}")


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


def body(bin_folder, scratch):
    digest = e2e.run_to_end(bin_folder, os.path.join(scratch, "undisturbed"))["digest"]
    origin = os.path.join(scratch, "origin")
    stopped_half_way(bin_folder, origin)
    for i, (name, pattern, damage) in enumerate(CASES):
        state = os.path.join(scratch, f"case{i}")
        shutil.copytree(origin, state)
        got = damaged_checkpoint(bin_folder, state, name, pattern, damage)
        check(got == digest, f"{name}: digest {got}, must be {digest}")
    state = os.path.join(scratch, "shard")
    shutil.copytree(origin, state)
    damaged_shard(bin_folder, state)


if __name__ == "__main__":
    e2e.main(body)
