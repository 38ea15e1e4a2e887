"""A real Slurm of 4 emulated nodes (mini_slurm.sh) for tests, with swax in it. Each test starts a
cluster of its own, in namespaces of its own, and ends it by the pid of its first process."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
import swax_e2e as e2e  # noqa: E402
from swax_e2e import Failure, check, say, wait_until  # noqa: E402,F401

MINI = os.path.join(HERE, "mini_slurm.sh")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "munged", "ip", "nft", "unshare",
            "nsenter", "setsid")
REPEATABLE = ("scontrol", "squeue", "scancel")
SILENCE = ("timed out", "Unable to contact slurm controller")
RECOVERY_SECONDS = 10.0  # until the first step of the next attempt after a node is lost
# What a Slurm job is when nothing more comes.
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "DEADLINE", "OUT_OF_MEMORY")
# A power cut shows to Slurm after 5-6 s; a requeued job begins again after 6 s.
KNOBS = {"SLURMD_TIMEOUT": "2", "MESSAGE_TIMEOUT": "1", "KILL_WAIT": "3", "LIFETIME": "900"}


def wait_for(condition, seconds, what, pause=0.2):
    """As wait_until, for what costs a process or a long read: it must not slow the ranks down."""
    return wait_until(condition, seconds, what, pause)


def reason_to_skip():
    if os.geteuid() != 0:
        return "a Slurm cluster of namespaces needs root"
    try:
        with open("/etc/os-release") as file:
            system = dict(line.rstrip("\n").split("=", 1) for line in file if "=" in line)
    except OSError:
        system = {}
    if system.get("ID") != "debian" or system.get("VERSION_ID", "").strip('"') != "12":
        return "only Debian 12 has the Slurm that is meant (22.05)"
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        return f"{', '.join(missing)} not found: ops/setup.sh installs them"
    probe = subprocess.run(["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "true"],
                           capture_output=True, check=False)
    if probe.returncode != 0:
        return "this system allows no namespaces"
    return None


class Lab:
    """One cluster. Nodes are n1..n4; the file system is shared, /tmp is not, but for the folders of
    `seen` that lie there."""

    def __init__(self, nodes=4, seen=(), **knobs):
        self.folder = tempfile.mkdtemp(prefix="swax-slurm-", dir="/var/tmp")
        os.chmod(self.folder, 0o755)  # munged wants the way to its socket open
        self.cluster = os.path.join(self.folder, "c")
        self.work = os.path.join(self.folder, "work")
        os.makedirs(self.work)
        environment = {**os.environ, **KNOBS, **{k: str(v) for k, v in knobs.items()}}
        # What was built below /tmp must be there on the nodes too.
        seen = {os.path.realpath(path) for path in (e2e.SOURCE, sys.argv[1], *seen)}
        environment["SEEN"] = ":".join(sorted(p for p in seen if p.startswith("/tmp/")))
        environment["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        self.environment = {k: v for k, v in environment.items()
                            if not k.startswith(("SWAX_", "SLURM_", "OMPI_", "SBATCH_"))}
        self.environment["PYTHONDONTWRITEBYTECODE"] = "1"
        self.nodes = [f"n{i}" for i in range(1, nodes + 1)]
        self.mini("start", str(nodes), timeout=400)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            say(self.report())
        self.mini("stop", timeout=60, must=False)
        if os.environ.get("SWAX_TEST_KEEP") != "1":
            shutil.rmtree(self.folder, ignore_errors=True)

    def mini(self, verb, *words, timeout=120, must=True, cwd=None, env=None):
        done = subprocess.run(["bash", MINI, verb, self.cluster, *words], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=timeout, check=False,
                              env={**self.environment, **(env or {})}, cwd=cwd or self.work)
        check(done.returncode == 0 or not must,
              f"{verb} {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    # ---- on the head ----
    def run(self, *words, must=True, timeout=120, env=None):
        """Slurm's own programs wait for the controller as long as MESSAGE_TIMEOUT says: what may be
        asked twice is asked again when the machine stood still for so long."""
        for again in range(5, -1, -1):
            done = self.mini("exec", *words, must=False, timeout=timeout, env=env)
            silent = words[0] in REPEATABLE and any(said in done.stderr for said in SILENCE)
            if done.returncode == 0 or not silent or not again:
                break
            time.sleep(1)
        check(done.returncode == 0 or not must,
              f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def out(self, *words, **options):
        return self.run(*words, **options).stdout.strip()

    def start(self, *words, log, env=None):
        """A process on the head that goes on; its Popen. End it by its pid."""
        with open(log, "ab") as file:
            return subprocess.Popen(["bash", MINI, "exec", self.cluster, *words],
                                    stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                    env={**self.environment, **(env or {})}, cwd=self.work,
                                    start_new_session=True)

    def slow_links(self, rate):
        """At a rate like "80mbit": what leaves a node or comes to it takes its time. Steps of several nodes then
        take as long on any machine, and training is long enough for what is to happen in it."""
        for node in self.nodes:
            self.mini("slow", node, rate)

    # ---- Slurm's jobs ----
    def sbatch(self, *words, env=None):
        return self.out("sbatch", "--parsable", *words, env=env).split(";")[0]

    def job(self, job):
        """scontrol's fields of a job; empty once Slurm has forgotten it."""
        done = self.run("scontrol", "-o", "show", "job", job, must=False)
        return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)

    def state(self, job):
        return self.job(job).get("JobState", "")

    def wait_state(self, job, states, seconds):
        states = (states,) if isinstance(states, str) else states
        seen = []

        def reached():
            seen.append(self.state(job))
            return seen[-1] in states

        try:
            wait_for(reached, seconds, f"Slurm job {job} is {' or '.join(states)}")
        except Failure as failure:
            raise Failure(f"{failure}; it is {seen[-1]}") from None
        return seen[-1]

    def exit_code(self, job):
        """Of the script: '0:0' is exit code 0, no signal."""
        return self.job(job).get("ExitCode", "")

    def queue(self):
        return [line.split("|") for line in
                self.out("squeue", "-h", "-t", "all", "-o", "%i|%T|%k").splitlines()]

    def processes_of(self, node, name):
        done = self.mini("node-exec", node, "pgrep", "-x", name, must=False)
        return [int(word) for word in done.stdout.split()]

    def report(self):
        text = self.mini("status", must=False).stdout
        for name in sorted(os.listdir(self.work)):
            path = os.path.join(self.work, name)
            if os.path.isfile(path) and name.endswith((".log", ".out", ".err")):
                lines = e2e.read(path).decode(errors="replace").splitlines()[-60:]
                text += f"--- {name}\n" + "\n".join(lines) + "\n"
        return text


def main(name, test):
    """Runs test(bin_folder); prints why when it cannot be run or fails."""
    reason = reason_to_skip()
    if reason:
        say(f"SKIPPED {name}: {reason}")
        return e2e.SKIPPED
    began = time.monotonic()
    try:
        test(os.path.realpath(sys.argv[1]))
    except (Failure, subprocess.TimeoutExpired) as failure:
        say(f"FAILED {name}: {failure}")
        return 1
    say(f"{name}: passed in {time.monotonic() - began:.0f} s")
    return 0


def read_json(text):
    lines = [line for line in text.splitlines() if line.startswith("{")]
    check(lines, f"no JSON object in: {text}")
    return json.loads(lines[-1])


# ---- swax in the cluster ---------------------------------------------------------------------------

def write_spec(path, preset, changes):
    """jobs/PRESET.toml with keys ("training.steps") set to TOML values."""
    with open(os.path.join(e2e.SOURCE, "jobs", preset + ".toml")) as file:
        lines = file.read().splitlines()
    for name, value in changes.items():
        section, key = name.split(".")
        text = f"{key} = {json.dumps(value)}"
        header = f"[{section}]"
        if header not in lines:
            lines += ["", header]
        at = begin = lines.index(header) + 1
        while at < len(lines) and not lines[at].startswith("["):
            if lines[at].split("=")[0].strip() == key:
                lines[at] = text
                break
            at += 1
        else:
            lines.insert(begin, text)
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


def one_machine(bin_folder, spec, state, ranks=2):
    """The result of `swax run` of the spec on this machine, without Slurm."""
    done = subprocess.run([os.path.join(bin_folder, "swax"), "run", spec, "--state", state,
                           "--ranks", str(ranks), "-o", "json"], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=500, check=False)
    check(done.returncode == 0, f"swax run: exit code {done.returncode}\n{done.stderr}")
    return read_json(done.stdout)


class Training:
    """One self-contained training job, submitted through `swax slurm submit` or by hand. Its state
    folder is read as `swax run` left one: by the verbs that take --state."""

    def __init__(self, lab, bin_folder, name, preset, changes):
        self.lab, self.swax = lab, os.path.join(bin_folder, "swax")
        self.spec = os.path.join(lab.work, name + ".toml")
        self.state = os.path.join(lab.work, "state-" + name)
        self.name = changes.get("job.name", preset)
        self.log_path = None
        self.job = None
        write_spec(self.spec, preset, changes)

    @property
    def folder(self):
        return os.path.join(self.state, "store", "jobs", self.name)

    def submit(self, *words, env=None):
        out = self.lab.out(self.swax, "slurm", "submit", "job", self.spec, "--state", self.state,
                           "-o", "json", *words, env=env)
        self.job = str(read_json(out)["slurm_job"])
        self.log_path = os.path.join(self.lab.work, f"swax-{self.name}-{self.job}.out")
        return self.job

    def sbatch(self, *words):
        """The script of ops/slurm as it stands there."""
        script = os.path.join(e2e.SOURCE, "ops", "slurm", "train.sbatch")
        self.log_path = os.path.join(self.lab.work, "train.out")
        self.job = self.lab.sbatch(*words, "-o", self.log_path, script, self.spec, self.state,
                                   env={"SWAX": self.swax})
        return self.job

    def log(self):
        return e2e.read(self.log_path).decode(errors="replace")

    def step(self):
        return e2e.newest_step(self.folder)

    def wait_step(self, step, seconds=90):
        looked = [time.monotonic()]

        def there():
            if self.step() >= step:
                return True
            if time.monotonic() - looked[0] < 2:
                return False
            looked[0] = time.monotonic()
            return self.lab.state(self.job) in OVER

        wait_for(there, seconds, f"step {step}", pause=0.1)
        check(self.step() >= step, f"ended before step {step}\n{self.log()}")

    def result(self, seconds=400, code="0:0"):
        """The result that stands last in the job's output; the script must end with the code."""
        self.lab.wait_state(self.job, OVER, seconds)
        check(self.lab.exit_code(self.job) == code,
              f"exit code {self.lab.exit_code(self.job)}, must be {code}\n{self.log()}")
        return json.loads(self.ask("status", "--state", self.state, "-o", "json"))

    def ask(self, *words):
        done = subprocess.run([self.swax, *words], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=60, check=False)
        check(done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    def events(self, kind=None):
        events = json.loads(self.ask("events", "--state", self.state, "-o", "json"))
        return [e for e in events if kind is None or e["kind"] == kind]

    def interrupt(self, what, how):
        """how() ends the running attempt, whose number is given back; the next one must make its first
        step in time."""
        self.wait_step(self.step() + 25)
        epoch = max(e2e.epochs(self.folder))
        before_ms = time.time() * 1000
        how()
        lost_ms, patience = time.time() * 1000, e2e.Patience(90)
        while not (when := first_report_after(self.folder, epoch + 1, before_ms)):
            check(not patience.over(), f"no step of attempt {epoch + 1}")
            time.sleep(0.1)
        patience.over()
        seconds = (when - lost_ms) / 1000 - patience.stood_still
        say(f"{what}: first step of the next attempt after {seconds:.1f} s")
        check(seconds <= RECOVERY_SECONDS, f"longer than {RECOVERY_SECONDS:.0f} s: {seconds:.1f} s")
        return epoch

    def lose(self, how, node):
        """Power cut, cut cable, ...: the event of the attempt's end must name the node."""
        epoch = self.interrupt(f"{how} {node}", lambda: self.lab.mini(how, node))
        ends = [e for e in self.events("attempt_ended") if e["attempt"] == epoch]
        check(ends and ends[0]["fields"]["node"].startswith(node + "-"),
              f"the end of attempt {epoch} does not name {node}: {ends}")

    def expect_digest(self, digest, seconds=400):
        got = self.result(seconds)["digest"]
        check(got == digest, f"digest {got}, on one machine {digest}\n{self.log()}")


def first_report_after(folder, epoch, wall_ms):
    """When (wall ms) the attempt made its first step at or after that time; None: not yet."""
    for report in e2e.reports(folder, epoch):
        if 2 in report:
            when = e2e.fields(report[2]).get(10, 0)
            if when >= wall_ms:
                return when
    return None
