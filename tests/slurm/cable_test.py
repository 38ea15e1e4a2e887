"""Goal: a node whose cable is pulled, and one whose packets are silently dropped, are replaced by spare
nodes within 10 s. Cut off, they end their ranks; reached again, nothing of the old attempts runs there,
their old selves are nobody's workers any more, and the digest is right.
Method: two ranks on four nodes with slow links; n2 is cut and its spare n3 dropped while training; both
are healed."""
import sys

import slurm_lab
from slurm_lab import check, wait_for

CHANGES = {"training.steps": 200, "training.seq_len": 128, "training.global_batch_size": 4,
           "checkpoint.interval": 20, "validation.sequences": 4, "parallelism.ranks": 2,
           "parallelism.allowed_ranks": [1, 2], "resources.ranks_per_node": 1,
           "resources.spare_nodes": 2}


def test(bin_folder):
    with slurm_lab.Lab() as lab:
        lab.slow_links("80mbit")
        training = slurm_lab.Training(lab, bin_folder, "cable", "micro", CHANGES)
        alone = slurm_lab.one_machine(bin_folder, training.spec, lab.work + "/alone")
        training.submit()
        training.lose("cut", "n2")
        training.lose("drop", "n3")
        for node in ("n2", "n3"):
            wait_for(lambda n=node: not lab.processes_of(n, "swax-train"), 40, f"ranks on {node} end")
        lab.mini("heal", "n2")
        lab.mini("undrop", "n3")
        training.expect_digest(alone["digest"])
        for node in lab.nodes:
            lab.mini("wait-state", node, "idle", "60")
            wait_for(lambda n=node: not lab.processes_of(n, "swax"), 40, f"worker on {node} ends")
        check(len(training.events("attempt_started")) == 3, "attempts: " + str(
            [e["text"] for e in training.events("attempt_started")]))
        check(lab.job(training.job)["Restarts"] == "0", "it was requeued")


if __name__ == "__main__":
    sys.exit(slurm_lab.main("slurm_cable", test))
