"""Goal: rendered scripts are clean and say every [resources] field where Slurm expects it; what the
cluster refuses is told in its words and ours, exit code 2, and leaves nothing in the queue; a job is
submitted once, whatever becomes of sbatch's answers; `doctor --slurm` knows this cluster.
Method: shellcheck; wrong partition, GPU type and size; an sbatch before the real one that loses answers
before and after it hands over, is late, is killed, or refuses an account, five times and more."""
import json
import os
import subprocess
import sys

import slurm_lab
from slurm_lab import check, read_json

ALL = {"resources.nodes": 2, "resources.spare_nodes": 1, "resources.ranks_per_node": 2,
       "resources.cpus_per_rank": 1, "resources.memory_mib": 100, "resources.gpus_per_node": 2,
       "resources.gpu_type": "h200", "resources.partition": "main", "resources.account": "research",
       "resources.qos": "normal", "resources.constraint": "fast&near", "resources.reservation": "r1",
       "resources.exclude": "n[3-4]", "resources.time_minutes": 90, "resources.signal_seconds": 240,
       "resources.container": "/images/it's.sqsh", "parallelism.ranks": 4}
HEADER = ["nodes=3", "ntasks-per-node=1", "cpus-per-task=2", "mem=100M", "gres=gpu:h200:2",
          "partition=main", "account=research", "qos=normal", "constraint=fast&near",
          "reservation=r1", "exclude=n[3-4]", "time=90", "signal=B:USR1@240", "no-kill", "requeue",
          "open-mode=append"]
# Counts its calls in $FAKE/calls; what call K does stands in $FAKE/plan, one word a call. A late one
# hands over after the next call has looked for it (LATE seconds).
FAKE_SBATCH = """#!/bin/bash
refuse() { echo "sbatch: error: Batch job submission failed: $1" >&2; exit 1; }
echo . >>"$FAKE/calls"
n=$(wc -l <"$FAKE/calls")
case $(sed -n "${n}p" "$FAKE/plan") in
  lost-before) refuse "Socket timed out on send/recv operation" ;;
  lost-after) %(sbatch)s "$@" >/dev/null; sleep 60 ;;
  late) (sleep "$LATE"; exec setsid %(sbatch)s "$@" >/dev/null) & sleep 60 ;;
  killed) %(sbatch)s "$@" >/dev/null; kill -9 $$ ;;
  account) refuse "Invalid account or account/partition combination specified" ;;
  *) exec %(sbatch)s "$@" ;;
esac
"""
GAP_MS, SBATCH_MS = 2000, 1000


def render(lab, swax, changes, name="render"):
    spec = os.path.join(lab.work, name + ".toml")
    slurm_lab.write_spec(spec, "micro", changes)
    return spec, lab.run(swax, "slurm", "render", "job", spec, "--state", lab.work + "/s").stdout


def check_scripts(lab, swax):
    spec, script = render(lab, swax, ALL)
    for line in HEADER:
        check(f"\n#SBATCH --{line}\n" in script, f"no header line {line} in\n{script}")
    check("container=('--container-image=/images/it'\\''s.sqsh')" in script, "container not quoted")
    pool = lab.run(swax, "slurm", "render", "pool", spec, "--coordinator", "tcp://10.0.0.1:7000").stdout
    check("\n#SBATCH --array=1-3\n" in pool and "address='tcp://10.0.0.1:7000'" in pool, pool)
    texts = {"rendered job": script, "rendered pool": pool}
    folder = os.path.join(slurm_lab.e2e.SOURCE, "ops", "slurm")
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name)) as file:
            texts[name] = file.read()
    for name, text in texts.items():
        done = subprocess.run(["shellcheck", "-"], input=text, capture_output=True, text=True,
                              check=False)
        check(done.returncode == 0, f"shellcheck of {name}:\n{done.stdout}")


def check_doctor(lab, swax):
    done = lab.run(swax, "doctor", "--slurm", "--state", lab.work, "-o", "json", must=False)
    rows = {row["check"]: row for row in json.loads(done.stdout)["checks"]}
    for name, words in (("Slurm", "22.05"), ("slurmctld", "UP"), ("squeue", "0 jobs"),
                        ("partitions", "main* 4 of 4 nodes"), ("requeue", "about 6 s"),
                        ("lost node", "after 2 s"), ("srun --mpi", "pmix: ")):
        check(name in rows and rows[name]["fits"] and words in rows[name]["found"],
              f"doctor --slurm, row {name}: {rows.get(name)}")
    check(lab.work in rows["all nodes see"]["found"], f"{rows['all nodes see']}")


def submit(lab, swax, spec, state, **options):
    return lab.run(swax, "slurm", "submit", "job", spec, "--state", f"{lab.work}/{state}", "-o",
                   "json", must=False, **options)


def check_refusals(lab, swax):
    for key, value, words in (("partition", "nowhere", "invalid partition"),
                              ("gpu_type", "abacus", ""), ("nodes", 9, "")):
        spec, _ = render(lab, swax, {f"resources.{key}": value, "resources.gpus_per_node":
                                     1 if key == "gpu_type" else 0}, "refused")
        done = submit(lab, swax, spec, "refused")
        check(done.returncode == 2, f"{key}={value}: exit code {done.returncode}\n{done.stderr}")
        check("Slurm: " in done.stderr and words in done.stderr and "[resources]" in done.stderr,
              done.stderr)
        slurm_lab.say(done.stderr.strip())
    check(not [row for row in lab.queue() if row[1] == "PENDING"], f"left: {lab.queue()}")


class Fake:
    """Stands before sbatch in the PATH."""

    def __init__(self, lab, swax, spec):
        self.lab, self.swax, self.spec = lab, swax, spec
        self.folder = os.path.join(lab.work, "fake")
        os.makedirs(self.folder)
        with open(os.path.join(self.folder, "sbatch"), "w") as file:
            file.write(FAKE_SBATCH % {"sbatch": lab.out("which", "sbatch")})
        os.chmod(os.path.join(self.folder, "sbatch"), 0o755)

    def submit(self, state, plan, late=0):
        for name, lines in (("plan", plan), ("calls", [])):
            with open(os.path.join(self.folder, name), "w") as file:
                file.write("".join(line + "\n" for line in lines))
        path = self.folder + ":" + self.lab.environment["PATH"]
        return submit(self.lab, self.swax, self.spec, state, env={
            "PATH": path, "FAKE": self.folder, "LATE": str(late),
            "SWAX_TEST_SLURM_GAP_MS": str(GAP_MS), "SWAX_TEST_SLURM_SBATCH_MS": str(SBATCH_MS)})


def check_lost_answers(lab, swax):
    spec, _ = render(lab, swax, {"resources.exclude": "n1,n2,n3"}, "lost")
    fake = Fake(lab, swax, spec)
    lab.run("scontrol", "update", "NodeName=n4", "State=drain", "Reason=test")
    plans = ((["lost-before"] * 5, 0), (["lost-after"] * 5, 0), (["killed"], 0), (["late"], 2),
             (["late"], 4))  # the last one arrives when the next has been handed over
    for number, (plan, late) in enumerate(plans):
        done = fake.submit(f"lost{number}", plan, late)
        check(done.returncode == 0, f"{plan}: exit code {done.returncode}\n{done.stderr}")
        answer = read_json(done.stdout)
        rows = [row for row in lab.queue() if row[2] == "swax:" + answer["request_id"]
                and row[1] == "PENDING"]
        check([row[0] for row in rows] == [str(answer["slurm_job"])], f"{plan}: {rows}, {answer}")
        lab.run("scancel", rows[0][0])
    done = fake.submit("account", ["account"])
    check(done.returncode == 2 and "Invalid account" in done.stderr, done.stderr)
    check(not [row for row in lab.queue() if row[1] == "PENDING"], f"left: {lab.queue()}")


def test(bin_folder):
    swax = os.path.join(bin_folder, "swax")
    with slurm_lab.Lab(GRES="gpu:2") as lab:
        check_scripts(lab, swax)
        check_doctor(lab, swax)
        check_refusals(lab, swax)
        check_lost_answers(lab, swax)


if __name__ == "__main__":
    sys.exit(slurm_lab.main("slurm_submit", test))
