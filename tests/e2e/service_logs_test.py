"""Goal: what a rank prints and who reads it hold nothing up, and fill no disk. Method: a job runs
undisturbed, and once more while rank 0 prints much without a newline (200 MB and more with
SWAX_TEST_FULL=1, 20 MB otherwise) and a `swax logs -f` has stopped reading. Step times, from the step
records, are compared by their medians. Then logs may take 1 MiB only. What was printed is what is kept
and what is told as dropped, to the byte. A `swax watch` is left by Ctrl-C."""
import array
import fcntl
import os
import pty
import re
import select
import signal
import statistics
import subprocess
import termios
import time

import swax_e2e as e2e
import swax_service as service
from swax_e2e import check, say

STEPS = 400 if e2e.FULL else 50
PRINTED = 200_000_000 if e2e.FULL else 20_000_000
LONG = [f"training.steps={STEPS}", "checkpoint.interval=25", "validation.freq=0",
        f"training.seq_len={256 if e2e.FULL else 128}"]
RATIO_MAX = 1.10
TRIES = 3
PIPE_BYTES = 65536
# Of rank 0's own lines, which stand between what is printed.
OWN_LINES_BYTES_MAX = 400 * (STEPS + 100)


def step_times(s):
    """Seconds of each step of the first attempt but the first ones."""
    steps = [e2e.fields(r[2]) for r in e2e.reports(s.job_folder, 1) if 2 in r]
    check(len(steps) == STEPS, f"{len(steps)} steps are recorded")
    return [step[8] * 1e-9 for step in steps[5:]]


def quiet(bin_folder, folder):
    s = service.Service(bin_folder, folder, workers=1)
    try:
        s.submit(extra=LONG)
        result = s.wait(600)
    finally:
        s.stop()
    check(result["state"] == "SUCCEEDED" and result["restarts"] == 0, str(result))
    return result["digest"], step_times(s)


class Printer:
    """Ranks that print much, and how much it was."""

    def __init__(self, bin_folder, folder):
        self.count_path = folder + ".count"
        self.env = {"LD_PRELOAD": os.path.join(bin_folder, "print_much.so"),
                    "SWAX_TEST_PRINT_BYTES": str(PRINTED // STEPS),
                    "SWAX_TEST_PRINT_COUNT": self.count_path}

    def printed(self):
        count = int(e2e.read(self.count_path))
        check(count >= PRINTED - STEPS, f"{count} bytes were printed, {PRINTED} are wanted at least")
        return count


def waits_in(pipe):
    """Bytes that nobody has read yet."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def loud(bin_folder, folder):
    printer = Printer(bin_folder, folder)
    s = service.Service(bin_folder, folder, workers=1, env=printer.env)
    reader = None
    try:
        s.submit(extra=LONG)
        s.wait_until(lambda: s.newest_step() >= 1, 120, "step 1")
        reader = subprocess.Popen([s.swax, "logs", s.job, "-f", "--coordinator", s.address],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, env=service.environment())
        result = s.wait(600)
        e2e.wait_until(lambda: waits_in(reader.stdout), 60, "the reader has begun to read")
        check(reader.poll() is None, "the reader that reads nothing has ended")
        told = s.events("log_dropped")
    finally:
        s.stop()
        if reader is not None:
            reader.kill()
            reader.wait()
            left = reader.stdout.read()
    check(0 < len(left) <= PIPE_BYTES, f"the reader was to stand still: {len(left)} bytes in its pipe")
    check(result["state"] == "SUCCEEDED" and result["restarts"] == 0, str(result))
    log = e2e.read(os.path.join(s.job_folder, "logs", "a1", "rank-0.log"))
    printed = printer.printed()
    check_counted(log, printed, told)
    for line in (b"training begins", b"rank ends"):
        check(line in log, f"{line} is not in the log")
    return result["digest"], step_times(s), printed


def check_counted(log, printed, events):
    """Bytes keep their place in a log whatever is dropped before them: its size is all that was ever
    written to it, its hole what is missing."""
    told = [0] + [int(re.search(r"\((\d+) bytes\)", e["text"])[1]) for e in events]
    missing = log.count(b"\0")
    check(told == sorted(told) and told[-1] == missing, f"{missing} bytes are missing, told: {told}")
    own = len(log) - printed
    check(0 <= own <= OWN_LINES_BYTES_MAX,
          f"{printed} bytes printed, {len(log) - missing} kept, {missing} told as dropped")


def bounded(bin_folder, folder):
    """The log keeps its beginning and its end, what is missing is told, and the disk is not full."""
    limit = 1 << 20
    printer = Printer(bin_folder, folder)
    s = service.Service(bin_folder, folder, workers=1, env={
        **printer.env, "SWAX_TEST_AGENT_TIMES": f"log_bytes_max={limit}"})
    try:
        s.submit(extra=LONG)
        result = s.wait(600)
        text = s.ask("logs", s.job).stdout
        events = s.events("log_dropped")
    finally:
        s.stop()
    check(result["state"] == "SUCCEEDED" and result["restarts"] == 0, str(result))
    path = os.path.join(s.job_folder, "logs", "a1", "rank-0.log")
    printed = printer.printed()
    check_counted(e2e.read(path), printed, events)
    used = os.stat(path).st_blocks * 512
    check(used <= limit, f"the log takes {used} bytes, at most {limit}")
    check(events and all("rank 0 " in e["text"] for e in events), f"told: {events}")
    for words in ("training begins", "of this log are missing here", "rank ends"):
        check(words in text, f"{words} is not in what `swax logs` shows, {len(text)} characters")
    check(len(text) < 2 * limit and "\0" not in text, f"{len(text)} characters are shown")
    say(f"  {printed} bytes printed where {limit} bytes may stay: {used} bytes on the disk, "
        f"{len(text)} characters shown; {events[-1]['text']}")


def watched(bin_folder, folder):
    """A job that trains until it is cancelled: however late somebody watches, there is a line to draw."""
    s = service.Service(bin_folder, folder, workers=1)
    try:
        s.submit(extra=["training.steps=1000000", "validation.freq=0"])
        leave_watch(s)
        s.cancel()
    finally:
        s.stop()


def leave_watch(s):
    """Ctrl-C ends `swax watch` with the signal and takes its drawn line away."""
    ours, theirs = pty.openpty()
    watch = subprocess.Popen([s.swax, "watch", s.job, "--coordinator", s.address],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs,
                             env=service.environment())
    os.close(theirs)
    try:
        check_left(watch, ours)
    finally:
        os.close(ours)
        watch.kill()
        watch.wait()


def check_left(watch, ours):
    text, end, interrupted = b"", time.monotonic() + 120, False
    while time.monotonic() < end:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                got = os.read(ours, 65536)
            except OSError:  # nobody has the other end open any more
                break
            text += got
        if b"\rstep " in text and not interrupted:
            watch.send_signal(signal.SIGINT)
            interrupted = True
    code = watch.wait(timeout=60)
    check(interrupted, f"no line was drawn: {text[-400:]}")
    check(code == -signal.SIGINT, f"swax watch ended with {code}")
    check(text.endswith(b"\r\x1b[K"), f"the drawn line is left: {text[-200:]}")


def body(bin_folder, scratch):
    watched(bin_folder, os.path.join(scratch, "w"))
    ratios = []
    while len(ratios) < (TRIES if e2e.FULL else 1):
        number = len(ratios)
        digest, times = quiet(bin_folder, os.path.join(scratch, f"q{number}"))
        other, disturbed, printed = loud(bin_folder, os.path.join(scratch, f"l{number}"))
        check(other == digest, f"digest {other}, must be {digest}")
        before, now = statistics.median(times), statistics.median(disturbed)
        ratios.append(now / before)
        say(f"  {printed} bytes printed in {STEPS} steps, a reader that stands still: median "
            f"step {before * 1e3:.1f} ms, then {now * 1e3:.1f} ms, ratio {ratios[-1]:.3f}")
        if ratios[-1] <= RATIO_MAX:
            break
    bounded(bin_folder, os.path.join(scratch, "b"))
    # Only the long form has steps enough and a machine of its own.
    check(not e2e.FULL or min(ratios) <= RATIO_MAX, f"ratios {ratios}, at most {RATIO_MAX}")


if __name__ == "__main__":
    e2e.main(body)
