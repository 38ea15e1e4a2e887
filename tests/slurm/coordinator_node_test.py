"""Goal: Slurm's controller is killed and started again, the coordinator is killed, and both: training
goes on, what it saves is recorded, and nothing is submitted or started twice. When the node of the
coordinator loses power, the job is requeued and the same training goes on to the digest of one machine.
Method: two nodes of one rank each and slow links; kill -9, then a power cut of the batch host."""
import sys
import time

import slurm_lab
from slurm_lab import check, e2e, wait_for

CHANGES = {"training.steps": 300, "training.seq_len": 128, "training.global_batch_size": 4,
           "checkpoint.interval": 10, "validation.sequences": 4, "parallelism.ranks": 2,
           "parallelism.allowed_ranks": [1, 2], "resources.ranks_per_node": 1}


# Slurm's controller writes down what it does with a job 5 s later. Killed before, it starts again in
# ignorance, starts the job once more and holds it when the nodes refuse.
CONTROLLER_SAVES_S = 7


def kill_coordinator(lab, host):
    lines = lab.mini("node-exec", host, "ps", "-eo", "pid,args").stdout.splitlines()
    pids = [line.split()[0] for line in lines if "swax slurm serve" in line]
    check(len(pids) == 1, f"coordinators on {host}: {lines}")
    lab.mini("node-exec", host, "kill", "-9", pids[0])


def goes_on(training, what):
    """A save that begins from now on is made and recorded, by the attempt that runs."""
    step = training.step()
    wait_for(lambda: any(e["step"] > step for e in training.events("checkpoint_committed")), 60,
             f"a save after step {step} is recorded, {what}")
    check(max(e2e.epochs(training.folder)) == 1, f"the attempt was started again, {what}")


def test(bin_folder):
    with slurm_lab.Lab() as lab:
        lab.slow_links("80mbit")
        training = slurm_lab.Training(lab, bin_folder, "head", "micro", CHANGES)
        alone = slurm_lab.one_machine(bin_folder, training.spec, lab.work + "/alone")
        training.submit()
        lab.wait_state(training.job, "RUNNING", 60)
        time.sleep(CONTROLLER_SAVES_S)
        training.wait_step(20)
        host = lab.job(training.job)["BatchHost"]
        lab.mini("kill-ctld")
        goes_on(training, "Slurm's controller killed")
        lab.mini("start-ctld")
        kill_coordinator(lab, host)
        goes_on(training, "coordinator killed")
        lab.mini("kill-ctld")
        kill_coordinator(lab, host)
        goes_on(training, "both killed")
        lab.mini("start-ctld")
        wait_for(lambda: lab.state(training.job) == "RUNNING", 60, "Slurm's controller answers")
        step, began = training.step(), time.monotonic()
        lab.mini("kill-node", host)
        wait_for(lambda: lab.job(training.job).get("Restarts") == "1", 60, "the job is requeued")
        wait_for(lambda: max(e2e.epochs(training.folder)) > 1, 60, "the next attempt begins")
        slurm_lab.say(f"{host} lost at step {step}: next attempt after {time.monotonic() - began:.1f} s")
        training.expect_digest(alone["digest"])
        check(len(lab.queue()) == 1, f"Slurm jobs: {lab.queue()}")
        check(lab.job(training.job)["Restarts"] == "1", "it was requeued again")
        check(len(training.events("submitted")) == 1, "submitted twice")
        check(len(training.events("attempt_started")) == 2, "an attempt too many")


if __name__ == "__main__":
    sys.exit(slurm_lab.main("slurm_coordinator_node", test))
