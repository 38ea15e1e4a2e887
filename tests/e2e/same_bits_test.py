#!/usr/bin/env python3
"""Same bits from the real programs: `swax run` with MPI ranks, compared by digest and by step.

usage: same_bits_test.py --bin FOLDER --source FOLDER [--store]

1. quickstart, 40 steps on 1, 2 and 4 ranks: equal digests, and `swax diff` finds nothing in any step.
2. OPENBLAS_CORETYPE=Haswell with 1 and 2 compute threads: equal to each other.
3. One bit of one gradient is flipped in step 17: `swax diff` names step, tensor and element.
4. Golden digests of tests/data/golden/digests.tsv. Plain-loop GEMM depends on IEEE arithmetic alone, so
   one value holds for every machine and build ("any"); BLAS values are stored per arithmetic
   fingerprint, and an unknown fingerprint prints SKIPPED with the line to store.
--store writes the values of this machine into that file instead of comparing them.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

RUN_SECONDS = 600
PLAIN = {"SWAX_PLAIN_GEMM": "1"}
FINGERPRINT = re.compile(rb"cpu glibc=[ -~]* threads-independent")


class Failure(Exception):
    pass


class Runner:
    def __init__(self, folder, source, work):
        self.swax = os.path.join(folder, "swax")
        self.source = source
        self.work = work

    def run(self, name, job, ranks, changes, env=None):
        """Trains to the end in a fresh state folder; the result object, its fingerprint and folder."""
        state = os.path.join(self.work, name)
        words = [self.swax, "run", os.path.join(self.source, "jobs", job + ".toml"),
                 "--ranks", str(ranks), "--state", state, "-o", "json"]
        for change in changes:
            words += ["--set", change]
        done = subprocess.run(words, capture_output=True, text=True, timeout=RUN_SECONDS,
                              env=dict(os.environ, **(env or {})), check=False)
        if done.returncode != 0:
            raise Failure(f"{name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        result = json.loads(done.stdout.strip().splitlines()[-1])
        if result["state"] != "SUCCEEDED" or not re.fullmatch("[0-9a-f]{32}", result["digest"]):
            raise Failure(f"{name}: {result}")
        with open(os.path.join(state, "store", "jobs", job, "records", "a1.log"), "rb") as log:
            found = FINGERPRINT.search(log.read())
        if found is None:
            raise Failure(f"{name}: no arithmetic fingerprint in its records")
        result["fingerprint"] = found.group().decode()
        result["folder"] = state
        print(f"{name:<24} {ranks} ranks  {result['digest']}  loss {result['loss']}  "
              f"{result['tokens_per_s']:.0f} tokens/s", flush=True)
        return result

    def diff(self, a, b, *words):
        done = subprocess.run([self.swax, "diff", a["folder"], b["folder"], *words],
                              capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
        return done.returncode, done.stdout + done.stderr


def expect_same(runner, a, b):
    for key in ("digest", "loss", "validation_bpb", "step"):
        if a[key] != b[key]:
            raise Failure(f"{a['folder']} and {b['folder']}: {key} {a[key]} and {b[key]}")
    code, text = runner.diff(a, b)
    if code != 0:
        raise Failure(f"swax diff: exit code {code}\n{text}")


def check_ranks(runner):
    runs = [runner.run(f"quickstart-{ranks}", "quickstart", ranks, ["training.steps=40"])
            for ranks in (1, 2, 4)]
    for other in runs[1:]:
        expect_same(runner, runs[0], other)
    return runs[0]


def check_threads(runner):
    """None where this OpenBLAS does not know the core type."""
    runs = [runner.run(f"haswell-{threads}-threads", "quickstart", 1,
                       ["training.steps=4", f"parallelism.compute_threads={threads}"],
                       {"OPENBLAS_CORETYPE": "Haswell"}) for threads in (1, 2)]
    expect_same(runner, runs[0], runs[1])
    if "/Haswell " not in runs[0]["fingerprint"]:
        print(f"SKIPPED haswell: the core type was not taken: {runs[0]['fingerprint']}")
        return None
    return runs[0]


def check_plain(runner):
    return runner.run("micro-plain", "micro", 2, ["training.steps=5"], PLAIN)


def check_flip(runner):
    """The lowest bit of an exponent: that gradient is doubled or halved. Without clipping nothing but
    its own element moves in step 17, whose checkpoint both runs keep; what follows differs anywhere."""
    step, tensor, element = 17, "layers.1.mlstm.wq", 5
    changes = [f"training.steps={step + 2}", "training.seq_len=128", "training.global_batch_size=4",
               "training.max_norm=1e9", f"checkpoint.interval={step}", "debug.hash_every=1"]
    right = runner.run("micro", "micro", 2, changes, PLAIN)
    flip = dict(PLAIN, SWAX_TEST_FLIP_GRADIENT=f"{step}:{tensor}:{element}:23")
    wrong = runner.run("micro-flipped", "micro", 2, changes, flip)
    code, text = runner.diff(right, wrong, "-o", "json")
    if code != 4 or right["digest"] == wrong["digest"]:
        raise Failure(f"a flipped bit: swax diff ends with {code}\n{text}")
    found = json.loads(text)
    first = found["first_step"], found["first_tensor"], found["first_element"]
    if None in first:
        raise Failure(f"a flipped bit: not everything is named\n{text}")
    named = {"step": (first[0]["step"], step), "fields": (first[0]["fields"], ["norm", "tensors"]),
             "step of the tensor": (first[1]["step"], step),
             "tensor": (first[1]["tensor"], "model/" + tensor),
             "tensors": (first[1]["differing"], 3),  # the parameter and its two moments
             "checkpoint": (first[2]["checkpoint_step"], step),
             "tensor of the element": (first[2]["tensor"], "model/" + tensor),
             "element": (first[2]["element"], element)}
    for what, (is_, must) in named.items():
        if is_ != must:
            raise Failure(f"a flipped bit: {what} {is_}, must be {must}\n{text}")
    print(f"a flipped bit: step {step}, {tensor}, element {element} named")


def read_golden(path):
    golden = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                case, fingerprint, digest = line.rstrip("\n").split("\t")
                golden[case, fingerprint] = digest
    return golden


def write_golden(path, golden):
    with open(path, encoding="utf-8") as lines:
        head = [line for line in lines if line.startswith("#")]
    rows = [f"{case}\t{fingerprint}\t{digest}\n"
            for (case, fingerprint), digest in sorted(golden.items())]
    with open(path, "w", encoding="utf-8") as out:
        out.writelines(head + rows)


def check_golden(golden, case, fingerprint, digest):
    stored = golden.get((case, fingerprint))
    if stored is None:
        print(f"SKIPPED golden digest of {case}: unknown arithmetic; the line to store:\n"
              f"{case}\t{fingerprint}\t{digest}")
    elif stored != digest:
        raise Failure(f"{case} on {fingerprint}: digest {digest}, stored {stored}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--store", action="store_true")
    words = parser.parse_args()
    path = os.path.join(words.source, "tests", "data", "golden", "digests.tsv")
    work = tempfile.mkdtemp(prefix="swax-same-bits-")
    runner = Runner(words.bin, words.source, work)
    try:
        golden = read_golden(path)
        check_flip(runner)
        micro = check_plain(runner)
        found = [("micro, 5 steps, plain", "any", micro["digest"])]
        quickstart = check_ranks(runner)
        found.append(("quickstart, 40 steps", quickstart["fingerprint"], quickstart["digest"]))
        haswell = check_threads(runner)
        if haswell is not None:
            found.append(("quickstart, 4 steps", haswell["fingerprint"], haswell["digest"]))
        for case, fingerprint, digest in found:
            if words.store:
                golden[case, fingerprint] = digest
            else:
                check_golden(golden, case, fingerprint, digest)
        if words.store:
            write_golden(path, golden)
    except (Failure, subprocess.TimeoutExpired) as failure:
        print(f"FAILED: {failure}")
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print("same bits: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
