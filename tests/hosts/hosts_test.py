"""Runs over ssh on test hosts (network.py): the same numbers as one rank, and what happens when something breaks.

    python3 tests/hosts/hosts_test.py TRAINCTL [--only NAME] [--keep FOLDER] [--times]

--times, on a quiet machine, also judges how soon a loss is noticed, and how soon the others train again.
Needs root, since it makes network namespaces; exits with 77 and the reason where it cannot.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import network
from network import eventually

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOB = f"{ROOT}/configs/mnist_mlp.yaml"
ONE_RANK = "launch.ranks=1 parallel.stages=1 parallel.stage_config={} parallel.strategies=null"
PLAIN = "parallel.stages=1 parallel.stage_config={} parallel.strategies=null"
LONG = "train.steps=1000000 train.epochs=1000000"


class Scene:
    def __init__(self, hosts, trainctl, times=False):
        self.network, self.trainctl, self.runs, self.times = hosts, trainctl, 0, times

    def words(self, fields):
        self.runs += 1
        self.logs = self.network.own / f"logs.{self.runs}"
        saves = "" if "train.checkpoint" in fields else "train.checkpoint=null"
        return f"{self.trainctl} run {JOB} {saves} launch.log_dir={self.logs} {fields}"

    def run(self, fields):
        return self.network.run(self.words(fields), timeout=network.PATIENCE)

    def start(self, fields):
        """A long run that has done some steps."""
        self.output = pathlib.Path(self.network.folder) / f"output.{self.runs + 1}"
        process = self.network.start(self.words(f"launch.hosts='[a:2, b:2]' launch.ranks=4 {PLAIN} {LONG} {fields}"), self.output)
        require(eventually(lambda: self.step() >= 20 or process.poll() is not None) and process.poll() is None,
                "it has begun: " + self.output.read_text())
        return process

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


def same_numbers(scene):
    """Eight ranks in two stages on two hosts have the losses of one rank, and every rank's output is on the launcher."""
    one = scene.run(f"{ONE_RANK} train.steps=12")
    require(one.returncode == 0, one.stdout + one.stderr)
    expected = scene.losses()
    begin = time.monotonic()
    several = scene.run("launch.hosts='[a, b]' train.steps=12")
    cold = time.monotonic() - begin
    require(several.returncode == 0, several.stdout + several.stderr)
    found = scene.losses()
    require(found.keys() == expected.keys() and len(found) == 12, f"steps {sorted(found)}")
    worst = max(abs(found[step] - expected[step]) / abs(expected[step]) for step in expected)
    require(worst < 1e-4, f"losses differ by {worst:.2g}")
    for rank in range(8):
        lines = (scene.logs / f"1/rank.{rank}/stdout").read_text().splitlines()
        require(len(lines) >= 12 and all("loss is" in line for line in lines[:12]), f"rank {rank}: {lines}")
        require((scene.logs / f"1/rank.{rank}/start_up.json").exists(), f"rank {rank} has no start_up.json")
    begin = time.monotonic()
    again = scene.run("launch.hosts='[a, b]' train.steps=12")
    warm = time.monotonic() - begin
    require(again.returncode == 0 and scene.losses() == found, "a run repeats its bits")
    scene.require_nothing_left()
    return f"losses within {worst:.1e}; {cold:.1f} s with the program's copy, {warm:.1f} s without"


def uneven_hosts(scene):
    """Three ranks on one host and one on the other, in data parallelism."""
    plain = f"{PLAIN} parallel.mode=data_parallel launch.ranks=4 train.steps=8"
    one = scene.run(plain)
    require(one.returncode == 0, one.stdout + one.stderr)
    expected = scene.losses()
    several = scene.run(f"launch.hosts='[a:3, b:1]' {plain}")
    require(several.returncode == 0, several.stdout + several.stderr)
    worst = max(abs(scene.losses()[step] - expected[step]) / abs(expected[step]) for step in expected)
    require(worst < 1e-4, f"losses differ by {worst:.2g}")
    return f"losses within {worst:.1e} of one host"


def killed_rank(scene):
    """A killed rank of a host is the first cause, with its host; all others end."""
    process = scene.start("")
    host, pid = scene.rank(3)
    begin = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    code = end_of(process)
    took = time.monotonic() - begin
    cause = scene.cause()
    require(code == 5 and cause["rank"] == 3 and cause["host"] == "b" and "SIGKILL" in cause["message"], f"{code} {cause}")
    require(host.name == "b", f"rank 3 ran on {host.name}")
    scene.require_nothing_left()
    return f"ended after {took:.1f} s: {cause['message'][:80]}"


def kill_agent(host):
    agents = [pid for pid, words in host.processes().items() if " agent " in words and pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "trainctl-agent"]
    require(agents, f"agents of {host.name}: {host.processes()}")
    for pid in agents:
        os.kill(pid, signal.SIGKILL)


def killed_agent(scene):
    """A host whose agent was killed is lost at once, and its ranks do not outlive the agent."""
    process = scene.start("")
    begin = time.monotonic()
    kill_agent(scene.network.hosts["b"])
    code = end_of(process)
    took = time.monotonic() - begin
    cause = scene.cause()
    require(code == 5 and cause["host"] == "b", f"{code} {cause}")
    scene.require_nothing_left()
    return f"ended after {took:.1f} s: {cause['message'][:80]}"


def killed_launcher(scene):
    """After the launcher's death nothing is left on any host once launch.reconnect is over."""
    process = scene.start("launch.reconnect=8s")
    begin = time.monotonic()
    launchers = subprocess.run(["pgrep", "-f", f"^{scene.trainctl} run .*{scene.logs}"], capture_output=True, text=True, check=False)
    require(launchers.stdout.split(), "the launcher runs")
    for pid in launchers.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    end_of(process)
    scene.require_nothing_left()
    return f"nothing left after {time.monotonic() - begin:.1f} s"


def cut_cable(scene):
    """A cable that is cut for a second costs nothing but time."""
    process = scene.start("")
    before = scene.step()
    scene.network.hosts["b"].cut()
    time.sleep(1)
    scene.network.hosts["b"].mend()
    require(eventually(lambda: scene.step() > before + 20 or process.poll() is not None) and process.poll() is None,
            "it continues: " + scene.output.read_text())
    stop(scene, process)
    return f"from step {before} to {scene.step()}"


def cut_for_good(scene):
    """A host that stays away for launch.reconnect is named, and everything ends on both sides of the cut."""
    process = scene.start("launch.reconnect=8s")
    begin = time.monotonic()
    scene.network.hosts["b"].cut()
    try:
        code = end_of(process)
        took = time.monotonic() - begin
        cause = scene.cause()
        require(code == 5 and cause["host"] == "b" and "has not responded for 8 s" in cause["message"], f"{code} {cause}")
        scene.require_nothing_left()
    finally:
        scene.network.hosts["b"].mend()
    return f"ended after {took:.1f} s: {cause['message'][:80]}"


def stop(scene, process):
    pid = subprocess.run(["pgrep", "-of", f"^{scene.trainctl} run .*{scene.logs}"], capture_output=True, text=True, check=True)
    os.kill(int(pid.stdout.split()[0]), signal.SIGINT)
    return end_of(process)


def interrupted(scene):
    """Ctrl-C: the ranks of all hosts end after the same step."""
    process = scene.start("")
    code = stop(scene, process)
    require(code == 130, f"{code}: " + scene.output.read_text())
    ends = [re.search(r"stopped after step (\d+)", (scene.logs / f"1/rank.{rank}/stdout").read_text()) for rank in range(4)]
    steps = {match.group(1) if match else None for match in ends}
    require(len(steps) == 1 and None not in steps, f"steps {steps}: " + scene.output.read_text())
    scene.require_nothing_left()
    return f"all after step {steps.pop()}"


def changed_key(scene):
    """A host whose key is not the known one is refused, in ssh's words, and no rank starts anywhere."""
    known = scene.network.launcher.tree / "root/.ssh/known_hosts"
    text = known.read_text()
    lines = text.splitlines()
    keys = [line.split(" ", 1)[1] for line in lines]
    known.write_text("".join(f"{line.split(' ')[0]} {key}\n" for line, key in zip(lines, reversed(keys))))
    result = scene.run("launch.hosts='[a, b]' train.steps=5")
    known.write_text(text)
    require(result.returncode == 5 and "Host key verification failed" in result.stderr, result.stdout + result.stderr)
    scene.require_nothing_left()
    return result.stderr.strip().splitlines()[-1][:100]


FOUR = f"launch.hosts='[a:2, b:2]' launch.ranks=4 {PLAIN}"


def worst_difference(found, expected):
    return max(abs(found[step] - expected[step]) / abs(expected[step]) for step in found)


def checkpoints(scene, run=1):
    folder = scene.logs / f"{run}/checkpoints"
    return sorted(int(path.name.split("_")[1]) for path in folder.glob("step_*")) if folder.exists() else []


def saved_and_resumed(scene):
    """Checkpoints of two hosts are on the launcher, and another number of ranks resumes from them with the same losses."""
    one = scene.run(f"{ONE_RANK} train.steps=40")
    require(one.returncode == 0, one.stdout + one.stderr)
    expected = scene.losses()
    saves = "train.checkpoint.every_steps=10 train.checkpoint.keep=10"
    first = scene.run(f"{FOUR} {saves} train.steps=25")
    require(first.returncode == 0, first.stdout + first.stderr)
    require(checkpoints(scene) == [10, 20, 25], f"checkpoints {checkpoints(scene)}: {first.stdout}{first.stderr}")
    verified = scene.network.run(f"{scene.trainctl} checkpoint verify {scene.logs}/1/checkpoints/step_00000025")
    require(verified.returncode == 0, verified.stdout + verified.stderr)
    fields = f"{FOUR} {saves} train.steps=40 launch.hosts='[a:1, b:5]' launch.ranks=6 --resume"
    scene.runs -= 1  # the same folder of logs
    second = scene.run(fields)
    require(second.returncode == 0, second.stdout + second.stderr)
    lines = [json.loads(line) for line in (scene.logs / "2/metrics.jsonl").read_text().splitlines()]
    found = {line["run_step"]: line["loss"] for line in lines if "loss" in line and "run_step" in line}
    require(sorted(found) == list(range(26, 41)), f"steps {sorted(found)}")
    worst = worst_difference(found, expected)
    require(worst < 1e-4, f"losses differ by {worst:.2g}")
    scene.require_nothing_left()
    return f"15 steps on 6 ranks within {worst:.1e} of one rank"


def saved_by_signal(scene):
    """SIGUSR1 saves the state of all ranks of all hosts between two steps, and the run continues."""
    process = scene.start("train.checkpoint.every_steps=1000000")
    pid = subprocess.run(["pgrep", "-of", f"^{scene.trainctl} run .*{scene.logs}"], capture_output=True, text=True, check=True)
    os.kill(int(pid.stdout.split()[0]), signal.SIGUSR1)
    require(eventually(lambda: len(checkpoints(scene)) == 1), "it saves: " + scene.output.read_text())
    before = scene.step()
    require(eventually(lambda: scene.step() > before + 20), "it continues")
    saved = checkpoints(scene)
    require(stop(scene, process) == 130, scene.output.read_text())
    require(len(checkpoints(scene)) == 2, f"the last state is saved too: {checkpoints(scene)}")
    scene.require_nothing_left()
    return f"after step {saved[0]}, and at the end after {checkpoints(scene)[-1]}"


def restarted(scene):
    """With launch.max_restarts a killed rank costs the steps since the last checkpoint, on all hosts."""
    process = scene.start("launch.max_restarts=1 train.checkpoint.every_steps=20")
    require(eventually(lambda: checkpoints(scene)), "it saves: " + scene.output.read_text())
    os.kill(scene.rank(2)[1], signal.SIGKILL)
    require(eventually(lambda: "resuming after step" in scene.output.read_text()), "it continues: " + scene.output.read_text())
    resumed = int(re.search(r"resuming after step (\d+)", scene.output.read_text()).group(1))
    require(eventually(lambda: scene.step() > resumed + 10), "it trains: " + scene.output.read_text())
    require(stop(scene, process) == 130, scene.output.read_text())
    scene.require_nothing_left()
    return f"continued after step {resumed}"


NOTICED_SECONDS, ON_SECONDS = 3, 10  # after a loss, on a quiet machine
RECONNECT_SECONDS = 8  # of a cut cable: a busy machine holds up an agent for less


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


def elastic(scene):
    """A lost host costs a step at most: the others resume from what they hold in memory, and it is used again when it is back."""
    # Not the job's mae: its gradient jumps where a prediction meets its label, so rounding shows after 60 steps. At this rate it stays small.
    loss = "loss=mse optimizer.learning_rate=0.0001"
    one = scene.run(f"{ONE_RANK} {loss} train.steps=400")
    require(one.returncode == 0, one.stdout + one.stderr)
    expected = scene.losses()
    process = scene.start(f"{loss} parallel.mode=data_parallel parallel.optimizer_shard.level=0 launch.elastic=2 "
                          f"launch.reconnect={RECONNECT_SECONDS}s train.checkpoint.every_steps=25")
    host = scene.network.hosts["b"]
    says = lambda what: what in scene.output.read_text()
    require(eventually(lambda: checkpoints(scene)), "it saves: " + scene.output.read_text())
    host.cut()
    try:
        noticed = require_said(scene, process, f"host b has not responded for {RECONNECT_SECONDS} s", within=RECONNECT_SECONDS + NOTICED_SECONDS)
        lost = noticed + require_said(scene, process, "2 ranks instead of 4", within=ON_SECONDS)
        require(says("recovered the state after step"), scene.output.read_text())
        require(eventually(lambda: not host.left()), f"left on b: {host.left()}")
    finally:
        host.mend()
    require(eventually(lambda: says("4 ranks instead of 2") or process.poll() is not None) and process.poll() is None,
            "b is used again: " + scene.output.read_text())
    back = re.search(r"host b is back: .*", scene.output.read_text()).group(0)
    step = scene.step()
    require(eventually(lambda: scene.step() > step + 10), "it trains: " + scene.output.read_text())
    require(stop(scene, process) == 130, scene.output.read_text())
    found = scene.losses()
    require(sorted(found) == list(range(1, len(found) + 1)), f"each step once: {sorted(found)}")
    compared = {step: loss for step, loss in found.items() if step in expected}
    worst = worst_difference(compared, expected)
    require(worst < 1e-4, f"losses differ by {worst:.2g}")
    outcome = json.loads((scene.logs / "1/outcome.json").read_text())
    require(len(outcome["changes"]) == 2, f"{outcome}")
    small = require_small_losses(scene, 1)
    scene.require_nothing_left()
    return f"noticed {noticed:.1f} s after the cut, on {lost:.1f} s; {small}; {back}; {len(compared)} losses within {worst:.1e}; goodput {outcome['goodput']:.2f}"


def elastic_saved(scene):
    """Where a lost host takes a part of the state with it, a job that saves each step loses one at most."""
    process = scene.start("parallel.mode=data_parallel launch.elastic=2 train.checkpoint.every_steps=1 loss=mse optimizer.learning_rate=0.0001")
    noticed = []
    for number in (1, 2):
        before = scene.step()
        require(eventually(lambda: scene.step() > before + 10), "it trains: " + scene.output.read_text()[-2000:])
        kill_agent(scene.network.hosts["ab"[number % 2]])
        noticed.append(require_said(scene, process, "lost its agent process; replanned", number, NOTICED_SECONDS))
        require_said(scene, process, "2 ranks instead of 4", number, ON_SECONDS)
        require_said(scene, process, "4 ranks instead of 2", number)
    require(scene.output.read_text().count("the whole state could not be recovered") == 2, scene.output.read_text()[-3000:])
    require(stop(scene, process) == 130, scene.output.read_text()[-3000:])
    said = require_small_losses(scene, 2)
    scene.require_nothing_left()
    return f"noticed after {max(noticed):.1f} s, {said}"


def elastic_within_host(scene):
    """Shards of the optimizer within each host are no part of the state that a lost host takes with it: however seldom the job saves, it loses a step at most."""
    process = scene.start("parallel.mode=data_parallel parallel.optimizer_shard.within_host=true launch.elastic=2 'train.checkpoint={every_steps: 100000}' "
                          "loss=mse optimizer.learning_rate=0.0001")
    kill_agent(scene.network.hosts["b"])
    noticed = require_said(scene, process, "lost its agent process; replanned", within=NOTICED_SECONDS)
    require_said(scene, process, "2 ranks instead of 4", within=ON_SECONDS)
    require("recovered the state after step" in scene.output.read_text(), scene.output.read_text()[-3000:])
    require(stop(scene, process) == 130, scene.output.read_text()[-3000:])
    said = require_small_losses(scene, 1)
    scene.require_nothing_left()
    return f"noticed after {noticed:.1f} s, {said}"


def elastic_rank(scene):
    """A killed rank of an elastic job costs a step at most, however seldom it saves: the agents hold the state of all ranks."""
    process = scene.start("parallel.mode=data_parallel launch.elastic=2 launch.max_restarts=3 'train.checkpoint={every_steps: 100000}' loss=mse optimizer.learning_rate=0.0001")
    noticed = []
    for number in (1, 2):
        before = scene.step()
        require(eventually(lambda: scene.step() > before + 10), "it trains: " + scene.output.read_text()[-2000:])
        os.kill(scene.rank(3 * (number % 2))[1], signal.SIGKILL)
        noticed.append(require_said(scene, process, "restarting all ranks", number, NOTICED_SECONDS))
        require_said(scene, process, "all ranks were restarted: resumed after step", number, ON_SECONDS)
    require(scene.output.read_text().count("recovered the state after step") == 2, scene.output.read_text()[-3000:])
    require(stop(scene, process) == 130, scene.output.read_text()[-3000:])
    said = require_small_losses(scene, 2)
    scene.require_nothing_left()
    return f"noticed after {max(noticed):.1f} s, {said}"


def audited(scene):
    """A rank whose results are wrong is named by the next audit, and the run continues without its host, which is not taken back."""
    host = scene.network.hosts["b"]
    host.set_environment(["TRAINCTL_TEST_FAULT=3:40:flip"])
    try:
        process = scene.start("parallel.mode=data_parallel launch.elastic=2 launch.device=cpu train.audit_every=25 'train.checkpoint={every_steps: 25}' "
                              "loss=mse optimizer.learning_rate=0.0001")
    finally:
        host.set_environment()
    require_said(scene, process, "host b computes incorrectly (rank 3")
    require_said(scene, process, "2 ranks instead of 4")
    named = re.search(r"audit: step (\d+) gave other bits .*?: (\S+),", scene.output.read_text())
    require(named and named.group(1) == "50", f"the first audit after step 40 names it: {scene.output.read_text()[-3000:]}")
    before = scene.step()
    require(eventually(lambda: scene.step() > before + 50), "it trains: " + scene.output.read_text()[-3000:])
    require("host b is back" not in scene.output.read_text(), scene.output.read_text()[-3000:])
    require(stop(scene, process) == 130, scene.output.read_text()[-3000:])
    scene.require_nothing_left()
    return f"{named.group(2)} at step {named.group(1)}"


def straggler(scene):
    """A host that persistently takes longer is named and gets fewer micro-batches, and the numbers stay those of one rank."""
    loss = "loss=mse optimizer.learning_rate=0.0001"
    one = scene.run(f"{ONE_RANK} {loss} train.steps=400")
    require(one.returncode == 0, one.stdout + one.stderr)
    expected = scene.losses()
    os.environ["TRAINCTL_STRAGGLER_SECONDS"] = "1"  # of the launcher
    slow = scene.network.hosts["b"]
    slow.set_environment(["TRAINCTL_TEST_SPEED=2000:8:0:3"])
    try:
        process = scene.start(f"{loss} parallel.mode=data_parallel parallel.optimizer_shard.level=0 launch.elastic=2 'train.checkpoint={{every_steps: 100000}}'")
    finally:
        del os.environ["TRAINCTL_STRAGGLER_SECONDS"]
        slow.set_environment()
    require_said(scene, process, "rank 3 on host b takes ")
    require_said(scene, process, "times as long for its work; replanned for 4 ranks")
    require_said(scene, process, "times as long for its work: resumed after step")
    before = scene.step()
    require(eventually(lambda: scene.step() > before + 10), "it trains: " + scene.output.read_text()[-3000:])
    require(stop(scene, process) == 130, scene.output.read_text()[-3000:])
    found = scene.losses()
    require(sorted(found) == list(range(1, len(found) + 1)), f"each step once: {sorted(found)}")
    worst = worst_difference({step: value for step, value in found.items() if step in expected}, expected)
    require(worst < 1e-4, f"losses differ by {worst:.2g}")
    scene.require_nothing_left()
    return re.search(r"host b takes .* times as long", scene.output.read_text()).group(0) + f"; losses within {worst:.1e}"


def local_steps(scene):
    """A replica per host, with a pipeline inside: the losses of two replicas on one host, also after it resumes within a round."""
    fields = "parallel.strategies=null parallel.local_steps=4 parallel.outer.round_growth=0 launch.ranks=4 'train.checkpoint={every_steps: 6, keep: 9}' train.steps=14"
    one = scene.run(f"{fields} parallel.replicas=2")
    require(one.returncode == 0, one.stdout + one.stderr)
    expected = scene.losses()
    several = scene.run(f"{fields} launch.hosts='[a:2, b:2]'")
    require(several.returncode == 0, several.stdout + several.stderr)
    worst = worst_difference(scene.losses(), expected)
    require(len(expected) == 14 and worst < 1e-5, f"losses differ by {worst:.2g}")
    scene.runs -= 1  # the same folder of logs
    resumed = scene.run(f"{fields} launch.hosts='[a:2, b:2]' --resume-from {scene.logs}/1/checkpoints/step_00000006")
    require(resumed.returncode == 0, resumed.stdout + resumed.stderr)
    lines = [json.loads(line) for line in (scene.logs / "2/metrics.jsonl").read_text().splitlines()]
    found = {line["run_step"]: line["loss"] for line in lines if "loss" in line and "run_step" in line}
    require(sorted(found) == list(range(7, 15)), f"steps {sorted(found)}")
    require(worst_difference(found, scene.losses()) == 0, "a resumed run has the same bits")
    scene.require_nothing_left()
    return f"within {worst:.1e}"


def local_steps_elastic(scene):
    """A lost host takes its replica with it: the others continue, and a replica is added when the host is back."""
    process = scene.start("parallel.mode=data_parallel parallel.local_steps=4 launch.elastic=2 'train.checkpoint={every_steps: 5}' loss=mse optimizer.learning_rate=0.0001")
    require(eventually(lambda: checkpoints(scene)), "it saves: " + scene.output.read_text())
    kill_agent(scene.network.hosts["b"])
    require_said(scene, process, "lost its agent process; replanned")
    require_said(scene, process, "2 ranks instead of 4")
    require_said(scene, process, "4 ranks instead of 2")
    before = scene.step()
    require(eventually(lambda: scene.step() > before + 10), "it trains: " + scene.output.read_text()[-3000:])
    require(stop(scene, process) == 130, scene.output.read_text()[-3000:])
    found = scene.losses()
    require(sorted(found) == list(range(1, len(found) + 1)), f"each step once: {sorted(found)}")
    scene.require_nothing_left()
    return f"{len(found)} steps"


def too_few(scene):
    """With fewer ranks than launch.elastic.min_ranks the run ends, with the lost host as its cause."""
    process = scene.start("launch.elastic=3 launch.reconnect=8s train.checkpoint.every_steps=25")
    scene.network.hosts["b"].cut()
    try:
        code = end_of(process)
        cause = scene.cause()
        require(code == 5 and cause["host"] == "b", f"{code} {cause}")
        require("at least 3" in scene.output.read_text(), scene.output.read_text())
        scene.require_nothing_left()
    finally:
        scene.network.hosts["b"].mend()
    return cause["message"][:80]


def copied(scene):
    """launch.copy: data that only the launcher's host has is sent to each host once, and ranks find it at the same relative path."""
    one = scene.run(f"{ONE_RANK} train.steps=6")
    require(one.returncode == 0, one.stdout + one.stderr)
    expected = scene.losses()
    project = scene.network.launcher.tree / "tmp/project"  # /tmp of the launcher's host, which others do not see
    shutil.copytree(ROOT / "configs/data/digits", project / "digits")
    fields = f"{FOUR} train.steps=6 dataset.path=/tmp/project/digits"
    lacking = scene.run(fields)
    require(lacking.returncode != 0, "without launch.copy it fails: " + lacking.stdout)
    first = scene.run(f"{fields} launch.copy=/tmp/project")
    require(first.returncode == 0 and first.stdout.count("copying /tmp/project") == 2, first.stdout + first.stderr)
    worst = worst_difference(scene.losses(), expected)
    require(worst < 1e-4 and len(scene.losses()) == 6, f"losses differ by {worst:.2g}")
    again = scene.run(f"{fields} launch.copy=/tmp/project")
    require(again.returncode == 0 and "copying" not in again.stdout, "it goes there once: " + again.stdout + again.stderr)
    (project / "program.sh").write_text("#!/bin/sh\ncat words/$RANK; echo $RANK > result; cp result $TRAINCTL_RUN_DIR/result.$RANK\n")
    (project / "program.sh").chmod(0o755)
    (project / "words").mkdir()
    for rank in range(2):
        (project / f"words/{rank}").write_text(f"word {rank}\n")
    (project / "job.yaml").write_text("name: words\ncommand: [./program.sh]\nlaunch: {ranks: 2, hosts: [a, b], copy: [program.sh, words]}\n")
    logs = scene.network.own / "logs.copied"
    program = scene.network.run(f"{scene.trainctl} run /tmp/project/job.yaml launch.log_dir={logs}")
    require(program.returncode == 0, program.stdout + program.stderr)
    for rank in range(2):
        require((logs / f"1/rank.{rank}/stdout").read_text() == f"word {rank}\n", program.stdout)
        require((logs / f"1/result.{rank}").read_text() == f"{rank}\n", "what it keeps comes back")
    for host in scene.network.hosts.values():
        copies = list((host.tree / "root/.cache/trainctl/copies").iterdir())
        require(len(copies) == 3 and all(len(copy.name) == 64 for copy in copies), f"{copies}")
    scene.require_nothing_left()
    shutil.rmtree(project)
    return f"losses within {worst:.1e}; a program with two copies"


def plugins(scene):
    """A plugin that only the launcher's host has is sent to each host once, and its layers have the numbers of one rank there."""
    compiler = shutil.which("cc")
    if compiler is None:
        return "skipped: there is no C compiler"
    project = scene.network.launcher.tree / "tmp/plugin"
    shutil.copytree(ROOT / "examples/plugin", project)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-I", ROOT / "engine/ops/plugins", "-o", project / "snake.so", project / "snake.c", "-lm"], check=True)
    losses = []
    for number, fields in enumerate(["launch.ranks=1 parallel.strategies=null", "launch.hosts='[a:2, b:2]'", "launch.hosts='[a:2, b:2]'"]):
        logs = scene.network.own / f"logs.plugins.{number}"
        run = scene.network.run(f"{scene.trainctl} run /tmp/plugin/job.yaml train.steps=8 launch.log_dir={logs} {fields}", timeout=network.PATIENCE)
        require(run.returncode == 0, run.stdout + run.stderr)
        lines = [json.loads(line) for line in (logs / "1/metrics.jsonl").read_text().splitlines()]
        losses.append({line["run_step"]: line["loss"] for line in lines if "loss" in line and "run_step" in line})
        require(run.stdout.count("copying /tmp/plugin/snake.so") == (2 if number == 1 else 0), run.stdout)
    worst = worst_difference(losses[1], losses[0])
    require(len(losses[1]) == 8 and worst < 1e-4 and losses[1] == losses[2], f"{losses}")
    scene.require_nothing_left()
    shutil.rmtree(project)
    return f"losses within {worst:.1e}"


def program(scene):
    """A command runs once per rank, with the variables of torchrun over hosts."""
    job = pathlib.Path(scene.network.folder) / "program.yaml"
    job.write_text("name: words\ncommand: [sh, -c, 'echo $RANK $LOCAL_RANK $GROUP_RANK $WORLD_SIZE $MASTER_ADDR']\n"
                   "launch: {ranks: 3, hosts: [a, b]}\n")
    logs = scene.network.own / "logs.program"
    result = scene.network.run(f"{scene.trainctl} run {job} launch.log_dir={logs}")
    require(result.returncode == 0, result.stdout + result.stderr)
    words = [(logs / f"1/rank.{rank}/stdout").read_text().split() for rank in range(3)]
    address = scene.network.hosts["a"].address
    require(words == [["0", "0", "0", "3", address], ["1", "1", "0", "3", address], ["2", "0", "1", "3", address]], f"{words}")
    scene.require_nothing_left()
    return "3 ranks"


def checked_first(scene):
    """trainctl hosts says what each host has and how fast they reach each other; one that is not reached is an error."""
    report = scene.network.run(f"{scene.trainctl} hosts {JOB} train.checkpoint=null launch.hosts='[a, b]' --json")
    require(report.returncode == 0, report.stdout + report.stderr)
    said = json.loads(report.stdout)
    require([host["host"] for host in said["hosts"]] == ["a", "b"], report.stdout)
    require(len(said["links"]) >= 1 and all(link["bytes_per_second"] > 0 for link in said["links"]), report.stdout)
    kept = scene.network.run(f"{scene.trainctl} hosts {JOB} train.checkpoint=null launch.hosts='[a, b:3]' --name joined")
    require(kept.returncode == 0 and "launch.machine=joined" in kept.stderr, kept.stdout + kept.stderr)
    plan = scene.network.run(f"{scene.trainctl} plan {JOB} train.checkpoint=null launch.hosts='[a, b:3]' launch.ranks=4 launch.machine=joined --json")
    require(plan.returncode == 0 and "joined" in plan.stdout, plan.stdout[-2000:] + plan.stderr)
    scene.network.hosts["b"].cut()
    try:
        lost = scene.network.run(f"{scene.trainctl} hosts {JOB} train.checkpoint=null launch.hosts='[a, b]'")
    finally:
        scene.network.hosts["b"].mend()
    require(lost.returncode != 0 and "b" in lost.stdout + lost.stderr, lost.stdout + lost.stderr)
    scene.require_nothing_left()
    return f"{said['links'][0]}"


def unreached(scene):
    """A run and trainctl hosts name every host that cannot be reached, a dead one within 5 s."""
    scene.network.hosts["b"].cut()
    try:
        begin = time.monotonic()
        hosts = scene.network.run(f"{scene.trainctl} hosts {JOB} train.checkpoint=null launch.hosts='[b, no-such-host, a, no-such-host-2]'")
        took = time.monotonic() - begin
        for name in ("b", "no-such-host", "no-such-host-2"):
            require(re.search(rf"^ *{name} .*ssh: ", hosts.stdout, re.M), hosts.stdout + hosts.stderr)
        require(hosts.returncode == 3, f"{hosts.returncode}: {hosts.stdout}{hosts.stderr}")
        require(took < 6 or not scene.times, f"after {took:.1f} s")
        begin = time.monotonic()
        result = scene.run("launch.hosts='[b, no-such-host, a, no-such-host-2]' train.steps=5")
        run_took = time.monotonic() - begin
        for name in ("b", "no-such-host", "no-such-host-2"):
            require(f"host {name} cannot be reached: ssh: " in result.stderr, result.stdout + result.stderr)
        require(result.returncode == 5, f"{result.returncode}: {result.stdout}{result.stderr}")
        require(run_took < 8 or not scene.times, f"after {run_took:.1f} s")
    finally:
        scene.network.hosts["b"].mend()
    scene.require_nothing_left()
    return f"hosts after {took:.1f} s, run after {run_took:.1f} s"


def parted(scene):
    """Two hosts that lose each other, but not the launcher: the link is named, and not a rank."""
    process = scene.start("launch.timeout=5s")
    begin = time.monotonic()
    mend = scene.network.hosts["a"].part_from(scene.network.hosts["b"])
    try:
        code = end_of(process)
        took = time.monotonic() - begin
    finally:
        mend()
    cause = scene.cause()
    require(code == 5 and cause["kind"] == "link" and "the link host a <-> host b is broken" in cause["message"], f"{code} {cause}")
    scene.require_nothing_left()
    return f"ended after {took:.1f} s: {cause['message'][:100]}"


def parted_elastic(scene):
    """An elastic run continues without one of two hosts that have lost each other, and takes it back when they meet again."""
    process = scene.start("parallel.mode=data_parallel parallel.optimizer_shard.level=0 launch.elastic=2 launch.timeout=5s "
                          "'train.checkpoint={every_steps: 100000}' loss=mse optimizer.learning_rate=0.0001")
    mend = scene.network.hosts["a"].part_from(scene.network.hosts["b"])
    try:
        lost = require_said(scene, process, "the link host a <-> host b is broken")
        require_said(scene, process, "excluding host b; replanned")
        require_said(scene, process, "2 ranks instead of 4", within=ON_SECONDS)
        before = scene.step()
        log = scene.network.hosts["b"].tree / "etc/sshd.log"
        asked = log.read_text().count("Accepted publickey")
        require(eventually(lambda: log.read_text().count("Accepted publickey") >= asked + 2), "b is asked again")
        # b answers the launcher, but is not taken back: the link is still broken.
        require("host b is back" not in scene.output.read_text(), scene.output.read_text()[-3000:])
        require(eventually(lambda: scene.step() > before), "it trains: " + scene.output.read_text()[-3000:])
    finally:
        mend()
    require_said(scene, process, "host b is back")
    require_said(scene, process, "4 ranks instead of 2")
    require(stop(scene, process) == 130, scene.output.read_text()[-3000:])
    said = require_small_losses(scene, 1)
    scene.require_nothing_left()
    return f"named after {lost:.1f} s; {said}"


CASES = [same_numbers, unreached, parted, parted_elastic, uneven_hosts, saved_and_resumed, saved_by_signal, restarted, elastic, elastic_saved, elastic_within_host, elastic_rank, audited, straggler, local_steps, local_steps_elastic, too_few, checked_first, copied, plugins, program, killed_rank, killed_agent, killed_launcher, cut_cable, cut_for_good, interrupted, changed_key]

def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would the runs
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainctl")
    parser.add_argument("--only", action="append")
    parser.add_argument("--keep", help="a folder for logs and trees, not deleted")
    parser.add_argument("--times", action="store_true", help="judge seconds too")
    options = parser.parse_args()
    reason = network.missing()
    if reason:
        print("skipped: " + reason)
        return 77
    failed = 0
    with tempfile.TemporaryDirectory(prefix="hosts.", dir=pathlib.Path(options.trainctl).resolve().parent) as folder:
        folder = options.keep or folder
        with network.Network(folder, ["a", "b"]) as hosts:
            scene = Scene(hosts, str(pathlib.Path(options.trainctl).resolve()), options.times)
            for case in CASES:
                if options.only and case.__name__ not in options.only:
                    continue
                begin = time.monotonic()
                try:
                    said = case(scene)
                except (AssertionError, OSError, subprocess.SubprocessError) as error:
                    said, failed = f"FAILED: {error}", failed + 1
                print(f"{case.__name__:16} {time.monotonic() - begin:6.1f} s  {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
