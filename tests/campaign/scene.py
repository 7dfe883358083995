"""One run of the campaign in its own folder: started, watched and cleaned up."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

import host

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../jobs"))
from jobs import job_file

NETWORK_RUN = """train: {{epochs: 100000000, log_every: {log_every}}}
parallel: {{mode: data_parallel}}
launch: {{ranks: {ranks}, device: {device}, comm: {comm}, grace: {grace}s, timeout: {timeout}s, log_dir: {logs}, max_restarts: {restarts}}}
"""

COMMAND = """name: campaign
command: [sh, -c, "{script}"]
launch: {{ranks: {ranks}, grace: {grace}s, log_dir: {logs}, max_restarts: {restarts}}}
"""

PATIENCE = 600  # seconds after which something hangs; nothing is expected to take that long on any machine

WORK = "echo ready; while :; do sleep 0.05; done"
# The first rank's lines are shown, and the launcher's own output is a file too.
CHATTER = "echo ready; [ $RANK = 0 ] && sleep 1000; while :; do echo a line of some length that fills the disk before long; sleep 0.01; done"
SCRIPTS = {
    "command": WORK,
    "deaf": "trap '' TERM; " + WORK,
    "escaping": "setsid sleep 1000 & " + WORK,
}


def log_bytes(ranks):
    """Room for the run's files and the first pages of every rank's, and not for much more."""
    return (128 + 32 * ranks) << 10


class Scene:
    def __init__(self, options, kind, job, ranks, rng):
        self.options, self.kind, self.job, self.ranks, self.rng = options, kind, job, ranks, rng
        self.grace, self.timeout = options.grace, options.timeout
        self.network = job in ("shm", "gloo")
        self.mark = uuid.UUID(int=rng.getrandbits(128)).hex
        self.folder = tempfile.mkdtemp(prefix="trainctl-campaign-")
        self.logs = self.folder + "/logs"
        self.mounted = False
        self.closed = 0
        self.listening = {}
        self.ordered_rank = rng.randrange(ranks)
        self.shared_memory = set(os.listdir("/dev/shm"))
        self.gpu_memory = host.gpu_memory() if options.device == "cuda" else []
        self.launcher = None
        os.mkdir(self.logs)
        try:
            self.start()
        except BaseException:
            self.clean_up(keep=False)
            raise

    def start(self):
        environment = dict(os.environ, **{host.MARK: self.mark, "OMP_NUM_THREADS": "1"})
        limit = None
        if self.kind.full_disk and self.network:
            self.mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={log_bytes(self.ranks)}", "none", self.logs],
                                          stderr=subprocess.DEVNULL).returncode == 0
        elif self.kind.full_disk:
            limit = self.limit_files
        if self.kind.order and self.network:
            step = 0 if self.kind.name == "never starts" else self.rng.randint(1, 40)
            environment["TRAINCTL_TEST_FAULT"] = f"{self.ordered_rank}:{step}:{self.kind.order}"
        with open(self.folder + "/job.yaml", "w") as file:
            file.write(self.job_text())
        with open(self.folder + "/out", "w") as out, open(self.folder + "/err", "w") as err:
            self.launcher = subprocess.Popen([self.options.trainctl, "run", "job.yaml", *(["dataset.batch=16"] if self.network else [])], cwd=self.folder, stdin=subprocess.DEVNULL,
                                             stdout=out, stderr=err, env=environment, preexec_fn=limit)
        self.started = time.monotonic()

    @staticmethod
    def limit_files():
        """Writes beyond it fail with EFBIG. Not for networks: their shared memory counts as a file."""
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, 16 << 10))

    def job_text(self):
        values = dict(ranks=self.ranks, grace=self.grace, logs=self.logs, restarts=self.kind.restarts)
        if self.network:
            comm = self.job if self.options.device == "cpu" else "auto"  # GPUs have one communicator
            return job_file("small").read_text() + NETWORK_RUN.format(device=self.options.device, comm=comm, timeout=self.timeout, log_every=1 if self.kind.full_disk else 10, **values)
        script = CHATTER if self.kind.full_disk else SCRIPTS[self.job]
        if self.kind.order:
            code = self.kind.order.removeprefix("exit")
            script = f"[ $RANK = {self.ordered_rank} ] && {{ sleep 0.{self.rng.randint(0, 20):02}; echo ready; exit {code}; }}; " + script
        return COMMAND.format(script=script, **values)

    # Waiting.

    def wait_for(self, what, holds, seconds=PATIENCE):
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {seconds:.0f} s in vain for {what}")
            if self.launcher.poll() is not None and not holds():
                raise AssertionError(f"the launcher ended ({self.launcher.returncode}) before {what}")
            time.sleep(0.002)

    def wait_for_end(self, seconds=PATIENCE):
        deadline = time.monotonic() + seconds
        while self.launcher.poll() is None and time.monotonic() < deadline:
            self.note_sockets()
            time.sleep(0.02)
        if self.launcher.poll() is None:
            raise AssertionError(f"the run did not end within {seconds:.0f} s")

    def reach(self, when):
        """start: the launcher has run for at most 50 ms; running: every rank is at work."""
        if when == "start":
            time.sleep(self.rng.uniform(0, 0.05))
            return
        self.wait_for("all ranks at work", lambda: all(self.at_work(rank) for rank in range(self.ranks)))
        self.note_sockets()
        time.sleep(self.rng.uniform(0, 0.3))

    def at_work(self, rank):
        text = host.read(f"{self.logs}/1/rank.{rank}/stdout")
        return b"step: " in text if self.network else b"ready" in text

    def victim(self, when):
        """A rank for a fault: a random one of those that exist; at start, at most 50 ms after it was started."""
        rank = self.rng.randrange(self.ranks)
        if when == "start":
            self.wait_for(f"rank {rank}", lambda: rank in host.ranks(self.launcher.pid))
        self.reach(when)
        return rank

    def signal_rank(self, rank, number):
        pid = host.ranks(self.launcher.pid).get(rank)
        if pid is not None:
            os.kill(pid, number)

    def note_sockets(self):
        self.listening.update(host.listening(host.marked(self.mark)))

    # The outcome.

    def notices(self):
        return host.read(self.folder + "/out").decode(errors="replace") + host.read(self.folder + "/err").decode(errors="replace")

    def result(self, name):
        try:
            with open(f"{self.logs}/1/{name}") as file:
                return json.load(file)
        except (OSError, ValueError):
            return {}

    def last_steps(self):
        """The step after which each rank says that it stopped; None if a rank does not say so."""
        steps = set()
        for rank in range(self.ranks):
            lines = host.read(f"{self.logs}/1/rank.{rank}/stdout").decode(errors="replace").splitlines()
            said = [line for line in lines if line.startswith("stopped after step ")]
            steps.add(said[-1].split()[3].rstrip(",") if said else None)
        return steps

    def kill_all(self, seconds=PATIENCE):
        """A killed process keeps its files open until it has ended, which takes a while on a busy host."""
        deadline = time.monotonic() + seconds
        while (pids := host.marked(self.mark)) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        if self.launcher is not None:
            self.launcher.wait()

    def unmount(self, seconds=60):
        deadline = time.monotonic() + seconds
        while subprocess.run(["umount", self.logs], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            if time.monotonic() > deadline:
                subprocess.run(["umount", "--lazy", self.logs], check=False)
                return
            time.sleep(0.1)

    def leftovers(self, seconds=PATIENCE):
        """Whatever is still there after that time."""
        deadline = time.monotonic() + seconds
        while True:
            found = [f"{' '.join(host.words(pid))[:60]} ({pid})" for pid in host.marked(self.mark)]
            found += [f"listens on port {port}" for port in host.still_listening(self.listening)]
            found += [f"/dev/shm/{name}" for name in set(os.listdir("/dev/shm")) - self.shared_memory if "trainctl" in name]
            if self.gpu_memory:
                found += [f"{now - before} MiB of GPU {gpu}" for gpu, (before, now) in enumerate(zip(self.gpu_memory, host.gpu_memory())) if now > before]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.01)

    def clean_up(self, keep):
        self.kill_all()
        if self.mounted:
            if keep:
                shutil.copytree(self.logs, self.folder + "/logs-of-full-disk", dirs_exist_ok=True)
            self.unmount()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
