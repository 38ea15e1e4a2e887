"""Goal: the emulated cluster behaves as the other slurm tests take for granted: jobs on several nodes,
node names that nothing resolves, a /tmp of its own on every node with the folders it is told of, and a
power cut that requeues a job. Method: folders of /tmp are looked for on every node; a job over four
nodes, one over two whose first node loses power; then that node comes back."""
import os
import sys
import tempfile

import slurm_lab
from slurm_lab import check, wait_until


def test(_):
    with tempfile.TemporaryDirectory(prefix="swax seen ", dir="/tmp") as seen:
        with slurm_lab.Lab(seen=[seen]) as lab:
            of_tmp(lab, seen)
            of_jobs(lab, seen)


def of_tmp(lab, seen):
    """Nodes see a folder that they were told of, nothing else of the machine's /tmp or of each other's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as other:
        lab.mini("node-exec", "n1", "touch", "/tmp/swax-mark", os.path.join(seen, "from-n1"))
        check(os.path.exists(os.path.join(seen, "from-n1")), "what n1 writes in a seen folder is not there")
        for node in lab.nodes[1:]:
            names = lab.mini("node-exec", node, "ls", "/tmp").stdout.splitlines()
            check(os.path.basename(seen) in names, f"{node} does not see {seen}: {names}")
            check("swax-mark" not in names and os.path.basename(other) not in names,
                  f"/tmp is shared with {node}: {names}")


def of_jobs(lab, seen):
    wait_until(lambda: sorted(lab.out("srun", "-N4", "hostname", must=False).split()) == lab.nodes, 30,
               "srun over 4 nodes says their names")
    check(lab.run("getent", "hosts", "n1", must=False).returncode != 0, "n1 is resolved")
    script = os.path.join(lab.work, "job.sh")
    with open(script, "w") as file:
        file.write("#!/bin/bash\nexec srun sleep 300\n")
    job = lab.sbatch("--requeue", "-N2", "-o", os.path.join(lab.work, "job.out"), script)
    lab.wait_state(job, "RUNNING", 60)
    victim = lab.job(job)["BatchHost"]
    lab.mini("kill-node", victim)
    lab.mini("wait-state", victim, "down", "60")
    again = wait_until(lambda: lab.state(job) == "RUNNING" and lab.job(job), 120,
                       "the job runs again")
    check(again["Restarts"] == "1", f"restarts: {again['Restarts']}")
    check(again["BatchHost"] != victim, f"it runs on {victim}, which is down")
    lab.mini("start-node", victim)
    lab.mini("wait-state", victim, "idle", "60")
    check("from-n1" in lab.mini("node-exec", victim, "ls", seen).stdout, f"{victim} lost sight of {seen}")
    lab.run("scancel", job)
    lab.wait_state(job, "CANCELLED", 30)


if __name__ == "__main__":
    sys.exit(slurm_lab.main("slurm_cluster", test))
