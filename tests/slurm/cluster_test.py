"""Goal: the emulated cluster behaves as the other slurm tests take for granted: jobs on several nodes,
node names that nothing resolves, a /tmp of its own on every node, and a power cut that requeues a job.
Method: a job over four nodes, one over two whose first node loses power; then that node comes back."""
import os
import sys

import slurm_lab
from slurm_lab import check, wait_until


def test(_):
    with slurm_lab.Lab() as lab:
        wait_until(lambda: sorted(lab.out("srun", "-N4", "hostname", must=False).split()) == lab.nodes,
                   30, "srun over 4 nodes says their names")
        lab.mini("node-exec", "n1", "touch", "/tmp/swax-mark")
        seen = lab.mini("node-exec", "n2", "ls", "/tmp").stdout.split()
        check("swax-mark" not in seen, f"/tmp is shared: {seen}")
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
        lab.run("scancel", job)
        lab.wait_state(job, "CANCELLED", 30)


if __name__ == "__main__":
    sys.exit(slurm_lab.main("slurm_cluster", test))
