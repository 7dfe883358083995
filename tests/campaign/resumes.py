#!/usr/bin/env python3
"""Hurts runs at the calls by which their checkpoints reach the disk, resumes them, and compares the losses.

  python3 tests/campaign/resumes.py --trainctl build/release/bin/trainctl --shim libdisk_faults.so --kills 200

Each run is hurt once (disk_faults.c). Then a checkpoint that was announced must be there, and `--resume` must end with
the losses of a run that nothing hurt. After a run that was not hurt, folders as a loss of power may leave them are built
from the log of its calls: names and bytes that were not synced are lost at random.
"""

import argparse
import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../jobs"))
from jobs import job_file

STEPS = 24
FAULTS = ["kill", "parent", "group", str(errno.ENOSPC), str(errno.EIO), "short"]
FOLDER = "log_output/1/checkpoints"


class Campaign:
    def __init__(self, options):
        self.trainctl, self.shim = os.path.abspath(options.trainctl), os.path.abspath(options.shim)
        self.rng = random.Random(options.seed)
        self.root = tempfile.mkdtemp(prefix="trainctl-resumes-")
        self.bad = 0

    def folder(self, name):
        path = f"{self.root}/{name}"
        os.mkdir(path)
        shutil.copy(job_file("small"), path + "/job.yaml")
        return path

    def run(self, folder, *words, saved=True, faults=None):
        train = f"train={{steps: {STEPS}, checkpoint: {{every_steps: 5, async: false, keep: 2}}}}" if saved else f"train.steps={STEPS}"
        environment = dict(os.environ, OMP_NUM_THREADS="1", XDG_RUNTIME_DIR=self.root)
        if faults is not None:
            environment.update(LD_PRELOAD=self.shim, FAULT_FOLDER="/checkpoints", FAULT_LOG=folder + "/calls", **faults)
        line = [self.trainctl, "run", "job.yaml", train, "launch.ranks=2", "launch.device=cpu", "parallel.mode=data_parallel",
                "optimizer={type: adam, learning_rate: 0.01}", *words]
        process = subprocess.Popen(line, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, start_new_session=True)
        try:
            return process, process.communicate(timeout=200)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process, process.communicate()[0] + "\nDID NOT END"

    def losses(self, folder, run):
        found = {}
        for line in open(f"{folder}/log_output/{run}/metrics.jsonl"):
            entry = json.loads(line) if line.endswith("\n") else {}
            if "run_step" in entry:
                found.setdefault(entry["run_step"], []).append(entry["loss"])
        return found

    def check(self, name, problems, text=""):
        print(f"{name:<28} {'; '.join(problems) if problems else 'ok'}", flush=True)
        self.bad += bool(problems)
        if problems:
            print("".join(f"    | {line}\n" for line in text.splitlines()[-12:]))

    def resume(self, folder, announced, reference):
        """The problems of a resumed run: an older checkpoint than was announced, other losses, a step twice or never."""
        process, text = self.run(folder, "--resume")
        step = re.search(r"going on after step (\d+)", text)
        if process.returncode != 0 or not step:
            nothing = "there is no complete checkpoint" in text and announced == 0
            return ([] if nothing else [f"not resumed: exit code {process.returncode}"]), text
        step, problems = int(step.group(1)), []
        if step < announced:
            problems.append(f"went on after step {step}, but {announced} was announced")
        runs = sorted(int(name) for name in os.listdir(folder + "/log_output") if name.isdigit())
        found = self.losses(folder, runs[-1]) if step < STEPS else {}
        if found != {n: reference[n] for n in range(step + 1, STEPS + 1)}:
            problems.append("other losses than the run that nothing hurt")
        return problems, text


def announced_in(text):
    return max([int(n) for n in re.findall(r"checkpoint of step (\d+): ", text)], default=0)


def replay(log, folder, crash_at, keep):
    """Builds the folder as a loss of power after `crash_at` calls leaves it. A file's bytes survive if it was synced after
    them, its name if the folder above was; `keep` decides the others. Files are objects: a rename moves a name."""
    with open(log) as file:
        calls = [line.rstrip("\n").split("\t") for line in file][:crash_at]
    data = open(log + ".data", "rb").read() if os.path.exists(log + ".data") else b""

    # Every operation on names waits in its parent's list until that is synced; every write in its file's.
    operations = []
    for number, call, path, *more in calls:
        if call == "fsync":
            for operation in operations:
                operation["safe"] |= operation["of"] == path
            continue
        above = os.path.dirname(path)
        operations.append({"call": call, "path": path, "more": more, "of": path if call == "write" else above, "safe": False})
        if call == "rename":  # what was written under the old name keeps its safety; later syncs use the new one
            for operation in operations[:-1]:
                if operation["of"] == path or operation["of"].startswith(path + "/"):
                    operation["of"] = more[0] + operation["of"][len(path):]
    shutil.rmtree(folder + "/" + FOLDER, ignore_errors=True)
    os.makedirs(folder + "/" + FOLDER)
    for operation in operations:
        if not (operation["safe"] or keep()):
            continue
        path, more = f"{folder}/{operation['path']}", operation["more"]
        try:
            if operation["call"] == "mkdir":
                os.makedirs(path, exist_ok=True)
            elif operation["call"] == "create":
                open(path, "wb" if more and more[0] == "trunc" else "ab").close()
            elif operation["call"] == "write":
                at, size, where = map(int, more)
                with open(path, "r+b") as file:
                    file.seek(at)
                    file.write(data[where:where + size])
            elif operation["call"] == "rename":
                os.rename(path, f"{folder}/{more[0]}")
            elif operation["call"] == "unlink":
                os.unlink(path)
            elif operation["call"] == "rmdir":
                os.rmdir(path)
        except OSError:
            pass  # what it acted on was lost



def announced_by(log, crash_at):
    """Steps whose rename was synced before the crash."""
    step = published = 0
    for line in open(log).read().splitlines()[:crash_at]:
        _, call, path, *more = line.split("\t")
        if call == "rename" and (found := re.search(r"step_0*(\d+)$", more[0])):
            step = int(found.group(1))
        if call == "fsync" and path.endswith("/checkpoints"):
            published = step
    return published


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainctl", required=True)
    parser.add_argument("--shim", required=True)
    parser.add_argument("--kills", type=int, default=18)
    parser.add_argument("--power", type=int, default=12, help="losses of power")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    campaign = Campaign(options)
    whole = campaign.folder("whole")
    campaign.run(whole, saved=False)
    reference = campaign.losses(whole, 1)
    unhurt = campaign.folder("unhurt")
    process, text = campaign.run(unhurt, faults={})
    calls = len(open(unhurt + "/calls").readlines())
    campaign.check(f"{calls} calls, none hurt", [] if process.returncode == 0 and campaign.losses(unhurt, 1) == reference else ["failed"], text)

    for index in range(options.kills):
        fault = FAULTS[index % len(FAULTS)]
        at = 1 + (index * calls // options.kills + campaign.rng.randrange(max(1, calls // options.kills))) % calls
        folder = campaign.folder(f"kill.{index}")
        _, said = campaign.run(folder, "launch.max_restarts=0", faults={"FAULT_AT": str(at), "FAULT": fault})
        problems, text = campaign.resume(folder, announced_in(said), reference)
        campaign.check(f"{fault} at call {at}", problems, said + text)
        shutil.rmtree(folder, ignore_errors=True)

    for index in range(options.power):
        folder = campaign.folder(f"power.{index}")
        at = campaign.rng.randint(1, calls)
        share = [0.0, 1.0, 0.5, 0.9, 0.1][index % 5]
        replay(unhurt + "/calls", folder, at, lambda: campaign.rng.random() < share)
        problems, text = campaign.resume(folder, announced_by(unhurt + "/calls", at), reference)
        campaign.check(f"power lost after call {at}, {share:.0%} kept", problems, text)
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{campaign.bad} went wrong")
    shutil.rmtree(campaign.root, ignore_errors=True)
    return 1 if campaign.bad else 0


if __name__ == "__main__":
    sys.exit(main())
