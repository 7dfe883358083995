#!/usr/bin/env python3
"""Injects faults into runs with asynchronous parameter servers at random moments, and checks how they end.

  python3 tests/campaign/servers.py --trainctl build/release/bin/trainctl --faults 100

Workers that are killed, stopped or restarted must not end the run: it makes all of its steps. A server that is killed
ends it, with its name as the first cause, and with checkpoints --resume continues. Nothing may be left behind. Prints a row
per fault; exits with 1 if one went wrong. The same seed gives the same faults."""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

JOB = """
name: faults
seed: 3
{network}
loss: softmax_cross_entropy
optimizer: {{type: adam, learning_rate: 0.001}}
train: {{steps: {steps}{more}}}
parallel: {{mode: parameter_server, servers: {servers}, sync: false, staleness: {staleness}, rebalance: {rebalance}{tables}}}
launch: {{ranks: {workers}, device: cpu, timeout: 10s, grace: 10s{launch}}}
"""
DENSE = """dataset: {type: random, shape: [16], classes: 4, batch: 16, samples: 160}
network:
  - {name: fc1, type: dense, units: 32}
  - {type: relu}
  - {name: fc2, type: dense, units: 4}"""
TABLES = """dataset: {type: clicks, shape: [4], ids: 4, vocab: 100000, batch: 16, samples: 160}
network:
  - {name: table, type: embedding, inputs: [ids], vocab: 100000, units: 8}
  - {name: flat, type: flatten}
  - {name: both, type: concat, inputs: [flat, data], dim: 1}
  - {name: out, type: dense, units: 2}"""
STEPS = 400  # of 5 ms
PATIENCE = 600  # seconds after which something hangs
KINDS = ["worker killed", "two workers killed", "worker stopped", "worker joins", "server killed", "server killed, resumed",
         "interrupted", "all workers killed"]
ROW = "{:>3}  {:<24} {:>2}x{} {:>9} {:>5} {:>6.1f}  {}"


def processes(launcher):
    """The processes of the run, as a map from rank to pid."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        if b"worker" in words and b"--rank" in words and parent == launcher:
            found[int(words[words.index(b"--rank") + 1])] = int(entry.name)
    return found


def read_json(path):
    try:
        return json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError):
        return {}


def steps_of(log, workers):
    """The highest step in the workers' logs."""
    highest = 0
    for rank in range(workers):
        try:
            lines = pathlib.Path(f"{log}/rank.{rank}/stdout").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if " step: " in line:
                epoch, step = int(line.split("epoch: ")[1].split()[0]), int(line.split("step: ")[1].split(",")[0])
                highest = max(highest, (epoch - 1) * 10 + step)
    return highest


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Over(Exception):
    """The run was over, or nearly, before the fault: this test was delayed. It then repeats the fault with a longer run."""


class Run:
    def __init__(self, options, rng, kind, steps):
        self.options, self.kind, self.steps = options, kind, steps
        self.workers, self.servers = rng.randint(2, 4), rng.randint(1, 2)
        self.folder = tempfile.mkdtemp(prefix="servers.")
        tables = rng.random() < 0.5
        more = ", checkpoint: {every_steps: 40}" if "resumed" in kind else ""
        launch = ", max_restarts: 2" if "joins" in kind else ""
        pathlib.Path(self.folder, "job.yaml").write_text(
            JOB.format(network=TABLES if tables else DENSE, tables=", tables: [table]" if tables else "", steps=steps, servers=self.servers, staleness=rng.randint(1, 4), workers=self.workers,
                       rebalance=rng.choice(["true", "false"]), more=more, launch=launch))
        self.log = f"{self.folder}/log_output/1"
        self.pids = {}

    def start(self, *arguments):
        environment = {**os.environ, "TRAINCTL_TEST_SPEED": "300:1:0:0"}  # 5 ms per step
        self.launcher = subprocess.Popen([self.options.trainctl, "run", "job.yaml", *arguments], cwd=self.folder, text=True,
                                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)

    def wait_for_step(self, step):
        end = time.monotonic() + PATIENCE
        while steps_of(self.log, self.workers) < step:
            if self.launcher.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"step {step} was never reached")
            time.sleep(0.01)
        self.pids = processes(self.launcher.pid)
        if len(self.pids) < self.workers + self.servers:
            raise Over

    def inject(self, victim, number):
        try:
            os.kill(self.pids[victim], number)
        except ProcessLookupError:
            raise Over from None

    def finish(self):
        try:
            self.out, _ = self.launcher.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.launcher.kill()
            self.out, _ = self.launcher.communicate()
            raise AssertionError("did not end")
        return self.launcher.returncode

    def left(self):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and any(alive(pid) for pid in self.pids.values()):
            time.sleep(0.05)
        return [pid for pid in self.pids.values() if alive(pid)]


def inject(run, rng):
    """Returns what is wrong."""
    kind, wrong = run.kind, []
    run.start()
    run.wait_for_step(rng.randint(20, 200))
    victims = rng.sample(range(run.workers), min(2 if kind == "two workers killed" else 1, run.workers - 1))
    server = run.workers + rng.randrange(run.servers)
    if kind == "all workers killed":
        victims = list(range(run.workers))
    if kind.startswith("server"):
        victims = [server]
    if kind == "interrupted":
        run.launcher.send_signal(signal.SIGINT)
    for victim in victims if kind != "interrupted" else []:
        run.inject(victim, signal.SIGSTOP if kind == "worker stopped" else signal.SIGKILL)
    if steps_of(run.log, run.workers) > 0.9 * run.steps:
        raise Over
    code = run.finish()
    cause = read_json(f"{run.log}/error.json").get("first_cause", {})
    if kind in ("worker killed", "two workers killed", "worker stopped", "worker joins"):
        if code != 0:
            wrong.append(f"exit code {code}")
        if read_json(f"{run.log}/outcome.json").get("step") != run.steps:
            wrong.append(f"outcome.json: {read_json(f'{run.log}/outcome.json').get('step')} steps")
        if "the other workers continue" not in run.out:
            wrong.append("the death was not said")
        if kind == "worker joins" and "a replacement is started" not in run.out:
            wrong.append("no other took its place")
        for index in range(run.servers):
            if f"{run.steps} updates" not in pathlib.Path(f"{run.log}/server.{index}/stdout").read_text():
                wrong.append(f"server {index} made another number of updates")
    elif kind == "interrupted":
        if code != 130:
            wrong.append(f"exit code {code}")
    else:
        if code != 5:
            wrong.append(f"exit code {code}")
        if cause.get("rank") not in victims:
            wrong.append(f"first cause: {cause.get('message', 'none')}")
    if kind == "server killed, resumed":
        was_saved = "checkpoint of step" in run.out  # the server may have been killed before the first one
        run.start("--resume")
        resumed = run.finish() == 0 and "resuming after step" in run.out
        if not resumed and (was_saved or "no complete checkpoint" not in run.out):
            wrong.append("could not be resumed")
    if run.left():
        wrong.append(f"left: {run.left()}")
    return wrong, code


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would the runs
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainctl", required=True)
    parser.add_argument("--faults", type=int, default=len(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.trainctl = os.path.abspath(options.trainctl)
    bad = 0
    for index in range(options.faults):
        steps, start, code = STEPS, time.monotonic(), None
        while True:
            rng = random.Random(f"{options.seed}/{index}")
            run = Run(options, rng, KINDS[index % len(KINDS)], steps)
            try:
                wrong, code = inject(run, rng)
            except AssertionError as error:
                wrong = [str(error)]
                run.launcher.kill()
            except Over:
                run.finish()
                shutil.rmtree(run.folder, ignore_errors=True)
                steps *= 4
                continue
            break
        bad += bool(wrong)
        print(ROW.format(index, run.kind, run.workers, run.servers, "", str(code), time.monotonic() - start,
                         "; ".join(wrong) or "ok"), flush=True)
        if wrong:
            print("      " + run.folder + "\n" + "".join(f"      | {line}\n" for line in getattr(run, "out", "").splitlines()[-12:]))
        else:
            shutil.rmtree(run.folder, ignore_errors=True)
    print(f"{options.faults} faults, {bad} went wrong")
    sys.exit(bad > 0)


main()
