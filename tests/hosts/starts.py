"""Measures how fast a run starts on test hosts (network.py), compared with torchrun on the same hosts in the same run.

    python3 tests/hosts/starts.py TRAINCTL [--rounds 3] [--python build/peers/bin/python3] [--only steps|ranks]

steps: 8 ranks on 4 hosts with a warm cache, from the command to the end of the first step, and to the end of a run of one step; under torchrun
a script with one all_reduce, started by ssh on each host with `--rdzv-backend c10d`, as its documentation says. Both from the same
launcher's host, in turns.
ranks: 1,000 ranks of `command: [true]` over 4 hosts, and the memory of launcher and agents beside that of 100 ranks.
Needs root, as hosts_test.py; exits with 77 and the reason where it cannot. Without a Python that has torch, torchrun is left out, and a line says so.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import network
from scene import JOB, require

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = list("abcd")
MOST_FIRST_STEP_SECONDS, MOST_MANY_RANKS_SECONDS, MOST_GROWTH_BYTES = 3.0, 10.0, 64_000_000
PEER = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
layer = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
loss = layer(torch.zeros(4, 784)).abs().mean()
loss.backward()
for p in layer.parameters():
    dist.all_reduce(p.grad)
if dist.get_rank() == 0:
    print("first step", time.time(), flush=True)
dist.destroy_process_group()
"""


class MemoryWatch:
    """The most memory that processes of trainctl's launcher and agents have had."""

    def __init__(self):
        self.most, self.ends = {"launcher": 0, "agent": 0}, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while not self.ends.wait(0.05):
            for entry in pathlib.Path("/proc").iterdir():
                if not entry.name.isdigit():
                    continue
                try:
                    name = (entry / "comm").read_text().strip()
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    memory = int(re.search(r"VmRSS:\s+(\d+)", (entry / "status").read_text()).group(1)) * 1024
                except (OSError, AttributeError):
                    continue
                if name == "trainctl-agent":
                    self.most["agent"] = max(self.most["agent"], memory)
                elif len(words) > 1 and words[0].endswith(b"/trainctl") and words[1] == b"run":
                    self.most["launcher"] = max(self.most["launcher"], memory)

    def end(self):
        self.ends.set()
        self.thread.join()
        return self.most


class Starts:
    def __init__(self, hosts, trainctl, python):
        self.hosts, self.trainctl, self.python, self.runs = hosts, trainctl, python, 0
        self.folder = pathlib.Path(hosts.folder)

    def trainctl_step(self):
        """(seconds to the first step, seconds to the end)"""
        self.runs += 1
        logs = self.folder / f"logs.{self.runs}"
        begin = time.time()
        result = self.hosts.run(f"{self.trainctl} run {JOB} train.checkpoint=null train.steps=1 launch.ranks=8 launch.hosts='[{', '.join(NAMES)}]' "
                                f"launch.log_dir={logs}")
        end = time.time()
        require(result.returncode == 0, result.stdout + result.stderr)
        # A rank writes this file when its first step is done; the launcher's copy is as old as that, or younger.
        first = max((logs / f"1/rank.{rank}/start_up.json").stat().st_mtime for rank in range(8))
        return first - begin, end - begin

    def torchrun_step(self):
        self.runs += 1
        script = self.folder / "peer.py"
        script.write_text(PEER)
        address = self.hosts.hosts["a"].address
        begin = time.time()
        processes = [subprocess.Popen(
            self.hosts.launcher.inside(
                f"ssh -oBatchMode=yes {name} GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1 {self.python} -m torch.distributed.run --nnodes 4 "
                f"--nproc-per-node 2 --rdzv-backend c10d --rdzv-id {self.runs} --rdzv-endpoint {address}:29{self.runs % 900 + 100} {script}"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for name in NAMES]
        said = [process.communicate(timeout=300) for process in processes]
        end = time.time()
        require(all(process.returncode == 0 for process in processes), "\n".join(text for pair in said for text in pair)[-3000:])
        first = float(re.search(r"first step ([\d.]+)", "".join(out for out, _ in said)).group(1))
        return first - begin, end - begin

    def many(self, ranks):
        self.runs += 1
        job = self.folder / "true.yaml"
        job.write_text(f"name: many\ncommand: ['true']\nlaunch: {{ranks: {ranks}, hosts: [{', '.join(NAMES)}]}}\n")
        watch = MemoryWatch()
        begin = time.time()
        result = self.hosts.run(f"{self.trainctl} run {job} launch.log_dir={self.folder}/logs.{self.runs}")
        seconds = time.time() - begin
        memory = watch.end()
        require(result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:])
        outcome = json.loads((self.folder / f"logs.{self.runs}/1/outcome.json").read_text())
        require(outcome["exit_code"] == 0, f"{outcome}")
        return seconds, memory


def steps(starts, rounds):
    starts.trainctl_step()  # the program is copied
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(starts.trainctl_step())
        print(f"trainctl: first step after {ours[-1][0]:.2f} s, ended after {ours[-1][1]:.2f} s", flush=True)
        if starts.python:
            theirs.append(starts.torchrun_step())
            print(f"torchrun: first step after {theirs[-1][0]:.2f} s, ended after {theirs[-1][1]:.2f} s", flush=True)
    median = statistics.median(first for first, _ in ours)
    if theirs:
        peer = statistics.median(first for first, _ in theirs)
        print(f"first step, medians of {rounds}: trainctl {median:.2f} s, torchrun {peer:.2f} s: {peer / median:.1f} times as fast")
        require(median < peer, "torchrun starts faster")
    else:
        print("torchrun is left out: no Python with torch (./bootstrap peers, or --python)")
    require(median < MOST_FIRST_STEP_SECONDS, f"first step after {median:.2f} s, not within {MOST_FIRST_STEP_SECONDS} s")


def ranks(starts, rounds):
    del rounds
    starts.many(4)
    few_seconds, few = starts.many(100)
    seconds, memory = starts.many(1000)
    for who in memory:
        print(f"{who}: {few[who] / 1e6:.0f} MB with 100 ranks, {memory[who] / 1e6:.0f} MB with 1,000")
        require(0 < memory[who] < few[who] + MOST_GROWTH_BYTES, f"the {who}'s memory grows with the ranks")
    print(f"command: [true]: 100 ranks {few_seconds:.2f} s, 1,000 ranks {seconds:.2f} s")
    require(seconds < MOST_MANY_RANKS_SECONDS, f"1,000 ranks took {seconds:.2f} s, not within {MOST_MANY_RANKS_SECONDS} s")


def has_torch(python):
    return os.access(python, os.X_OK) and subprocess.run([python, "-c", "import torch.distributed.run"], capture_output=True, check=False).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainctl")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", default=str(ROOT / "build/peers/bin/python3"))
    parser.add_argument("--only", choices=["steps", "ranks"])
    options = parser.parse_args()
    reason = network.missing()
    if reason:
        print("skipped: " + reason)
        return 77
    python = options.python if has_torch(options.python) else None
    with tempfile.TemporaryDirectory(prefix="hosts.", dir=pathlib.Path(options.trainctl).resolve().parent) as folder:
        with network.Network(folder, NAMES) as hosts:
            starts = Starts(hosts, str(pathlib.Path(options.trainctl).resolve()), python)
            for part in (steps, ranks):
                if options.only in (None, part.__name__):
                    part(starts, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
