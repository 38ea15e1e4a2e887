"""Goal: a disk that fills up under `swax run` loses nothing and ends nothing: once there is room again
the run goes on by itself, to the bits of an undisturbed one. Method: the state folder is a small disk
of its own (tmpfs in a mount namespace, which needs the right to mount). It is filled while the ranks
train: to the last byte, so that nothing can be written at all, and so far that a checkpoint finds no
room but records do. Either lasts until after the last step, whose checkpoint waits for room."""
import os
import shutil
import subprocess
import sys
import time

import swax_e2e as e2e
from swax_e2e import check, say

INSIDE = "SWAX_TEST_IN_MOUNT_NAMESPACE"
STEPS = 150
FULL_SECONDS = 90 if e2e.FULL else 12  # from the filling on
NEARLY = 3 << 19  # bytes left: less than the checkpoint of a rank needs


def small_disk(folder):
    os.makedirs(folder)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", folder], check=True)


def fill(folder, left):
    """Leaves `left` bytes of what is free now."""
    with open(os.path.join(folder, "filler"), "ab", buffering=0) as file:
        disk = os.statvfs(folder)
        more = disk.f_bavail * disk.f_frsize - left
        try:
            if more > 0:
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, more)
            while left == 0:
                file.write(b"f" * 4096)
        except OSError:
            pass


def keep_full(folder, left, seconds):
    """What the run itself gives back, as when an old checkpoint is retired, is taken again: else the
    next one would find its place."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        fill(folder, left)
        time.sleep(0.005)


def fills_up(bin_folder, state, left, digest):
    """Raises Through when the run had nearly ended before its disk was full, or found room because this
    script came too late to take it again."""
    small_disk(state)
    run = e2e.half_way(bin_folder, state, step=10, checkpoints=1)
    try:
        before = e2e.committed(state)
        fill(state, left)
        if e2e.newest_step(state) > STEPS - 30:
            raise e2e.Through
        keep_full(state, left, FULL_SECONDS)
        if run.process.poll() is not None and run.finish() == 0:
            check(run.result["digest"] == digest, f"{run.result['digest']}, must be {digest}")
            raise e2e.Through
        check(run.process.poll() is None, f"the run ended on a full disk\n{run.errors()}")
        kept = e2e.committed(state)
        check(kept and kept[-1] >= before[-1], f"checkpoints {before}, then {kept}")
        seen = subprocess.run([os.path.join(bin_folder, "swax"), "status", "--state", state],
                              capture_output=True, text=True, check=False, timeout=60)
        check(seen.returncode == 0, f"status: {seen.returncode} {seen.stderr}")
        os.remove(os.path.join(state, "filler"))
        code = run.finish()
    finally:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()
    check(code == 0, f"exit code {code}, must be 0\n{run.errors()}")
    check(run.result["digest"] == digest, f"{run.result['digest']}, must be {digest}")
    check(e2e.committed(state)[-1] == STEPS, f"checkpoints {e2e.committed(state)}")
    if left:
        check(run.result["attempt"] == 1, f"a restart makes no room: {run.result}")
        check("checkpoint failed" in run.errors(), f"not said\n{run.errors()}")
    say(f"  {left} bytes left for {FULL_SECONDS} s: {run.result['attempt']} attempts, same digest")


def body(bin_folder, scratch):
    e2e.STEPS = STEPS
    e2e.SETTINGS[0] = f"training.steps={STEPS}"
    digest = e2e.run_to_end(bin_folder, os.path.join(scratch, "undisturbed"))["digest"]
    for name, left in (("last-byte", 0), ("nearly", NEARLY)):
        def trial(number, name=name, left=left):
            state = os.path.join(scratch, f"{name}{number}")
            try:
                fills_up(bin_folder, state, left, digest)
            finally:
                subprocess.run(["umount", "-l", state], check=False)
        e2e.in_time(name, trial)


if __name__ == "__main__":
    if os.environ.get(INSIDE) != "1":
        if shutil.which("unshare") is None or subprocess.run(
                ["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
            say("skipped: no right to make a mount namespace")
            sys.exit(e2e.SKIPPED)
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "-m", sys.executable, "-B", *sys.argv])
    e2e.main(body)
