"""Cases of hosts_test.py: runs on several hosts start, copy files and end as on one host, with the numbers of one rank."""
import json
import pathlib
import re
import shutil
import subprocess
import time

import network
from scene import FOUR, JOB, ONE_RANK, PLAIN, ROOT, require, stop, worst_difference


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
