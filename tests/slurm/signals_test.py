"""Goal: whatever Slurm sends before it takes the nodes away, and however often, the ranks save once,
the job is requeued once and goes on at the step where it stopped; the digest is that of one machine.
Method: USR1 to the batch script (a time limit), TERM to the tasks (preemption's notice), all of it at
once and twice, each in the middle of training; then preemption by a partition of higher priority."""
import sys
import time

import slurm_lab
from slurm_lab import check, e2e, wait_for

CHANGES = {"training.steps": 200, "training.seq_len": 128, "training.global_batch_size": 4,
           "checkpoint.interval": 10000, "validation.sequences": 4, "parallelism.ranks": 2,
           "parallelism.allowed_ranks": [1, 2], "resources.ranks_per_node": 1}
PREEMPTION = ("PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF\n"
              "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE")


def usr1(lab, job):
    lab.run("scancel", "--batch", "--signal=USR1", job)


def term(lab, job):
    lab.run("scancel", "--signal=TERM", job)


def both_twice(lab, job):
    """The later ones may come when the ranks have left."""
    usr1(lab, job)
    for words in (("--signal=TERM",), ("--signal=TERM",), ("--batch", "--signal=USR1")):
        lab.run("scancel", *words, job, must=False)


def preempt(lab, _):
    lab.sbatch("-p", "high", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 2")


def stop_and_go(lab, training, send, number):
    training.wait_step(training.step() + 20)
    old = max(e2e.epochs(training.folder))
    began = time.monotonic()
    send(lab, training.job)
    wait_for(lambda: lab.job(training.job).get("Restarts") == str(number), 60,
             f"requeue {number} of job {training.job}")
    wait_for(lambda: max(e2e.start_steps(training.folder)) > old, 90, "the next attempt has loaded")
    slurm_lab.say(f"{send.__name__}: goes on after {time.monotonic() - began:.1f} s")
    stopped = max(e2e.fields(r[2]).get(1, 0) for r in e2e.reports(training.folder, old) if 2 in r)
    starts = e2e.start_steps(training.folder)
    check(max(starts) == old + 1, f"attempts: {starts}")
    check(starts[old + 1] == stopped,
          f"attempt {old} stopped at step {stopped}, the next begins at {starts[old + 1]}")
    saves = [e["step"] for e in training.events("checkpoint_committed") if e["attempt"] == old]
    check(saves == [stopped], f"attempt {old} saved at steps {saves}")


def test(bin_folder):
    with slurm_lab.Lab(nodes=2, EXTRA_CONF=PREEMPTION) as lab:
        lab.slow_links("80mbit")
        lab.run("scontrol", "update", "PartitionName=main", "GraceTime=5")
        training = slurm_lab.Training(lab, bin_folder, "signals", "micro", CHANGES)
        alone = slurm_lab.one_machine(bin_folder, training.spec, lab.work + "/alone")
        training.submit()
        for number, send in enumerate((usr1, term, both_twice, preempt), 1):
            stop_and_go(lab, training, send, number)
        training.expect_digest(alone["digest"])
        check(lab.job(training.job)["Restarts"] == "4", "requeued more often than told to leave")
        check(len(lab.queue()) == 2, f"not one training and one that preempts: {lab.queue()}")


if __name__ == "__main__":
    sys.exit(slurm_lab.main("slurm_signals", test))
