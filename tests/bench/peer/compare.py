#!/usr/bin/env python3
"""Runs swax's GPU benchmarks and the PyTorch peer one after the other on one card; prints the ratios.

Usage: compare.py --bin FOLDER [--jobs FOLDER] [--out FOLDER] [--parts 1.4b,7b,kernels] [--packages FOLDER]
  --bin       a build's bin folder: cuda_step_bench, cuda_attention_bench, cuda_kernels_bench
  --jobs      where swax-1.4b.toml and swax-7b.toml lie (default: jobs of this tree)
  --packages  a folder with the unpacked Python package mlstm-kernels, where it is not installed
Needs torch >= 2.11 with a GPU, and mlstm-kernels (pip install --no-deps mlstm-kernels). First each
part of the peer runs once, side by side, so that its compilers' caches are full; then everything runs
alone. Takes about 7 minutes. Writes OUT/results.json and one log per program. Exit 0: all programs
ran; 1: one of them failed. Ratios above 1: swax is faster.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
START = time.time()


def say(text):
    print(f"[{time.time() - START:5.0f} s] {text}", flush=True)


class Runner:
    def __init__(self, out, packages):
        self.out, self.failed = out, []
        os.makedirs(out, exist_ok=True)
        self.env = dict(os.environ, OPENBLAS_NUM_THREADS="1", TORCHINDUCTOR_CACHE_DIR=os.path.join(out, "inductor"),
                        TRITON_CACHE_DIR=os.path.join(out, "triton"))
        if packages:
            self.env["PYTHONPATH"] = os.path.abspath(packages) + os.pathsep + self.env.get("PYTHONPATH", "")

    def start(self, name, command):
        log = open(os.path.join(self.out, name + ".log"), "w")
        errors = open(os.path.join(self.out, name + ".err"), "w")
        return subprocess.Popen(command, cwd=HERE, env=self.env, stdout=log, stderr=errors)

    def end(self, name, process, limit):
        try:
            status = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = f"stopped after {limit} s"
        if status != 0:
            self.failed.append(f"{name}: {status}")
            say(f"{name} FAILED ({status}), see {name}.err")
        with open(os.path.join(self.out, name + ".log")) as file:
            return file.read()

    def run(self, name, command, limit):
        say(name)
        return self.end(name, self.start(name, command), limit)


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def peer_steps(text):
    """window -> the fastest of the attention operators."""
    best = {}
    for r in json_lines(text):
        if r["kind"] == "step" and r["tokens_s"] > best.get(r["window"], (0,))[0]:
            best[r["window"]] = (r["tokens_s"], r["attention"])
        elif r["kind"] == "error":
            say(f"peer {r['model']} w{r['window']} {r['attention']}: {r['error']}")
    return best


def our_steps(text):
    found = re.findall(r"^window (\d+): .* ([\d.]+) tokens/s", text, re.M)
    return {int(window): float(rate) for window, rate in found}


def our_kernels(attention, rows):
    ours = {}
    for line in attention.splitlines():
        m = re.match(r"(swa|mlstm) (\S+) x (\S+?)(?:, w (\d+))? +auto .* sum +([\d.]+) ms", line)
        if m and m[1] == "swa" and m[2] == "16/16":
            ours[f"swa w{m[4]}"] = float(m[5])
        elif m and m[1] == "mlstm" and m[2] == "4":
            ours["mlstm 4x(256/512)"] = float(m[5])
    m = re.search(r"^head \+ loss by 8192, rested +([\d.]+) us", rows, re.M)  # the trainer's chunk
    if m:
        ours["head + loss"] = float(m[1]) / 1e3
    return ours


def peer_kernels(text):
    """what -> (ms of the fastest form, form)."""
    best = {}
    for r in json_lines(text):
        if r["kind"] == "kernel" and r["ms"] < best.get(r["what"], (1e9,))[0]:
            best[r["what"]] = (r["ms"], r["form"])
        elif r["kind"] == "error":
            say(f"peer {r['what']}: {r['error']}")
    return best


def step_part(runner, model, programs, jobs):
    peer = peer_steps(runner.run(f"peer-{model}", [sys.executable, "step.py", "--model", model], 200))
    text = runner.run(f"swax-{model}",
                      [os.path.join(programs, "cuda_step_bench"), os.path.join(jobs, f"swax-{model}.toml"),
                       "12" if model == "7b" else "28", "--fit"], 200)
    ours = our_steps(text)
    for line in re.findall(r"^memory: planned .* taken.*$", text, re.M):
        say(f"swax {model} {line}")
    return [(f"{model} step, w {w}, tokens/s", ours[w], *peer[w], ours[w] / peer[w][0])
            for w in sorted(set(ours) & set(peer), reverse=True)]


def kernel_part(runner, programs):
    peer = peer_kernels(runner.run("peer-kernels", [sys.executable, "kernels.py"], 120))
    ours = our_kernels(runner.run("swax-attention", [os.path.join(programs, "cuda_attention_bench")], 60),
                       runner.run("swax-rows", [os.path.join(programs, "cuda_kernels_bench"), "head + loss"], 60))
    return [(f"{what}, ms", ours[what], *peer[what], peer[what][0] / ours[what]) for what in ours if what in peer]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bin", required=True)
    ap.add_argument("--jobs", default=os.path.join(HERE, "..", "..", "..", "jobs"))
    ap.add_argument("--out", default="peer-results")
    ap.add_argument("--parts", default="1.4b,7b,kernels")
    ap.add_argument("--packages", default="")
    a = ap.parse_args()
    parts = a.parts.split(",")
    if set(parts) - {"1.4b", "7b", "kernels"}:
        ap.error(f"--parts {a.parts}: may have 1.4b, 7b, kernels")
    programs, jobs = os.path.abspath(a.bin), os.path.abspath(a.jobs)
    runner = Runner(os.path.abspath(a.out), a.packages)
    say("filling the compilers' caches")
    warm = []
    for part in parts:
        words = ["kernels.py"] if part == "kernels" else ["step.py", "--model", part]
        warm.append((f"warm-{part}", runner.start(f"warm-{part}", [sys.executable, *words, "--warm-caches"])))
    for name, process in warm:
        runner.end(name, process, 150)
    rows = []
    for part in parts:
        rows += kernel_part(runner, programs) if part == "kernels" else step_part(runner, part, programs, jobs)
    say("done")
    print(f"\n{'':34} {'swax':>10} {'PyTorch':>10}  {'form':20} {'ratio':>6}")
    for what, ours, theirs, form, ratio in rows:
        print(f"{what:34} {ours:10.3f} {theirs:10.3f}  {form:20} {ratio:6.3f}")
    with open(os.path.join(runner.out, "results.json"), "w") as file:
        json.dump([dict(zip(("what", "swax", "peer", "form", "ratio"), row)) for row in rows], file, indent=1)
    for failure in runner.failed:
        print("failed:", failure)
    return 1 if runner.failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
