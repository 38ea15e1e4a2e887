"""Goal: with [resources] launcher = "srun" a gang of 4 ranks on 2 of 4 nodes trains to the digest of one
machine, whatever is killed in between: one rank, the lead's worker (which takes srun along), and one node's
power. Nothing of an ended attempt is left anywhere, and the next one goes on from the checkpoint.
Method: one self-contained job of two nodes and two spare ones, slow links; the processes of all nodes are looked at."""
import os
import sys

import slurm_lab
from slurm_lab import check, e2e, say, wait_for

CHANGES = {"training.steps": 400 if e2e.FULL else 150, "training.seq_len": 128, "training.global_batch_size": 4,
           "checkpoint.interval": 20, "validation.sequences": 4, "parallelism.ranks": 4,
           "parallelism.allowed_ranks": [2, 4], "resources.ranks_per_node": 2, "resources.nodes": 2,
           "resources.spare_nodes": 2}
# Of each process that carries an attempt's mark: name, attempt, node, rank as Slurm numbers it, pid.
LIST = r"""for p in /proc/[0-9]*; do
  e=$(tr '\0' '\n' <$p/environ 2>/dev/null) || continue
  case $e in *SWAX_EPOCH=*) ;; *) continue ;; esac
  v() { echo "$e" | sed -n "s/^$1=//p" | tail -1; }
  echo "$(cat $p/comm) $(v SWAX_EPOCH) $(v SWAX_WORKER) $(v PMIX_RANK) ${p#/proc/}"
done; true"""


def processes(lab, node):
    done = lab.mini("node-exec", node, "sh", "-c", LIST, must=False)
    return [line.split() for line in done.stdout.splitlines()]


def ranks_of(lab, training):
    """rank -> (node, pid) of the newest attempt."""
    newest = str(max(e2e.epochs(training.folder)))
    found = {}
    for node in lab.nodes:
        for words in processes(lab, node):
            if words[0] == "swax-train" and words[1] == newest:
                check(words[2].startswith(node + "-"), f"a rank on {node} serves {words[2]}")
                found[int(words[3])] = (node, words[4])
    return found


def check_nothing_left(lab, nodes, epoch):
    def gone():
        left = [(node, words) for node in nodes for words in processes(lab, node)
                if words[1] == str(epoch)]
        return left == [] or say(f"left of attempt {epoch}: {left}")
    wait_for(gone, 20, f"nothing is left of attempt {epoch}", pause=0.5)


def end_attempt(lab, training, how, nodes):
    """Ends the running attempt by how(); the next must make a step in time."""
    epoch = training.interrupt(how.__name__, how)
    check_nothing_left(lab, nodes, epoch)


def test(bin_folder):
    with slurm_lab.Lab() as lab:
        lab.slow_links("80mbit")
        plain = os.path.join(lab.work, "plain.toml")  # srun starts nothing outside a Slurm job
        slurm_lab.write_spec(plain, "micro", CHANGES)
        alone = slurm_lab.one_machine(bin_folder, plain, lab.work + "/alone")
        training = slurm_lab.Training(lab, bin_folder, "srun", "micro",
                                      {**CHANGES, "resources.launcher": "srun"})
        training.submit()
        training.wait_step(1)
        ranks = ranks_of(lab, training)
        nodes = [ranks[r][0] for r in sorted(ranks)]
        check(nodes[0] == nodes[1] and nodes[2] == nodes[3] and nodes[0] != nodes[2],
              f"ranks by node: {ranks}")
        events = training.events("attempt_started")
        check(events[0]["text"].startswith("4 ranks: 2 on "), f"attempts: {events}")

        def kill_rank():
            node, pid = ranks[3]
            lab.mini("node-exec", node, "kill", "-9", pid)
        end_attempt(lab, training, kill_rank, lab.nodes)
        ends = [e for e in training.events("attempt_ended") if e["attempt"] == 1]
        check(ends[0]["fields"]["rank"] == "3" and ends[0]["text"].startswith("signal"),
              f"not blamed on rank 3: {ends}")

        ranks = ranks_of(lab, training)
        lead = ranks[0][0]

        def kill_worker():
            worker, = [p for p in lab.processes_of(lead, "swax")
                       if "worker" in lab.mini("node-exec", lead, "cat", f"/proc/{p}/cmdline").stdout]
            lab.mini("node-exec", lead, "kill", "-9", str(worker))
        end_attempt(lab, training, kill_worker, lab.nodes)

        ranks = ranks_of(lab, training)
        # Never the node of the batch script: that would be a requeue, another test's matter.
        victim = [node for node, _ in ranks.values() if node != "n1"][-1]
        others = [n for n in lab.nodes if n != victim]

        def cut_power():
            lab.mini("kill-node", victim)
        end_attempt(lab, training, cut_power, others)
        training.expect_digest(alone["digest"])
        check(lab.job(training.job)["Restarts"] == "0", "it was requeued")
        for node in others:
            wait_for(lambda n=node: processes(lab, n) == [], 40, f"nothing is left on {node}")


if __name__ == "__main__":
    sys.exit(slurm_lab.main("slurm_srun", test))
