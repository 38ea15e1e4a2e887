#!/usr/bin/env python3
"""Goal: the command line is usable and says what it says for good: help, usage errors, output rules,
plans of the presets. Method: the program itself; plans are compared with tests/data/ops/plan-*.txt.

Usage: cli_test.py --swax BUILD/bin/swax [--update]    --update writes the golden plans again.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(SOURCE, "tests", "data", "ops")
PRESETS = ["quickstart", "micro", "nano", "125m", "swax-1.4b", "swax-7b"]
COLUMNS = 80
swax = ""

VERBS = {  # verb: the options that its help must name
    "validate": ["--set", "--ranks", "-o, --output"],
    "plan": ["--set", "--ranks", "--state", "-o, --output"],
    "run": ["--state", "--ranks", "--set", "-o, --output"],
    "submit": ["--coordinator", "--ranks", "--set", "--priority", "--request-id", "--timeout",
               "--wait", "-o, --output"],
    "list": ["--coordinator", "--all", "-o, --output"],
    "watch": ["--coordinator", "-o, --output"],
    "wait": ["--coordinator", "--timeout", "-o, --output"],
    "logs": ["--coordinator", "--rank", "--attempt", "-f, --follow", "-o, --output"],
    "cancel": ["--coordinator", "--now", "--request-id", "--timeout", "-o, --output"],
    "resume": ["--coordinator", "--request-id", "--timeout", "-o, --output"],
    "nodes": ["--coordinator", "-o, --output"],
    "status": ["--coordinator", "--state", "-o, --output"],
    "events": ["--coordinator", "--state", "-f, --follow", "-o, --output"],
    "checkpoints list": ["--coordinator", "--state", "--job", "--store", "-o, --output"],
    "checkpoints verify": ["--state", "--job", "--store", "-o, --output"],
    "diff": ["-o, --output"],
    "generate": ["--state", "--job", "--store", "--prompt", "--tokens", "--temperature", "--top-k",
                 "--seed", "--step"],
    "data build": ["--name", "--out", "--documents", "--jsonl-field", "--validation-fraction",
                   "--license", "--lossy", "-o, --output"],
    "data verify": ["--data", "-o, --output"],
    "data list": ["--data", "-o, --output"],
    "data describe": ["--data", "-o, --output"],
    "data baseline": ["--state", "--data", "--seq-len", "--order", "-o, --output"],
    "doctor": ["--state", "--slurm", "-o, --output"],
    "version": ["-o, --output"],
}


def run(*words, cwd="/", **more):
    return subprocess.run([swax, *words], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60, check=False, **more)


def preset(name):
    return os.path.join(SOURCE, "jobs", name + ".toml")


class Help(unittest.TestCase):
    def test_program_lists_all_verbs(self):
        for words in (["--help"], ["-h"], ["help"]):
            result = run(*words)
            self.assertEqual(result.returncode, 0)
            self.assertEqual(result.stderr, "")
            for verb in VERBS:
                self.assertIn("  " + verb + " ", result.stdout)
            self.assertLessEqual(max(map(len, result.stdout.splitlines())), COLUMNS)

    def test_each_verb_names_its_options_and_an_example(self):
        for verb, options in VERBS.items():
            for flag in ("--help", "-h"):
                result = run(*verb.split(), flag)
                self.assertEqual(result.returncode, 0, verb)
                for option in options:
                    self.assertIn("  " + option, result.stdout, verb)
                self.assertIn("\n  swax " + verb, result.stdout, verb)
                self.assertLessEqual(max(map(len, result.stdout.splitlines())), COLUMNS, verb)

    def test_examples_are_commands_that_parse(self):
        # An example may lack its files; what it says must not be a usage error.
        for verb in VERBS:
            if verb in ("run", "data build"):
                continue
            text = run(*verb.split(), "--help").stdout
            example = next(line for line in text.splitlines() if line.startswith("  swax " + verb))
            with tempfile.TemporaryDirectory() as folder:
                os.symlink(os.path.join(SOURCE, "jobs"), os.path.join(folder, "jobs"))
                result = run(*shlex.split(example)[1:], cwd=folder)
            for complaint in ("unknown", "missing", "given twice", "unexpected"):
                self.assertNotIn(complaint, result.stderr, example)

    def test_groups_have_a_help(self):
        result = run("data", "--help")
        self.assertEqual(result.returncode, 0)
        self.assertIn("data baseline", result.stdout)
        self.assertNotIn("checkpoints", result.stdout)


class Usage(unittest.TestCase):
    def refused(self, words, says):
        result = run(*words)
        self.assertEqual(result.returncode, 2, words)
        self.assertEqual(result.stdout, "", words)
        self.assertIn(says, result.stderr, words)
        self.assertEqual(result.stderr.count("\n"), 1, words)

    def test_what_is_unknown_is_named_with_the_nearest(self):
        self.refused(["vaildate"], 'nearest known verb is "validate"')
        self.refused(["data", "verfy"], 'nearest known verb is "data verify"')
        self.refused(["plan", preset("micro"), "--rank=2"], "nearest known option is --ranks")
        self.refused(["status", "--sate", "x"], "nearest known option is --state")
        self.refused(["status", "-x"], "unknown option -x")

    def test_what_is_missing_or_too_much(self):
        self.refused([], "a verb is missing")
        self.refused(["data"], "build, verify, list, describe, baseline")
        self.refused(["validate"], "FILE is missing")
        self.refused(["checkpoints", "verify"], "--state DIR is missing")
        self.refused(["status", "--state"], "--state: the value is missing")
        self.refused(["status", "--state", "--output", "json"], "--state: the value is missing")
        self.refused(["diff", "a"], "B is missing")
        self.refused(["status"], "give --coordinator tcp://IP:PORT or set SWAX_COORDINATOR")
        self.refused(["version", "now"], "unexpected argument now")
        self.refused(["data", "baseline"], "give one of --state and --data")
        self.refused(["data", "baseline", "--state", "a", "--data", "b"], "give one of")

    def test_duplicates_and_values(self):
        self.refused(["status", "--state", "a", "--state=b"], "--state is given twice")
        self.refused(["version", "-o", "json", "--output=text"], "--output is given twice")
        self.refused(["version", "-o", "xml"], "must be one of text|json")
        self.refused(["plan", preset("micro"), "--ranks", "two"], "must be an integer in 1..65536")
        self.refused(["plan", preset("micro"), "--ranks", "0"], "must be an integer in 1..65536")
        self.refused(["generate", "--state", "a", "--temperature", "nan"], "must be a number in")
        self.refused(["validate", preset("micro"), "--set", "steps"], "must be KEY=VALUE")

    def test_both_forms_of_a_value(self):
        for words in (["-o", "json"], ["-ojson"], ["--output", "json"], ["--output=json"]):
            self.assertIn("build_id", json.loads(run("version", *words).stdout))

    def test_a_file_may_begin_with_a_dash(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(preset("micro"), encoding="utf-8") as source:
                text = source.read()
            with open(os.path.join(folder, "-job.toml"), "w", encoding="utf-8") as file:
                file.write(text)
            self.assertEqual(run("validate", "--", "-job.toml", cwd=folder).returncode, 0)

    def test_an_override_changes_the_spec(self):
        result = run("validate", preset("micro"), "--set", "training.steps=7", "--set",
                     "lr_scheduler.warmup_steps=2", "--ranks=3", "-o", "json")
        self.assertEqual(json.loads(result.stdout)["steps"], 7)
        self.assertEqual(json.loads(result.stdout)["ranks"], 3)
        result = run("validate", preset("micro"), "--set", "training.stepz=7")
        self.assertEqual(result.returncode, 2)
        self.assertIn("training.steps", result.stderr)


class Output(unittest.TestCase):
    def test_a_reader_that_leaves_is_no_error(self):
        reader, writer = os.pipe()
        os.close(reader)
        result = subprocess.run([swax, "plan", preset("swax-7b")], stdout=writer,
                                stderr=subprocess.PIPE, check=False, timeout=60)
        os.close(writer)
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stderr, b"")

    def test_a_full_disk_is_an_error(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([swax, "version"], stdout=full, stderr=subprocess.PIPE,
                                    check=False, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"stdout", result.stderr)

    def test_a_pipe_gets_no_colours(self):
        for words in (["--help"], ["plan", preset("micro")], ["version"]):
            self.assertNotIn("\x1b", run(*words).stdout)

    def test_the_program_needs_neither_mpi_nor_blas(self):
        libraries = subprocess.run(["ldd", swax], capture_output=True, text=True, check=True).stdout
        for name in ("libmpi", "openblas", "libcuda", "libcudart"):
            self.assertNotIn(name, libraries)


class Plan(unittest.TestCase):
    def plan(self, name, *words):
        with tempfile.TemporaryDirectory() as folder:  # no data set and no run beside it
            result = run("plan", preset(name), *words, cwd=folder)
            self.assertEqual(os.listdir(folder), [])
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_text_is_the_golden_one(self):
        for name in PRESETS:
            text = self.plan(name)
            self.assertLessEqual(max(map(len, text.splitlines())), COLUMNS, name)
            with open(os.path.join(GOLDEN, f"plan-{name}.txt"), encoding="utf-8") as file:
                self.assertEqual(text, file.read(), f"{name}: cli_test.py --update writes it again")

    def test_sizes_of_the_large_presets(self):
        self.assertEqual(json.loads(self.plan("swax-1.4b", "-o", "json"))["parameters"],
                         1_439_492_192)
        self.assertEqual(json.loads(self.plan("swax-7b", "-o", "json"))["parameters"],
                         6_889_476_352)

    def test_json_has_every_part(self):
        for name in PRESETS:
            self.check_json(json.loads(self.plan(name, "-o", "json")))

    def check_json(self, plan):
        for key in ("parameters", "steps", "tokens", "tokens_per_step", "checkpoint_bytes", "ranks"):
            self.assertIsInstance(plan[key], int, key)
        self.assertEqual(plan["tokens"], plan["steps"] * plan["tokens_per_step"])
        self.assertEqual(plan["checkpoint_bytes"], 12 * plan["parameters"])
        self.assertEqual([window["name"] for window in plan["windows"]], ["short", "long"])
        self.assertAlmostEqual(sum(window["share"] for window in plan["windows"]), 1.0)
        self.assertGreater(plan["windows"][1]["flops_per_token"],
                           plan["windows"][0]["flops_per_token"])
        steps = [point["step"] for point in plan["schedule"]]
        self.assertEqual(steps, sorted(steps))
        self.assertEqual((steps[0], steps[-1]), (0, plan["steps"] - 1))
        self.assertAlmostEqual(sum(source["share"] for source in plan["sources"]), 1.0)
        self.assertEqual(sum(source["tokens"] for source in plan["sources"]), plan["tokens"])
        self.assertIn(plan["ranks"], [ranks["ranks"] for ranks in plan["by_ranks"]])
        for ranks in plan["by_ranks"]:
            memory = dict(ranks["memory_bytes"])
            total = memory.pop("total")
            self.assertEqual(total, sum(memory.values()))
            # A rank holds its share of weights and moments, and the padding of its shards.
            self.assertGreaterEqual(memory["master"] * ranks["ranks"], 4 * plan["parameters"])
            self.assertEqual(memory["moments"], 2 * memory["master"])
            slots = ranks["ranks"] * ranks["micro_steps"]
            self.assertGreaterEqual(slots, plan["global_batch_size"])
            self.assertAlmostEqual(ranks["busy"], plan["global_batch_size"] / slots)

    def test_ranks_and_overrides_change_it(self):
        plan = json.loads(self.plan("nano", "--ranks", "3", "--set", "training.seq_len=128", "-o",
                                    "json"))
        self.assertEqual(plan["ranks"], 3)
        self.assertEqual(plan["seq_len"], 128)


class Data(unittest.TestCase):
    def test_build_list_verify_plan(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "a.txt"), "w", encoding="utf-8") as file:
                for i in range(400):
                    file.write(f"Paragraph {i} says that the number after {i} is {i + 1}.\n\n")
            built = run("data", "build", "--name", "tiny", "--out", "data", "a.txt", "-o", "json",
                        cwd=folder)
            self.assertEqual(built.returncode, 0, built.stderr)
            data_set = json.loads(built.stdout)
            digest = data_set["manifest"]["digest"]
            self.assertEqual(os.path.basename(data_set["folder"]), digest)
            listed = run("data", "list", "--data", "data", cwd=folder)
            self.assertIn(digest, listed.stdout)
            self.assertEqual(run("data", "verify", "--data", "data", cwd=folder).returncode, 0)
            plan = run("plan", preset("micro"), "--set", "data.sources[0].text=\"\"", "--set",
                       f"data.sources[0].path=data/{digest}", "-o", "json", cwd=folder)
            self.check_epochs(json.loads(plan.stdout), data_set)
            baseline = run("data", "baseline", "--data", "data", "--seq-len", "64", "--order", "2",
                           "-o", "json", cwd=folder)
            orders = json.loads(baseline.stdout)[0]["orders"]
            self.assertEqual([o["order"] for o in orders], [2, 3, 4, 5])
            self.damage(os.path.join(folder, "data", digest))
            self.assertEqual(run("data", "verify", "--data", "data", cwd=folder).returncode, 4)

    def check_epochs(self, plan, data_set):
        train = next(s for s in data_set["manifest"]["splits"] if s["name"] == "train")
        source = plan["sources"][0]
        self.assertEqual(source["train_tokens"], train["tokens"])
        windows = (train["tokens"] - 1) // plan["seq_len"]
        self.assertAlmostEqual(source["epochs"], source["sequences"] / windows)

    def damage(self, folder):
        shard = next(name for name in os.listdir(folder) if name.endswith(".swt"))
        with open(os.path.join(folder, shard), "r+b") as file:
            file.seek(5000)
            byte = file.read(1)
            file.seek(5000)
            file.write(bytes([byte[0] ^ 1]))

    def test_a_missing_input_is_a_wrong_input(self):
        with tempfile.TemporaryDirectory() as folder:
            result = run("data", "build", "--name", "x", "--out", "data", "none.txt", cwd=folder)
            self.assertEqual(result.returncode, 2)
            self.assertIn("none.txt", result.stderr)

    def test_a_folder_without_data_sets(self):
        with tempfile.TemporaryDirectory() as folder:
            for verb in ("list", "verify", "describe"):
                self.assertEqual(run("data", verb, "--data", folder).returncode, 3)


def update():
    os.makedirs(GOLDEN, exist_ok=True)
    for name in PRESETS:
        with tempfile.TemporaryDirectory() as folder:
            text = run("plan", preset(name), cwd=folder).stdout
        with open(os.path.join(GOLDEN, f"plan-{name}.txt"), "w", encoding="utf-8") as file:
            file.write(text)


def main():
    global swax
    parser = argparse.ArgumentParser()
    parser.add_argument("--swax", required=True)
    parser.add_argument("--update", action="store_true")
    options, rest = parser.parse_known_args()
    swax = os.path.abspath(options.swax)
    if options.update:
        update()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
