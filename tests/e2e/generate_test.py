"""Goal: `swax generate` needs the same memory for 100 and for 10,000 tokens, and a longer text begins
with the shorter one; a coordinator's state and store give the same text as a run's folder; in one
file with what it says beside the text, the text ends first. Method:
three steps of training, then the real program; the kernel's peak of the resident memory of each (it
is the whole process: a token that kept anything would show)."""
import os
import resource
import shutil

import swax_e2e as e2e
from swax_e2e import check, say

DIFFERENCE_KIB = 2 * 1024


def generate(bin_folder, state, tokens, *more, outputs=(1,)):
    """What it writes to these descriptors and the peak of the resident memory in KiB."""
    read, write = os.pipe()
    words = [os.path.join(bin_folder, "swax"), "generate", "--state", state, "--prompt", "In the",
             "--tokens", str(tokens), "--seed", "3", *more]
    pid = os.posix_spawn(words[0], words, os.environ,
                         file_actions=[(os.POSIX_SPAWN_DUP2, write, fd) for fd in outputs])
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    check(code == 0, f"generate of {tokens} tokens: exit code {code}")
    check(len(text) >= tokens, f"generate of {tokens} tokens: {len(text)} bytes")
    return text, usage.ru_maxrss


def body(bin_folder, folder):
    state = os.path.join(folder, "run")
    run = e2e.Run(bin_folder, state, ranks=1,
                  extra=["training.steps=3", "lr_scheduler.warmup_steps=1"])
    code = run.finish()
    check(code == 0, f"swax run: exit code {code}\n{run.errors()}")
    short, few = generate(bin_folder, state, 100)
    long, many = generate(bin_folder, state, 10000)
    say(f"100 tokens: {few} KiB, 10,000 tokens: {many} KiB")
    # A peak begins with the memory of whoever started the program.
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check(min(few, many) > own, f"{few} and {many} KiB cannot be told from this script's {own} KiB")
    check(abs(many - few) <= DIFFERENCE_KIB, f"{few} and {many} KiB")
    check(long.startswith(short.rstrip(b"\n")), "the longer text begins in another way")
    both, _ = generate(bin_folder, state, 100, outputs=(1, 2))
    check(both == short + b"checkpoint of step 3\n", f"text and message in one file: {both[-80:]}")
    service = os.path.join(folder, "service")  # the same records, where a coordinator has them
    shutil.copytree(os.path.join(state, "coordinator", "kv"), os.path.join(service, "kv"))
    same, _ = generate(bin_folder, service, 100, "--store", os.path.join(state, "store"))
    check(same == short, "a service's job gives another text")


if __name__ == "__main__":
    e2e.main(body)
