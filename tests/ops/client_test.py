#!/usr/bin/env python3
"""Goal: the client's verbs do what they say against a real coordinator: a job is submitted once
whatever is lost, errors have their exit codes, reads have their schemas, waiting ends in time.
Method: `swax coordinator` on a free port in a temporary folder; no workers, so that jobs stay queued.

Usage: client_test.py --swax BUILD/bin/swax
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MICRO = os.path.join(SOURCE, "jobs", "micro.toml")
COLUMNS = 80
START_S = 60
ID = "0123456789abcdef0123456789abcdef"
swax = ""


class Coordinator:
    def __init__(self, folder, listen="tcp://127.0.0.1:0", **environment):
        self.log = open(os.path.join(folder, "coordinator.log"), "ab")
        self.process = subprocess.Popen(
            [swax, "coordinator", "--state", os.path.join(folder, "state"), "--listen", listen],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, **environment})
        timer = threading.Timer(START_S, self.process.kill)
        timer.start()
        line = self.process.stdout.readline().split()
        timer.cancel()
        assert line[:1] == ["listening"], line
        self.address = line[1]

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=START_S)
        self.process.stdout.close()
        self.log.close()
        return code


def client(address, *words, timeout=60, **more):
    environment = {key: value for key, value in os.environ.items() if key != "SWAX_COORDINATOR"}
    if address:
        environment["SWAX_COORDINATOR"] = address
    return subprocess.run([swax, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout, check=False, env=environment, **more)


def submit_words(name, *more):
    return ["submit", MICRO, "--set", f"job.name={name}", "-o", "json", *more]


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ServiceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.coordinator = Coordinator(cls.folder.name)
        cls.address = cls.coordinator.address

    @classmethod
    def tearDownClass(cls):
        code = cls.coordinator.end()
        cls.folder.cleanup()
        assert code == 0, code

    def run_ok(self, *words):
        result = client(self.address, *words)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def json(self, *words):
        return json.loads(self.run_ok(*words, "-o", "json").stdout)

    def refused(self, code, words, says):
        result = client(self.address, *words)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertIn(says, result.stderr)


class Submit(ServiceTest):
    def test_ends_with_one_object(self):
        result = self.run_ok(*submit_words("one"))
        self.assertEqual(result.stdout.count("\n"), 1)
        answer = json.loads(result.stdout)
        self.assertEqual(list(answer), ["schema_version", "job", "request_id", "state"])
        self.assertEqual((answer["job"], answer["state"]), ("one", "QUEUED"))
        self.assertRegex(answer["request_id"], "^[0-9a-f]{32}$")
        text = self.run_ok("submit", MICRO, "--set", "job.name=one-text").stdout
        self.assertIn("swax watch one-text", text)
        self.assertLessEqual(max(map(len, text.splitlines())), COLUMNS)

    def test_the_same_request_five_times_at_once_is_one_job(self):
        words = [swax, *submit_words("five", "--request-id", ID, "--coordinator", self.address)]
        processes = [subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True) for _ in range(2)]
        answers = [process.communicate(timeout=60) for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0])
        answers += [(self.run_ok(*words[1:]).stdout, "") for _ in range(3)]
        self.assertEqual(len({out for out, _ in answers}), 1, answers)
        self.assertEqual(json.loads(answers[0][0])["request_id"], ID)
        jobs = [job["job"] for job in self.json("list", "--all")["jobs"]]
        self.assertEqual(jobs.count("five"), 1)
        kinds = [event["kind"] for event in self.json("events", "five")]
        self.assertEqual(kinds, ["submitted"])
        self.assertIn("was submitted before", self.run_ok(*words[1:]).stderr)
        self.refused(4, submit_words("five", "--request-id", ID, "--set", "job.seed=99"),
                     "was used for another request")
        self.refused(4, submit_words("five"), "choose another job.name")

    def test_a_wrong_input_is_refused_before_the_coordinator_is_asked(self):
        self.refused(2, submit_words("bad", "--set", "training.steps=0"), "training.steps")
        self.refused(2, submit_words("bad", "--ranks", "9"), "parallelism.ranks")
        self.refused(2, submit_words("bad", "--request-id", "xyz"), "32 hex digits")
        for verb in ("cancel", "resume"):
            self.refused(2, [verb, "bad", "--request-id", "xyz"], "32 hex digits")
            self.refused(2, [verb, "bad", "--request-id", ID + ID + ID], "32 hex digits")
        self.refused(2, ["submit", "/nonexistent.toml"], "/nonexistent.toml")
        self.refused(3, ["status", "bad"], "no job bad")

    def test_a_data_set_that_only_workers_see_is_no_error(self):
        self.run_ok(*submit_words("far", "--set", 'data.sources[0].text=""', "--set",
                                  "data.sources[0].path=/nonexistent/data"))


class Reads(ServiceTest):
    def setUp(self):
        if not self.json("list")["jobs"]:
            self.run_ok(*submit_words("first", "--ranks", "2", "--priority", "3"))
            self.run_ok(*submit_words("a-name-that-is-as-long-as-a-name-may-be." + "x" * 23))

    def check_columns(self, text):
        self.assertLessEqual(max(map(len, text.splitlines())), COLUMNS, text)

    def test_list(self):
        answer = self.json("list")
        self.assertEqual(list(answer), ["schema_version", "jobs"])
        self.assertEqual(len(answer["jobs"]), 2)
        text = self.run_ok("list").stdout
        self.check_columns(text)
        self.assertIn("WaitingForCapacity", text)
        self.assertTrue(text.splitlines()[0].startswith("JOB "))
        self.assertEqual(len(text.splitlines()), 3)

    def test_status_of_a_job_has_the_keys_of_run(self):
        job = self.json("status", "first")
        self.assertEqual(list(job)[:15], [
            "schema_version", "job", "name", "state", "reason", "step", "total_steps", "loss",
            "validation_bpb", "tokens_per_s", "digest", "attempt", "restarts", "checkpoint",
            "state_dir"])
        self.assertEqual((job["state"], job["reason"]), ("QUEUED", "WaitingForCapacity"))
        self.assertEqual((job["step"], job["attempt"], job["restarts"]), (0, 0, 0))
        self.assertEqual(job["priority"], 3)
        for key in ("loss", "validation_bpb", "tokens_per_s", "digest", "checkpoint", "state_dir"):
            self.assertIsNone(job[key], key)
        self.assertGreater(job["total_steps"], 0)
        self.assertEqual(job["events"], 1)
        text = self.run_ok("status", "first").stdout
        self.check_columns(text)
        for line in ("state        QUEUED (WaitingForCapacity)", "now          needs 2 slots",
                     "do           start more workers"):
            self.assertIn("\n" + line, text)

    def test_status_of_the_service(self):
        answer = self.json("status")
        self.assertEqual(list(answer), ["schema_version", "service", "jobs", "problem"])
        service = answer["service"]
        self.assertEqual((service["jobs"], service["jobs_active"], service["nodes"]), (2, 2, 0))
        self.assertEqual(service["refused"], {})
        self.assertIsNone(answer["problem"])
        text = self.run_ok("status").stdout
        self.check_columns(text.replace(self.folder.name, ""))
        self.assertIn("swax worker --name", text)
        self.assertIn("first", text)

    def test_events(self):
        events = self.json("events", "first")
        self.assertEqual([event["sequence"] for event in events], [1])
        self.assertEqual(list(events[0]), ["sequence", "time", "wall_ms", "kind", "attempt", "step",
                                           "text", "fields"])
        self.assertIn("submitted", self.run_ok("events", "first").stdout)

    def test_nodes_and_checkpoints_of_an_empty_service(self):
        self.assertEqual(self.json("nodes"), {"schema_version": 1, "nodes": []})
        self.assertIn("swax worker", self.run_ok("nodes").stdout)
        self.assertEqual(self.json("checkpoints", "list", "first"), [])
        self.assertIn("no checkpoints", self.run_ok("checkpoints", "list", "first").stdout)
        self.refused(3, ["logs", "first"], "no attempt")

    def test_what_is_unknown(self):
        for words in (["status"], ["events"], ["logs"], ["watch"], ["wait"], ["cancel"], ["resume"],
                      ["checkpoints", "list"], ["events", "-f"], ["logs", "-f"]):
            self.refused(3, [*words, "nobody"], "nobody")

    def test_usage(self):
        self.refused(2, ["status", "first", "--state", "x"], "not both")
        self.refused(2, ["events"], "give JOB, or --state DIR")
        self.refused(2, ["checkpoints", "list"], "give JOB, or --state DIR")
        self.refused(2, ["list", "--coordinator", "localhost:99"], "localhost")
        result = client("", "list")
        self.assertEqual(result.returncode, 2)
        self.assertIn("SWAX_COORDINATOR", result.stderr)
        bare = self.address.removeprefix("tcp://")
        self.assertEqual(client("", "list", "--coordinator", bare).returncode, 0)


class Changes(ServiceTest):
    def test_wait_is_over_in_time(self):
        self.run_ok(*submit_words("waits"))
        began = time.monotonic()
        result = client(self.address, "wait", "waits", "--timeout", "1", "-o", "json")
        self.assertEqual(result.returncode, 124)
        self.assertGreaterEqual(time.monotonic() - began, 1.0)
        self.assertEqual(json.loads(result.stdout)["state"], "QUEUED")
        self.assertIn("has not ended", result.stderr)

    def test_cancel_of_a_queued_job(self):
        self.run_ok(*submit_words("gone"))
        waiting = subprocess.Popen([swax, "wait", "gone", "-o", "json", "--coordinator",
                                    self.address], stdin=subprocess.DEVNULL, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(self.json("cancel", "gone")["state"], "CANCELLED")
        out, _ = waiting.communicate(timeout=60)
        self.assertEqual(waiting.returncode, 11)
        self.assertEqual(json.loads(out)["state"], "CANCELLED")
        self.assertEqual(self.json("cancel", "gone")["state"], "CANCELLED")  # again: nothing to do
        self.assertEqual(client(self.address, "wait", "gone").returncode, 11)
        watched = client(self.address, "watch", "gone")
        self.assertEqual(watched.returncode, 11)
        self.assertIn("CANCELLED", watched.stdout)
        self.assertNotIn("gone", [job["job"] for job in self.json("list")["jobs"]])
        self.assertIn("gone", [job["job"] for job in self.json("list", "--all")["jobs"]])
        lines = self.run_ok("events", "gone", "-f", "-o", "json").stdout.splitlines()
        self.assertEqual([json.loads(line)["kind"] for line in lines],
                         ["submitted", "stop_asked", "job_ended"])

    def test_resume_only_of_what_has_ended(self):
        self.run_ok(*submit_words("again"))
        self.refused(4, ["resume", "again"], "only a failed or cancelled job")
        self.run_ok("cancel", "again", "--now")
        self.assertEqual(self.json("resume", "again", "--request-id", ID)["state"], "QUEUED")
        # The same request is answered again, though the job could not be resumed now.
        self.assertEqual(self.json("resume", "again", "--request-id", ID)["state"], "QUEUED")
        self.refused(4, ["resume", "again"], "only a failed or cancelled job")

    def test_submit_and_wait(self):
        waiting = subprocess.Popen([swax, *submit_words("both", "--wait"), "--coordinator",
                                    self.address], stdin=subprocess.DEVNULL, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 30
        while client(self.address, "status", "both").returncode != 0:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.1)
        self.run_ok("cancel", "both")
        out, err = waiting.communicate(timeout=60)
        self.assertEqual(waiting.returncode, 11, err)
        job = json.loads(out)
        self.assertEqual((job["job"], job["state"]), ("both", "CANCELLED"))
        self.assertRegex(job["request_id"], "^[0-9a-f]{32}$")
        self.assertIn("job ended: CANCELLED", err)


class Silence(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def stop(self, process):
        if process.poll() is None:
            process.kill()
            process.communicate()

    def test_nobody_is_there(self):
        address = f"tcp://127.0.0.1:{closed_port()}"
        began = time.monotonic()
        result = client(address, *submit_words("lost", "--request-id", ID, "--timeout", "3"))
        self.assertEqual(result.returncode, 5, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertIn(ID, result.stderr)
        self.assertIn("connection refused", result.stderr)
        self.assertGreaterEqual(time.monotonic() - began, 3.0)
        result = client(address, *submit_words("lost", "--timeout", "0.5"))
        self.assertRegex(result.stderr, "--request-id [0-9a-f]{32}")
        result = client(address, "list")
        self.assertEqual(result.returncode, 5)
        self.assertIn("no answer", result.stderr)

    def test_somebody_else_is_there(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
            result = client(address, *submit_words("mute", "--timeout", "2.5"))
        self.assertEqual(result.returncode, 5)
        self.assertIn("handshake is not done", result.stderr)

    def test_an_answer_that_is_lost_after_the_commit(self):
        first = Coordinator(self.folder.name, SWAX_FAILPOINTS="coord.submit_journaled:1")
        words = [swax, *submit_words("kept"), "--coordinator", first.address]
        submitting = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True)
        self.assertEqual(first.process.wait(timeout=START_S), -signal.SIGKILL)
        first.end()
        second = Coordinator(self.folder.name, listen=first.address)
        try:
            out, err = submitting.communicate(timeout=60)
            self.assertEqual(submitting.returncode, 0, err)
            self.assertIn("trying again with request id", err)
            self.assertIn("its answer was lost: job kept was submitted once", err)
            answer = json.loads(out)
            self.assertEqual((answer["job"], answer["state"]), ("kept", "QUEUED"))
            jobs = json.loads(client(second.address, "list", "--all", "-o", "json").stdout)["jobs"]
            self.assertEqual([job["job"] for job in jobs], ["kept"])
        finally:
            self.assertEqual(second.end(), 0)

    def test_waiting_goes_on_through_a_restart(self):
        first = Coordinator(self.folder.name)
        address = first.address
        self.assertEqual(client(address, *submit_words("long")).returncode, 0)
        waiting = subprocess.Popen([swax, "watch", "long", "--coordinator", address], text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        self.addCleanup(self.stop, waiting)
        while "long QUEUED" not in waiting.stderr.readline():  # it has been answered once
            self.assertIsNone(waiting.poll())
        first.end()
        self.assertIn("waiting for it", waiting.stderr.readline())
        second = Coordinator(self.folder.name, listen=address)
        try:
            self.assertIn("answers again", waiting.stderr.readline())
            self.assertEqual(client(address, "cancel", "long").returncode, 0)
            out, _ = waiting.communicate(timeout=60)
            self.assertEqual(waiting.returncode, 11)
            self.assertIn("CANCELLED", out)
        finally:
            self.assertEqual(second.end(), 0)


def main():
    global swax
    parser = argparse.ArgumentParser()
    parser.add_argument("--swax", required=True)
    options, rest = parser.parse_known_args()
    swax = os.path.abspath(options.swax)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
