"""Goal: a node that loses power is replaced inside the allocation, first by a spare one, then by fewer
ranks; each time the next attempt makes a step within 10 s. When nothing is left that may run, the job
is requeued without the lost node. The digest is that of one machine and the events name the node.
Method: one rank a node, slow links; three nodes of which one is a spare lose two; then two that must be two."""
import sys

import slurm_lab
from slurm_lab import check

CHANGES = {"training.steps": 200, "training.seq_len": 128, "training.global_batch_size": 4,
           "checkpoint.interval": 20, "validation.sequences": 4, "parallelism.ranks": 2,
           "resources.ranks_per_node": 1}


def test(bin_folder):
    with slurm_lab.Lab() as lab:
        lab.slow_links("80mbit")
        spare = slurm_lab.Training(lab, bin_folder, "spare", "micro", {
            **CHANGES, "parallelism.allowed_ranks": [1, 2], "resources.spare_nodes": 1})
        alone = slurm_lab.one_machine(bin_folder, spare.spec, lab.work + "/alone")
        spare.submit()
        for node in ("n2", "n3"):
            spare.lose("kill-node", node)
        spare.expect_digest(alone["digest"])
        check(lab.job(spare.job)["Restarts"] == "0", "it was requeued")
        places = [e["text"].split(":")[0] for e in spare.events("attempt_started")]
        check(places == ["2 ranks", "2 ranks", "1 rank"], f"attempts: {places}")
        for node in ("n2", "n3"):
            lab.mini("start-node", node)
            lab.mini("wait-state", node, "idle", "60")
        fixed = slurm_lab.Training(lab, bin_folder, "fixed", "micro", {
            **CHANGES, "parallelism.allowed_ranks": [2]})
        fixed.submit()
        fixed.wait_step(25)
        lab.mini("kill-node", "n2")
        fixed.expect_digest(alone["digest"])
        job = lab.job(fixed.job)
        check(job["Restarts"] == "1", f"requeued {job['Restarts']} times")
        check(job["ExcNodeList"] == "n2", f"left out: {job['ExcNodeList']}")
        places = [e["text"].split(":")[0] for e in fixed.events("attempt_started")]
        check(places == ["2 ranks", "2 ranks"], f"attempts: {places}")


if __name__ == "__main__":
    sys.exit(slurm_lab.main("slurm_node_loss", test))
