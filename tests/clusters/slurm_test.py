"""Runs under a real Slurm (slurm.py): the numbers of one host, cancelling, the time limit, a node that goes down, arrays, salloc, PMIx.

    python3 tests/clusters/slurm_test.py TRAINCTL [--only NAME] [--keep FOLDER]

Needs root and Slurm's programs (./bootstrap clusters); exits with 77 and the reason where it cannot run.
"""
import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

import judge
import slurm
from judge import JOB, PLAIN, require
from slurm import eventually

LONG = "train.steps=1000000 train.epochs=1000000"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


class Scene:
    def __init__(self, cluster, trainctl):
        self.slurm, self.trainctl, self.number = cluster, trainctl, 0

    def command(self, words, **options):
        return self.slurm.run(*shlex.split(f"{self.trainctl} {words}"), **options)

    def submit(self, fields):
        """Returns the number of the job."""
        self.number += 1
        self.logs = self.slurm.folder / f"logs.{self.number}"
        said = self.command(f"run {JOB} launch.target=slurm launch.log_dir={self.logs} {fields}")
        found = re.search(r"Slurm job (\d+)", said.stdout)
        require(said.returncode == 0 and found, said.stdout + said.stderr)
        return found.group(1)

    def state(self, job):
        return self.slurm.job(job).get("JobState", "")

    def end(self, job):
        require(eventually(lambda: self.state(job) in ENDED), f"it ends: {self.slurm.job(job)} {self.said(job)}")
        return self.slurm.job(job)

    def said(self, job):
        path = self.logs / f"slurm-{job}.out"
        return path.read_text()[-600:] if path.exists() else "(no output)"

    def losses(self, run=1):
        return judge.losses(self.logs / str(run))

    def begun(self, job, run=1, steps=20):
        require(eventually(lambda: max(self.losses(run), default=0) >= steps or self.state(job) in ENDED)
                and self.state(job) not in ENDED, f"run {run} has begun: {self.slurm.job(job)} {self.said(job)}")

    def start_again(self, job):
        """A job that was queued again starts now, and not after the two minutes that Slurm would wait. Not in the second in which
        it ended: slurmd compares whole seconds, takes the new credential for one that was revoked, and the job fails."""
        time.sleep(2)
        self.slurm.output("scontrol", "update", f"JobId={job}", "StartTime=now")

    def require_nothing_left(self):
        """Neither ranks nor agents of this test's runs."""
        left = lambda: subprocess.run(["pgrep", "-f", f"trainctl.*(worker|agent).*{self.slurm.folder.name}"], capture_output=True,
                                      text=True, check=False).stdout.split()
        require(eventually(lambda: not left()), f"left: {left()}")


def two_nodes(scene):
    """A job on two nodes has the losses of one host, and its logs are read on the login node."""
    fields = f"train.steps=12 launch.ranks=4 {PLAIN}"
    scene.number += 1
    scene.logs = scene.slurm.folder / f"logs.{scene.number}"
    one = scene.command(f"run {JOB} launch.log_dir={scene.logs} {fields}")
    require(one.returncode == 0, one.stdout + one.stderr)
    expected = scene.losses()
    begin = time.monotonic()
    job = scene.submit(f"launch.slurm.nodes=2 {fields}")
    end = scene.end(job)
    took = time.monotonic() - begin
    require(end["JobState"] == "COMPLETED" and end["NumNodes"] == "2", f"{end} {scene.said(job)}")
    found = scene.losses()
    require(found.keys() == expected.keys() and len(found) == 12, f"steps {sorted(found)}: {scene.said(job)}")
    worst = judge.difference(expected, found, 12)
    require(worst < 1e-4, f"losses differ by {worst:.2g}")
    cluster = json.loads((scene.logs / "1/cluster.json").read_text())
    require(cluster == {"job": job, "manager": "slurm", "nodes": ["n1", "n2"], "restarts": 0}, f"{cluster}")
    logs = scene.command(f"logs --log-dir {scene.logs} --rank 3")
    require(logs.returncode == 0 and logs.stdout.count("loss is") >= 12, logs.stdout + logs.stderr)
    scene.require_nothing_left()
    return f"losses within {worst:.1e} of one host; {took:.1f} s with the queue"


def stopped(scene):
    """ps lists a job that runs, stop ends it after a step, and it is not queued again."""
    job = scene.submit(f"launch.slurm.nodes=2 launch.ranks=2 {PLAIN} {LONG}")
    scene.begun(job)
    listed = scene.command("ps")
    require(re.search(rf"{job} .*RUNNING.*n\[1-2\]", listed.stdout), listed.stdout + listed.stderr)
    asked = scene.command(f"stop --slurm {job}")
    require(asked.returncode == 0, asked.stdout + asked.stderr)
    end = scene.end(job)
    require(end["JobState"] == "FAILED" and end["ExitCode"] == "143:0" and end["Restarts"] == "0", f"{end} {scene.said(job)}")
    steps = {re.search(r"stopped after step (\d+)", (scene.logs / f"1/rank.{rank}/stdout").read_text()).group(1) for rank in range(2)}
    require(len(steps) == 1, f"steps {steps}")
    scene.require_nothing_left()
    return f"both ranks after step {steps.pop()}"


def cancelled(scene):
    """scancel leaves nothing behind; a job that waits is cancelled by stop."""
    job = scene.submit(f"launch.slurm.nodes=2 launch.ranks=2 {PLAIN} {LONG} "
                       "'launch.slurm.extra=[--exclusive]'")
    scene.begun(job)
    running = scene.logs
    waits = scene.submit(f"launch.ranks=2 {PLAIN} {LONG} 'launch.slurm.extra=[--exclusive]'")
    require(scene.state(waits) == "PENDING", f"{scene.slurm.job(waits)}")
    listed = scene.command("ps")
    require(re.search(rf"{waits} .*PENDING", listed.stdout), listed.stdout)
    scene.command(f"stop --slurm {waits}")
    require(scene.end(waits)["JobState"] == "CANCELLED", f"{scene.slurm.job(waits)}")
    scene.slurm.output("scancel", job)
    scene.logs = running
    require(scene.end(job)["JobState"] == "CANCELLED", f"{scene.slurm.job(job)}")
    scene.require_nothing_left()
    return "both"


def time_limit(scene):
    """Before its limit a job saves and is queued again; the second start resumes from the first one's checkpoint."""
    job = scene.submit(f"launch.ranks=2 {PLAIN} {LONG} train.checkpoint={{every_steps: 1000000}} launch.slurm.time=2".replace(
        "{every_steps: 1000000}", "'{every_steps: 1000000}'"))
    begin = time.monotonic()
    require(eventually(lambda: scene.slurm.job(job).get("Restarts", "0") == "1"), f"{scene.slurm.job(job)} {scene.said(job)}")
    last = max(scene.losses())
    scene.start_again(job)
    scene.begun(job, 2, last + 1)
    took = time.monotonic() - begin
    first = min(scene.losses(2))
    require(first == last + 1, f"the first start ended after step {last}, the second began with {first}: {scene.said(job)}")
    whole = (scene.logs / f"slurm-{job}.out").read_text()
    require(f"start 2 of Slurm job {job}: resuming from run 1" in whole, scene.said(job))
    scene.command(f"stop --slurm {job}")
    scene.end(job)
    scene.require_nothing_left()
    return f"stopped after step {last}, continued with {first}; {took:.0f} s"


def node_down(scene):
    """A node that goes down: Slurm queues the job again, and it resumes from its newest checkpoint on another node."""
    job = scene.submit(f"launch.ranks=2 {PLAIN} {LONG} 'train.checkpoint={{every_steps: 50}}'")
    scene.begun(job, steps=120)
    node = scene.slurm.job(job)["NodeList"]
    last = max(scene.losses())
    scene.slurm.fail_node(node)
    try:
        scene.slurm.output("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        require(eventually(lambda: scene.slurm.job(job).get("Restarts", "0") == "1"), f"{scene.slurm.job(job)}")
        scene.start_again(job)
        scene.begun(job, 2, last + 1)
        other = scene.slurm.job(job)["NodeList"]
        first = min(scene.losses(2))
        require(other != node and first % 50 == 1 and 1 < first <= last + 1, f"{node} {other} {first} {last}: {scene.said(job)}")
        scene.command(f"stop --slurm {job}")
        scene.end(job)
        scene.require_nothing_left()
    finally:
        scene.slurm.start_node(node)
        scene.slurm.output("scontrol", "update", f"NodeName={node}", "State=RESUME")
        eventually(lambda: scene.slurm.state(node).startswith("IDLE"))
    return f"{node} died after step {last}, {other} continued with {first}"


def dry_run(scene):
    """--dry-run shows the script and the command, and submits nothing."""
    before = scene.slurm.output("squeue", "--noheader", "--states=all")
    logs = scene.slurm.folder / "logs.dry"
    said = scene.command(f"run {JOB} launch.target=slurm launch.log_dir={logs} launch.slurm.nodes=2 launch.ranks=4 {PLAIN} --dry-run")
    require(said.returncode == 0 and "#SBATCH --nodes=2" in said.stdout, said.stdout + said.stderr)
    require(said.stdout.splitlines()[-1] == f"sbatch --parsable {logs}/slurm/1/job.sbatch", said.stdout)
    require(not logs.exists() and scene.slurm.output("squeue", "--noheader", "--states=all") == before, "nothing was done")
    return said.stdout.splitlines()[-1]


def array(scene):
    """Two jobs of an array run at once, each with a run of its own; ps lists both, and stop ends one, or what is left."""
    job = scene.submit(f"launch.ranks=1 {PLAIN} {LONG} 'launch.slurm.extra=[--array=0-1]'")
    begun = lambda: all(max(scene.losses(run), default=0) >= 20 for run in (1, 2))
    require(eventually(begun), f"both have begun: {scene.slurm.output('squeue')}")
    listed = scene.command("ps").stdout
    require(all(re.search(rf"{job}_{task} .*RUNNING", listed) for task in (0, 1)), listed)
    numbers = {json.loads((scene.logs / str(run) / "cluster.json").read_text())["job"] for run in (1, 2)}
    require(len(numbers) == 2, f"two jobs of Slurm: {numbers}")
    asked = scene.command(f"stop --slurm {job}_1")
    require(asked.returncode == 0 and asked.stdout.count("was asked to stop") == 1, asked.stdout + asked.stderr)
    left = lambda: scene.slurm.output("squeue", "--noheader", "--format=%i").split()
    require(eventually(lambda: left() == [f"{job}_0"]), f"{left()}")
    scene.command(f"stop --slurm {job}")
    require(eventually(lambda: not left()), f"{left()}")
    scene.require_nothing_left()
    # A batch script of one's own, whose jobs differ.
    scene.number += 1
    scene.logs = scene.slurm.folder / f"logs.{scene.number}"
    script = scene.slurm.folder / "array.sbatch"
    script.write_text(f"#!/bin/sh\n#SBATCH --array=0-1\n#SBATCH --output={scene.logs}.%a.out\n"
                      f"exec {scene.trainctl} run {JOB} launch.log_dir={scene.logs} launch.ranks=1 {PLAIN} train.steps=8 seed=$((SLURM_ARRAY_TASK_ID + 1))\n")
    said = scene.slurm.run(slurm.find("sbatch"), "--parsable", "--wait", str(script), timeout=slurm.PATIENCE)
    out = [pathlib.Path(f"{scene.logs}.{task}.out") for task in (0, 1)]
    require(said.returncode == 0, said.stdout + said.stderr + "".join(path.read_text() for path in out if path.exists()))
    both = [scene.losses(run) for run in (1, 2)]
    require(all(len(losses) == 8 for losses in both) and both[0] != both[1], f"{both}")
    return f"{job}_0 and {job}_1 at once, stopped one after the other; two seeds, two runs"


def in_salloc(scene):
    """Inside salloc the ranks are on the nodes of the allocation, with the losses of one host."""
    fields = f"launch.ranks=4 {PLAIN} train.steps=8"
    scene.number += 1
    scene.logs = scene.slurm.folder / f"logs.{scene.number}"
    one = scene.command(f"run {JOB} launch.log_dir={scene.logs} {fields}")
    require(one.returncode == 0, one.stdout + one.stderr)
    said = scene.slurm.run(slurm.find("salloc"), "--quiet", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2",
                           *shlex.split(f"{scene.trainctl} run {JOB} launch.target=slurm launch.log_dir={scene.logs} {fields}"), timeout=slurm.PATIENCE)
    require(said.returncode == 0, said.stdout + said.stderr)
    require(json.loads((scene.logs / "2/cluster.json").read_text())["nodes"] == ["n1", "n2"], "two nodes")
    worst = judge.difference(scene.losses(1), scene.losses(2), 8)
    require(worst < 1e-4, f"losses differ by {worst:.2g}")
    scene.require_nothing_left()
    return f"losses within {worst:.1e} of one host"


def by_pmix(scene):
    """srun --mpi=pmix: its tasks tell each other where they are, and one of each node becomes its host's agent."""
    known = scene.slurm.run(*scene.slurm.with_pmix([slurm.find("srun"), "--mpi=list"]))
    if "pmix" not in known.stdout + known.stderr:
        return "left out: this Slurm has no plugin for PMIx"
    fields = f"launch.ranks=4 {PLAIN} train.steps=8"
    scene.number += 1
    scene.logs = scene.slurm.folder / f"logs.{scene.number}"
    one = scene.command(f"run {JOB} launch.log_dir={scene.logs} {fields}")
    require(one.returncode == 0, one.stdout + one.stderr)
    words = [slurm.find("srun"), "--mpi=pmix", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2",
             *shlex.split(f"{scene.trainctl} run {JOB} launch.log_dir={scene.logs} {fields}")]
    said = scene.slurm.run(*scene.slurm.with_pmix(words), timeout=slurm.PATIENCE)
    require(said.returncode == 0 and "PMIx of Slurm: 2 hosts" in said.stdout, said.stdout + said.stderr)
    worst = judge.difference(scene.losses(1), scene.losses(2), 8)
    require(worst < 1e-4, f"losses differ by {worst:.2g}")
    return f"losses within {worst:.1e} of one host"


def elastic(scene):
    """--no-kill with launch.elastic: a node goes down, and the job resumes at once on the one that is left, in the same allocation."""
    job = scene.submit(f"launch.slurm.nodes=2 launch.ranks=2 {PLAIN} {LONG} 'train.checkpoint={{every_steps: 25}}' "
                       "'launch.elastic={min_ranks: 1}' launch.reconnect=10s launch.slurm.requeue=false")
    scene.begun(job, steps=60)
    fields = scene.slurm.job(job)
    node = next(name for name in scene.slurm.nodes if name != fields["BatchHost"])
    last = max(scene.losses())
    scene.slurm.fail_node(node)
    try:
        scene.slurm.output("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        require(eventually(lambda: max(scene.losses(), default=0) > last + 50), f"{scene.slurm.job(job)} {scene.said(job)}")
        now = scene.slurm.job(job)
        require(now["JobState"] == "RUNNING" and now["Restarts"] == "0", f"{now}")
        require("replanned for 1 rank" in (scene.logs / f"slurm-{job}.out").read_text(), scene.said(job))
        scene.command(f"stop --slurm {job}")
        scene.end(job)
        scene.require_nothing_left()
    finally:
        scene.slurm.start_node(node)
        scene.slurm.output("scontrol", "update", f"NodeName={node}", "State=RESUME")
        eventually(lambda: scene.slurm.state(node).startswith("IDLE"))
    return f"{node} went down after step {last}; on with one rank in the same allocation"


CASES = [dry_run, two_nodes, array, in_salloc, by_pmix, stopped, cancelled, elastic, node_down, time_limit]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainctl")
    parser.add_argument("--only", action="append")
    parser.add_argument("--keep", help="a folder for logs and state, not deleted")
    options = parser.parse_args()
    reason = slurm.missing()
    if reason:
        print("skipped: " + reason)
        return 77
    failed = 0
    with tempfile.TemporaryDirectory(prefix="slurm.", dir=pathlib.Path(options.trainctl).resolve().parent) as folder:
        with slurm.Slurm(options.keep or folder, 2) as cluster:
            scene = Scene(cluster, str(pathlib.Path(options.trainctl).resolve()))
            for case in CASES:
                if options.only and case.__name__ not in options.only:
                    continue
                begin = time.monotonic()
                try:
                    said = case(scene)
                except (AssertionError, OSError, KeyError, subprocess.SubprocessError) as error:
                    said, failed = f"FAILED: {error}", failed + 1
                print(f"{case.__name__:12} {time.monotonic() - begin:6.1f} s  {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
