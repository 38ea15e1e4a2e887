"""Goal: `sbatch train.sbatch JOB.toml` trains the quickstart model with 4 ranks on 2 of 4 nodes to the
digest of one machine, and its output ends with the result; a second sbatch of the same state shows it.
Method: the script of ops/slurm as it stands there, on nodes that resolve no names and share no /tmp."""
import sys

import slurm_lab
from slurm_lab import check, e2e

STEPS = 40 if e2e.FULL else 8
CHANGES = {"training.steps": STEPS, "lr_scheduler.warmup_steps": 2, "parallelism.ranks": 4,
           "validation.freq": 0, "checkpoint.interval": 4}


def test(bin_folder):
    with slurm_lab.Lab() as lab:
        training = slurm_lab.Training(lab, bin_folder, "quick", "quickstart", CHANGES)
        alone = slurm_lab.one_machine(bin_folder, training.spec, lab.work + "/alone", ranks=1)
        training.sbatch("-N2", "--cpus-per-task=2")
        training.expect_digest(alone["digest"])
        check("SUCCEEDED" in training.log(), f"the output has no result\n{training.log()}")
        places = [e["text"] for e in training.events("attempt_started")]
        check(len(places) == 1 and places[0].startswith("4 ranks: 2 on "), f"attempts: {places}")
        training.sbatch("-N1")
        training.expect_digest(alone["digest"], seconds=60)
        check(len(training.events("attempt_started")) == 1, "the second sbatch trained again")


if __name__ == "__main__":
    sys.exit(slurm_lab.main("slurm_train", test))
