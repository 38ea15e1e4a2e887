"""Goal: a pool of four nodes runs three jobs of different sizes at once and is drained node by node
while they run; each ends with its own digest, which is that of one machine.
Method: a coordinator on the head, workers in Slurm jobs of one node each; every node is drained by TERM
to its batch script and replaced by a new Slurm job on the node that it left."""
import json
import os
import sys

import slurm_lab
from slurm_lab import check, wait_for

SIZES = {"small": 1, "middle": 2, "large": 3}
# Alone a job must train for so long, that is longer than two nodes take to be drained, on any machine.
ALONE_SECONDS, STEPS_MIN = 9, 450
CHANGES = {"training.seq_len": 128, "training.global_batch_size": 8,
           "checkpoint.interval": 50, "validation.sequences": 4,
           "resources.ranks_per_node": 2, "resources.cpus_per_rank": 1}  # two slots a node


class Pool:
    def __init__(self, lab, bin_folder):
        self.lab, self.swax = lab, os.path.join(bin_folder, "swax")
        self.address = "tcp://10.77.0.250:7000"
        self.state = os.path.join(lab.work, "service")
        lab.start(self.swax, "coordinator", "--state", self.state, "--listen", self.address,
                  "--insecure", log=os.path.join(lab.work, "coordinator.log"))

    def ask(self, *words, timeout=500):
        done = self.lab.run(self.swax, *words, "--coordinator", self.address, timeout=timeout)
        return done.stdout

    def job(self, name):
        return json.loads(self.ask("status", name, "-o", "json"))

    def add(self, spec, nodes):
        out = self.ask("slurm", "submit", "pool", spec, "--set", f"resources.nodes={nodes}",
                       "--state", self.state, "-o", "json")
        return str(slurm_lab.read_json(out)["slurm_job"])

    def nodes(self):
        nodes = json.loads(self.ask("nodes", "-o", "json"))["nodes"]
        return {n["node"] for n in nodes if n["state"] in ("IDLE", "ALLOCATED")}

    def wait_nodes(self, count):
        wait_for(lambda: len(self.nodes()) == count, 120, f"{count} workers")


def long_enough(lab, bin_folder):
    """Steps of ALONE_SECONDS."""
    spec = os.path.join(lab.work, "probe.toml")
    slurm_lab.write_spec(spec, "micro", {**CHANGES, "training.steps": 60})
    probe = slurm_lab.one_machine(bin_folder, spec, os.path.join(lab.work, "probe"))
    tokens = CHANGES["training.seq_len"] * CHANGES["training.global_batch_size"]
    return max(STEPS_MIN, int(ALONE_SECONDS * probe["tokens_per_s"] / tokens))


def test(bin_folder):
    with slurm_lab.Lab() as lab:
        pool = Pool(lab, bin_folder)
        specs, alone = {}, {}
        steps = long_enough(lab, bin_folder)
        for seed, (name, ranks) in enumerate(SIZES.items(), 1):
            specs[name] = os.path.join(lab.work, name + ".toml")
            slurm_lab.write_spec(specs[name], "micro", {
                **CHANGES, "training.steps": steps, "job.name": name, "job.seed": seed,
                "parallelism.ranks": ranks})
            alone[name] = slurm_lab.one_machine(bin_folder, specs[name],
                                                os.path.join(lab.work, "alone-" + name), ranks=1)
        first = pool.add(specs["small"], 4)
        pool.wait_nodes(4)
        before = pool.nodes()
        for name in SIZES:
            pool.ask("submit", specs[name])
        wait_for(lambda: all(pool.job(name)["state"] == "RUNNING" for name in SIZES), 120,
                 "three jobs run")
        for index in (1, 2, 3, 4):
            left = f"{first}_{index}"
            lab.run("scancel", "--batch", "--signal=TERM", left)
            lab.wait_state(left, "COMPLETED", 120)
            pool.add(specs["small"], 1)
            pool.wait_nodes(4)
        check(not pool.nodes() & before, f"not drained: {pool.nodes() & before}")
        moved = {name: pool.job(name)["restarts"] for name in SIZES}
        slurm_lab.say(f"restarts after four nodes were drained: {moved}")
        check(sum(moved.values()) >= 3, f"jobs had ended before their nodes were drained: {moved}")
        for name in SIZES:
            result = slurm_lab.read_json(pool.ask("wait", name, "-o", "json"))
            check(result["digest"] == alone[name]["digest"], f"{name}: another digest")
        check(len({r["digest"] for r in alone.values()}) == 3, "three jobs, equal digests")


if __name__ == "__main__":
    sys.exit(slurm_lab.main("slurm_pool", test))
