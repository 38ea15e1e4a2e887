"""Goal: the README's page about the service is true for who types it. Method: its commands, as they are
printed, in an interactive bash in a fresh folder; `watch` and `events -f` are left by Ctrl-C, a worker
and the coordinator are killed where the text says so. Only the port is another one, and the run is
shorter; SWAX_TEST_FULL=1 leaves its length as printed and compares its digest with `swax run`."""
import json
import os
import pty
import re
import select
import socket
import subprocess
import time

import swax_e2e as e2e
from swax_e2e import check, say

SHORTER = [("training.steps=100", "training.steps=60"),
           ("checkpoint.interval=20", "checkpoint.interval=10")]


def page():
    """The lines of each block of commands."""
    with open(os.path.join(e2e.SOURCE, "README.md"), encoding="utf-8") as file:
        section = file.read().split("\n## A service\n")[1].split("\n## ")[0]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    check(section.count(":7000") == 1, "the page names its port once")
    section = section.replace(":7000", f":{port}")
    for printed, shorter in [] if e2e.FULL else SHORTER:
        check(printed in section, f"{printed} is not on the page")
        section = section.replace(printed, shorter)
    blocks = re.findall(r"\n```\n(.*?)\n```", section, re.S)
    return [[line for line in block.splitlines() if line] for block in blocks]


class Shell:
    """An interactive bash on a terminal of its own."""

    def __init__(self, folder):
        self.text = ""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SWAX_")}
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"],
                       {**environment, "PS1": "", "TERM": "dumb"})
        self.run("stty -echo")

    def read(self, seconds):
        if select.select([self.terminal], [], [], seconds)[0]:
            self.text += os.read(self.terminal, 65536).decode(errors="replace").replace("\r\n", "\n")

    def wait_for(self, pattern, seconds, begin=0):
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text[begin:]):
            check(time.monotonic() < end, f"not within {seconds} s: {pattern}\n{self.text}")
            self.read(0.2)
        return re.search(pattern, self.text[begin:])

    def type(self, line):
        os.write(self.terminal, line.encode() + b"\n")

    def run(self, line, seconds=60, leave_at=None):
        """What the line prints, and its exit code. leave_at: Ctrl-C when that has been printed."""
        begin = len(self.text)
        self.type(line)
        if leave_at is not None:
            self.wait_for(leave_at, seconds, begin)
            os.write(self.terminal, b"\x03")
            # The terminal forgets what is typed before the signal is through.
            e2e.wait_until(lambda: os.tcgetpgrp(self.terminal) == self.process, 60,
                           f"the shell is back from {line}")
            time.sleep(0.5)
        self.type('echo "[end" "$?]"')
        found = self.wait_for(r"\[end (\d+)\]", seconds, begin)
        return self.text[begin:begin + found.start()], int(found[1])

    def ok(self, line, seconds=60):
        text, code = self.run(line, seconds)
        check(code == 0, f"{line}: exit code {code}\n{text}")
        return text

    def close(self):
        self.run("kill -9 $(jobs -p) 2> /dev/null; wait")
        self.type("exit")
        os.close(self.terminal)
        os.waitpid(self.process, 0)


def attempts(shell):
    events = json.loads(shell.ok("swax events quickstart -o json | tr -d '\\n'; echo"))
    return [e["attempt"] for e in events if e["kind"] == "attempt_running"]


def type_page(shell, folder):
    first, second = page()
    commands = dict(zip(("mkdir", "export", "coordinator", "n1", "n2", "submit", "watch", "status"),
                        first, strict=True))
    check(re.match(r"kill -9 %3 ", second[0]), second[0])
    for name in ("mkdir", "export", "coordinator", "n1", "n2"):
        shell.ok(commands[name])
    shell.ok(commands["submit"])
    text, code = shell.run(commands["watch"], 180, leave_at=r"\rstep \d+/\d+ .*ckpt \d+")
    check(code == 130, f"{commands['watch']}: exit code {code}\n{text}")
    text = shell.ok(commands["status"])
    check("RUNNING" in text and "n1: rank 0; n2: rank 1" in text, text)
    shell.ok(second[0])
    text, code = shell.run(second[1], 60, leave_at=r"attempt_ended")
    check(code == 130, f"{second[1]}: exit code {code}\n{text}")
    shell.ok(second[2])
    end = time.monotonic() + 120
    while attempts(shell)[-1] < 2:
        check(time.monotonic() < end, "both ranks go on after the start of the worker")
        time.sleep(0.5)
    records = os.path.join(folder, "runs/service/store/jobs/quickstart")
    check(e2e.start_steps(records)[2] > 0, "they go on from the last checkpoint")
    shell.ok("kill -9 %1")
    step = e2e.newest_step(records)
    e2e.wait_until(lambda: e2e.newest_step(records) > step, 60, "the ranks train on")
    shell.ok(commands["coordinator"])
    text = shell.ok(second[3], 300)
    check("SUCCEEDED" in text and attempts(shell) == [1, 2], text)
    return re.search(r"digest +([0-9a-f]{32})", text)[1], commands["submit"]


def body(bin_folder, scratch):
    folder = os.path.join(scratch, "swax")
    os.makedirs(os.path.join(folder, "build", "release"))
    os.symlink(os.path.abspath(bin_folder), os.path.join(folder, "build", "release", "bin"))
    os.symlink(os.path.join(e2e.SOURCE, "jobs"), os.path.join(folder, "jobs"))
    shell = Shell(folder)
    try:
        digest, submit = type_page(shell, folder)
    finally:
        shell.close()
    say(f"  the page about the service, as printed: digest {digest}")
    if e2e.FULL:
        words = submit.replace("swax submit", os.path.join(bin_folder, "swax") + " run").split()
        done = subprocess.run([*words, "--state", os.path.join(scratch, "run")], cwd=folder,
                              capture_output=True, text=True, check=False)
        check(done.returncode == 0 and digest in done.stdout, f"{done.stdout}{done.stderr}")
        say("  `swax run` with the same words: the same digest")


if __name__ == "__main__":
    e2e.main(body)
