"""Shared by the cases of hosts_test.py: a job on test hosts, its runs, and their losses, ranks and checkpoints."""
import json
import os
import pathlib
import signal
import subprocess
import time

import network
from network import eventually

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOB = f"{ROOT}/configs/mnist_mlp.yaml"
ONE_RANK = "launch.ranks=1 parallel.stages=1 parallel.stage_config={} parallel.strategies=null"
PLAIN = "parallel.stages=1 parallel.stage_config={} parallel.strategies=null"
LONG = "train.steps=1000000 train.epochs=1000000"
FOUR = f"launch.hosts='[a:2, b:2]' launch.ranks=4 {PLAIN}"
NOTICED_SECONDS, ON_SECONDS = 3, 10  # after a loss, on a quiet machine
RECONNECT_SECONDS = 8  # of a cut cable: a busy machine holds up an agent for less


class Scene:
    def __init__(self, hosts, trainctl, times=False):
        self.network, self.trainctl, self.runs, self.times = hosts, trainctl, 0, times
        self.process = None  # of the run that start() began last

    def words(self, fields, job=JOB):
        self.runs += 1
        self.logs = self.network.own / f"logs.{self.runs}"
        saves = "" if "train.checkpoint" in fields else "train.checkpoint=null"
        return f"{self.trainctl} run {job} {saves} launch.log_dir={self.logs} {fields}"

    def run(self, fields, job=JOB):
        return self.network.run(self.words(fields, job), timeout=network.PATIENCE)

    def start(self, fields):
        """A long run that has done some steps."""
        self.output = pathlib.Path(self.network.folder) / f"output.{self.runs + 1}"
        process = self.process = self.network.start(self.words(f"launch.hosts='[a:2, b:2]' launch.ranks=4 {PLAIN} {LONG} {fields}"), self.output)
        require(eventually(lambda: self.step() >= 20 or process.poll() is not None) and process.poll() is None,
                "it has begun: " + self.output.read_text())
        return process

    def end_run(self):
        """Ends what a failed case has started, which later cases would take for something left behind."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(network.PATIENCE / 10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def losses(self):
        """By step; none of a run that did not begin."""
        file = self.logs / "1/metrics.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return {line["run_step"]: line["loss"] for line in lines if "loss" in line and "run_step" in line}

    def step(self):
        try:
            return max(self.losses(), default=0)
        except (OSError, ValueError):
            return 0

    def cause(self):
        return json.loads((self.logs / "1/error.json").read_text())["first_cause"]

    def rank(self, number):
        """(host, pid) of a rank's process."""
        for host in self.network.hosts.values():
            for pid, words in host.processes().items():
                if f" worker " in words and f"--rank {number} " in words:
                    return host, pid
        raise AssertionError(f"rank {number} does not run")

    def require_nothing_left(self):
        for host in self.network.hosts.values():
            require(eventually(lambda: not host.left()), f"left on {host.name}: {host.left()}")


def require(holds, what):
    if not holds:
        raise AssertionError(what)


def end_of(process):
    try:
        return process.wait(network.PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError("it has not ended") from None


def stop(scene, process):
    pid = subprocess.run(["pgrep", "-of", f"^{scene.trainctl} run .*{scene.logs}"], capture_output=True, text=True, check=True)
    os.kill(int(pid.stdout.split()[0]), signal.SIGINT)
    return end_of(process)


def worst_difference(found, expected):
    return max(abs(found[step] - expected[step]) / abs(expected[step]) for step in found)


def checkpoints(scene, run=1):
    folder = scene.logs / f"{run}/checkpoints"
    return sorted(int(path.name.split("_")[1]) for path in folder.glob("step_*")) if folder.exists() else []


def require_said(scene, process, what, times=1, within=None):
    """Returns how long it took. `within`: seconds that --times judges."""
    begin = time.monotonic()
    said = eventually(lambda: scene.output.read_text().count(what) >= times or process.poll() is not None)
    took = time.monotonic() - begin
    require(said and process.poll() is None, f"{what}: " + scene.output.read_text()[-3000:])
    require(not scene.times or within is None or took <= within, f"{what}: after {took:.1f} s")
    return took


def require_small_losses(scene, count):
    """So many interruptions, each of which costs a step at most, and little time. Returns them in words."""
    outcome = json.loads((scene.logs / "1/outcome.json").read_text())
    changes = [change for change in outcome["changes"] if not change["why"].endswith("back")]
    require(len(changes) == count, f"{outcome['changes']}")
    steps = [change["last_step"] - change["resumed_step"] for change in changes]
    require(max(steps) <= 1, f"at most one step is lost: {changes}")
    on = [change["paused_seconds"] for change in changes]
    require(0 < min(on) and (not scene.times or max(on) <= ON_SECONDS), f"on after {on} s")
    found = scene.losses()
    require(sorted(found) == list(range(1, len(found) + 1)), f"each step once: {sorted(found)}")
    require(0 < outcome["goodput"] < 1, f"{outcome}")
    return f"lost {steps} steps, on after {max(on):.1f} s"
