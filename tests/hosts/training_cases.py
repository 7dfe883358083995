"""Cases of hosts_test.py: saving and resuming, audits, slow hosts and local steps on several hosts."""
import json
import os
import re
import signal
import subprocess

from network import eventually
from scene import FOUR, ONE_RANK, ROOT, checkpoints, require, require_said, stop, worst_difference


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


def experts(scene):
    """Tokens that go to experts on other hosts: the losses of one rank, and only the rows that exist are sent."""
    job, steps = f"{ROOT}/tests/jobs/moe.yaml", 20
    one = scene.run(f"train.steps={steps}", job)
    require(one.returncode == 0, one.stdout + one.stderr)
    expected, said = scene.losses(), []
    for hosts in ("[a:2, b:2]", "[a:1, b:3]"):
        run = scene.run(f"launch.hosts='{hosts}' launch.ranks=4 parallel.mode=semi_auto_parallel parallel.expert=4 "
                        f"parallel.expert_method=all_to_all train.steps={steps}", job)
        require(run.returncode == 0, run.stdout + run.stderr)
        worst = worst_difference(scene.losses(), expected)
        require(worst < 1e-5, f"losses differ by {worst:.2g}")
        outcome = json.loads((scene.logs / "1/outcome.json").read_text())
        tokens, traffic = outcome["token_exchange"], outcome["traffic"]
        require(0.7 * tokens["expected_bytes"] < tokens["bytes"] < min(1.3 * tokens["expected_bytes"], tokens["most_bytes"]), f"{tokens}")
        for where in ("within", "between"):
            require(0.8 * traffic[f"planned_{where}"] < traffic[where] < 1.2 * traffic[f"planned_{where}"], f"{traffic}")
        said.append(f"{tokens['bytes']:,} bytes of tokens on {hosts}, {tokens['expected_bytes']:,} expected")
    return "; ".join(said)


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
    named = re.search(r"audit: step (\d+) produced different bits .*?: (\S+),", scene.output.read_text())
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
