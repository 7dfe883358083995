"""Runs on hosts that cannot see the launcher's folder: the checkpoint that a run resumes from must be sent to them.

    python3 tests/hosts/separate_trees.py TRAINCTL [--only NAME]

The "hosts" are mount namespaces in which the launcher's folder is empty, reached through a program in place of ssh. Needs root;
exits with 77 and the reason where it cannot make them.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

SECONDS = 120

SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
[ -e FOLDER/$host.is_lost ] && exit 255
mkdir -p FOLDER/home.$host
exec unshare -m sh -c "mount -t tmpfs none FOLDER/own; HOME=FOLDER/home.$host; export HOME; unset XDG_CACHE_HOME XDG_RUNTIME_DIR; $*"
"""

JOB = """name: apart
dataset: {type: random, shape: [8], label_dtype: f32, samples: 64, batch: 8}
validation: {dataset: {samples: 16}}
network: [{name: fc, type: dense, units: 16}, {name: out, type: dense, units: 1}]
loss: mse
optimizer: {type: adam, learning_rate: 0.001}
parallel: {mode: data_parallel}
launch: {ranks: 2, device: cpu, hosts: [a, b], ssh: FOLDER/ssh, interface: lo, log_dir: FOLDER/own/logs}
"""


class Scene:
    def __init__(self, trainctl, folder):
        self.trainctl, self.folder = trainctl, pathlib.Path(folder)
        (self.folder / "own").mkdir()
        ssh = self.folder / "ssh"
        ssh.write_text(SSH.replace("FOLDER", folder))
        ssh.chmod(0o755)
        self.job = self.folder / "own/job.yaml"
        self.job.write_text(JOB.replace("FOLDER", folder))
        self.environment = dict(os.environ, OMP_NUM_THREADS="1", XDG_RUNTIME_DIR=folder)

    def run(self, *words, command="run"):
        done = subprocess.run([self.trainctl, command, str(self.job), *words], cwd=self.folder, env=self.environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False)
        return done.returncode, done.stdout + done.stderr

    def start(self, *words):
        self.out = self.folder / "out"
        return subprocess.Popen([self.trainctl, "run", str(self.job), *words], cwd=self.folder, env=self.environment,
                                stdin=subprocess.DEVNULL, stdout=open(self.out, "w"), stderr=subprocess.STDOUT, start_new_session=True)

    def said(self):
        return self.out.read_text()

    def steps(self, run=1):
        lines = [json.loads(line) for line in (self.folder / f"own/logs/{run}/metrics.jsonl").read_text().splitlines()]
        return [line["run_step"] for line in lines if "run_step" in line and "kind" not in line and "mean_loss" not in line]

    def processes_of(self, host, word):
        """Pids of processes of that host whose command line has the word."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and f"HOME={self.folder}/home.{host}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    if word.encode() in (entry / "cmdline").read_bytes():
                        found.append(int(entry.name))
            except OSError:
                pass
        return found


def require(holds, what):
    if not holds:
        raise AssertionError(what)


def eventually(holds, process, scene, what):
    end = time.monotonic() + SECONDS
    while not holds():
        require(time.monotonic() < end and process.poll() is None, f"{what}: {scene.said()[-2000:]}")
        time.sleep(0.05)


def resumed(scene):
    """--resume on hosts without the launcher's folder: the checkpoint is sent to them."""
    saves = "checkpoint: {every_steps: 5}"
    code, said = scene.run(f"train={{steps: 10, {saves}}}")
    require(code == 0, said)
    code, said = scene.run(f"train={{steps: 20, {saves}}}", "--resume")
    require(code == 0 and "resuming after step 10 " in said, said)
    require(scene.steps(2) == list(range(11, 21)), f"steps {scene.steps(2)}")


def evaluated(scene):
    """evaluate reads the final weights of a run without checkpoints."""
    code, said = scene.run("train.steps=10")
    require(code == 0 and "final weights of step 10" in said, said)
    code, said = scene.run("--checkpoint", "latest", "--json", command="evaluate")
    require(code == 0 and '"step": 10' in said, said)


def restarted(scene):
    """max_restarts after the death of a rank: metrics.jsonl has each step once."""
    process = scene.start("train={steps: 3000, epochs: 1000000, checkpoint: {every_steps: 50}}", "launch.max_restarts=2")
    eventually(lambda: "checkpoint of step" in scene.said(), process, scene, "it saves")
    os.kill(scene.processes_of("b", "worker")[0], signal.SIGKILL)
    require(process.wait(SECONDS) == 0, scene.said()[-2000:])
    require("resuming after step" in scene.said(), scene.said()[-2000:])
    require(scene.steps() == list(range(1, 3001)), "each step once, in order")


def elastic(scene):
    """The loss of rank 0's host costs no line of metrics.jsonl; the rest resumes in a folder that other runs have used."""
    keep = f"checkpoint: {{every_steps: 50, dir: {scene.folder}/own/ck}}"
    process = scene.start(f"train={{steps: 4000, epochs: 1000000, {keep}}}", "launch.elastic=1", "launch.ranks=2", "launch.reconnect=8s")
    eventually(lambda: "checkpoint of step" in scene.said(), process, scene, "it saves")
    (scene.folder / "a.is_lost").touch()
    for pid in scene.processes_of("a", "trainctl"):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    require(process.wait(SECONDS) == 0, scene.said()[-2000:])
    require("1 rank instead of 2" in scene.said() or "replanned" in scene.said(), scene.said()[-2000:])
    continued = int(re.search(r"resum(?:ed|ing) after step (\d+)", scene.said()).group(1))
    require(continued >= 50, f"it resumed: {scene.said()[-2000:]}")
    require(scene.steps() == list(range(1, 4001)), f"each step once: {len(scene.steps())} lines of 4000; continued after {continued}")


def printed(scene):
    """A tensor whose rows are on both hosts is one whole file: the same as that of a run on this host."""
    words = ["train.steps=4", "print={tensors: [fc], format: npy}"]
    code, said = scene.run(*words)
    require(code == 0, said)
    code, said = scene.run(*words, "launch.hosts=[]")
    require(code == 0, said)
    for step in range(1, 5):
        apart, alone = ([path.name for path in (scene.folder / f"own/logs/{run}/tensors/step.{step}").iterdir()] for run in (1, 2))
        require(apart == alone == ["fc.npy"], f"files of step {step}: {apart}, {alone}")
        values = []
        for run in (1, 2):
            data = (scene.folder / f"own/logs/{run}/tensors/step.{step}/fc.npy").read_bytes()
            head = data.index(b"\n") + 1
            values.append(struct.unpack(f"<{(len(data) - head) // 4}f", data[head:]))
        require(len(values[0]) == len(values[1]) and values[0], f"sizes of step {step}")
        require(all(abs(a - b) < 1e-4 for a, b in zip(*values)), f"values of step {step}")


CASES = [resumed, evaluated, restarted, elastic, printed]


def missing():
    if os.geteuid() != 0:
        return "needs root: it makes mount namespaces"
    made = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True, check=False)
    return None if made.returncode == 0 else "namespaces are not permitted here: " + made.stderr.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainctl")
    parser.add_argument("--only")
    options = parser.parse_args()
    if missing():
        print("skipped: " + missing())
        return 77
    failed = 0
    for case in CASES:
        if options.only not in (None, case.__name__):
            continue
        with tempfile.TemporaryDirectory(prefix="trainctl-trees.", dir="/var/tmp") as folder:
            scene, begin, said = Scene(os.path.abspath(options.trainctl), folder), time.monotonic(), "ok"
            try:
                case(scene)
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                said, failed = f"FAILED: {error}", failed + 1
            print(f"{case.__name__:10} {time.monotonic() - begin:6.1f} s  {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
