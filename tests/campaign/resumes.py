#!/usr/bin/env python3
"""Hurts runs while their checkpoints reach the disk, resumes them, and compares losses and samples.

  python3 tests/campaign/resumes.py --trainctl build/release/bin/trainctl --shim libdisk_faults.so --kills 200

A fault is injected at a call that its checkpoints make (disk_faults.c), or one of its processes is killed at a random moment.
Then a checkpoint that was announced must be there, and `--resume` must end with the losses of a run without faults.
After a run without faults, folders as a loss of power may leave them are built from the log of its calls: names and
bytes that were not synced are lost at random.

The ledger: each sample of the data set names itself, and each run prints what its first layer was given. Over the steps
that count, of the run with the fault and of those that continued, under whatever plans, each epoch has each sample once.
"""

import argparse
import array
import collections
import errno
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import host

STEPS, SAMPLES, BATCH = 24, 64, 8
FAULTS = ["kill", "parent", "group", str(errno.ENOSPC), str(errno.EIO), "short", "torn", "killer"]
MOMENTS = ["rank", "writer", "launcher", "all"]
FOLDER = "log_output/1/checkpoints"
JOB = """name: small
dataset: {type: mnist, path: ., label_dtype: f32, batch: %d, transforms: [{rescale: {scale: 0.0078125, shift: 0.0}}]}
network:
  - {name: read, type: flatten}
  - {name: fc1, type: dense, units: 16}
  - {name: act1, type: relu}
  - {name: out, type: dense, units: 1}
loss: mse
print: {tensors: [read], format: npy}
""" % BATCH
PLAN = ["launch.ranks=2", "parallel.mode=data_parallel"]
OTHER_PLANS = [
    ["launch.ranks=4", "parallel.mode=data_parallel"],
    ["launch.ranks=1", "parallel.micro_batches=4"],
    ["launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.micro_batches=2"],
    ["launch.ranks=4", "parallel.mode=data_parallel", "parallel.optimizer_shard.level=3"],
]


def write_samples(folder):
    """Images of 2 x 4 pixels; the first one is the number of the sample."""
    rng = random.Random(1)
    images = b"".join(bytes([n] + [rng.randrange(256) for _ in range(7)]) for n in range(SAMPLES))
    with open(folder + "/train-images-idx3-ubyte", "wb") as file:
        file.write(struct.pack(">IIII", 0x803, SAMPLES, 2, 4) + images)
    with open(folder + "/train-labels-idx1-ubyte", "wb") as file:
        file.write(struct.pack(">II", 0x801, SAMPLES) + bytes(n % 10 for n in range(SAMPLES)))


def samples_of(folder, run, step):
    """The numbers of the samples that the first layer read in that step."""
    with open(f"{folder}/log_output/{run}/tensors/step.{step}/read.npy", "rb") as file:
        text = file.read()
    values = array.array("f", text[10 + struct.unpack("<H", text[8:10])[0]:])
    return [round(values[at] * 128) for at in range(0, len(values), 8)]


def ledger(parts):
    """The problems of (folder, run, first step, last step) …, which together are steps 1 to STEPS."""
    epochs = collections.defaultdict(collections.Counter)
    for folder, run, first, last in parts:
        for step in range(first, last + 1):
            epochs[(step - 1) * BATCH // SAMPLES].update(samples_of(folder, run, step))
    wrong = [epoch for epoch in range(STEPS * BATCH // SAMPLES) if epochs[epoch] != collections.Counter(range(SAMPLES))]
    return [f"epoch {epoch + 1} has not each sample once: {sorted(epochs[epoch].items())}" for epoch in wrong]


class Campaign:
    def __init__(self, options):
        self.trainctl, self.shim = os.path.abspath(options.trainctl), os.path.abspath(options.shim)
        self.rng = random.Random(options.seed)
        self.root = tempfile.mkdtemp(prefix="trainctl-resumes-")
        self.counts = collections.defaultdict(collections.Counter)

    def folder(self, name):
        path = f"{self.root}/{name}"
        os.mkdir(path)
        write_samples(path)
        with open(path + "/job.yaml", "w") as file:
            file.write(JOB)
        return path

    def start(self, folder, *words, saved=True, plan=PLAN, faults=None, waits="false"):
        save = f", checkpoint: {{every_steps: 5, async: {waits}, keep: 2}}" if saved else ""
        environment = dict(os.environ, OMP_NUM_THREADS="1", XDG_RUNTIME_DIR=self.root)
        if faults is not None:
            environment.update(LD_PRELOAD=self.shim, FAULT_FOLDER="/checkpoints", FAULT_LOG=folder + "/calls", **faults)
        line = [self.trainctl, "run", "job.yaml", f"train={{steps: {STEPS}{save}}}", "launch.device=cpu", *plan,
                "optimizer={type: adam, learning_rate: 0.01}", *words]
        return subprocess.Popen(line, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, start_new_session=True)

    @staticmethod
    def finish(process):
        """Output of the run; it says at its end that it did not end by itself."""
        try:
            return process.communicate(timeout=600)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.communicate()[0] + "\nDID NOT END"

    def run(self, folder, *words, **how):
        process = self.start(folder, *words, **how)
        return process, self.finish(process)

    def losses(self, folder, run):
        found = {}
        for line in open(f"{folder}/log_output/{run}/metrics.jsonl"):
            entry = json.loads(line) if line.endswith("\n") else {}
            if "loss" in entry:  # rows of the data pipeline have a run_step too
                found.setdefault(entry["run_step"], []).append(entry["loss"])
        return found

    def check(self, kind, name, problems, text=""):
        print(f"{name:<28} {'; '.join(problems) if problems else 'ok'}", flush=True)
        self.counts[kind]["wrong" if problems else "ok"] += 1
        if problems:
            print("".join(f"    | {line}\n" for line in text.splitlines()[-14:]), flush=True)

    def hurt_problems(self, folder, process, text, reference):
        """The problems of a run with a fault: it must end, and if it ends with code 0, have the losses of one without faults."""
        if text.endswith("DID NOT END"):
            return ["the run with the fault did not end"]
        if process.returncode == 0 and self.losses(folder, 1) != reference:
            return ["the run with the fault continued with other losses"]
        return []

    def resume(self, folder, announced, reference, source=None, plan=None):
        """The problems of a resumed run: an older checkpoint than was announced, other losses, samples that are missing.
        `source`: the folder of the run with the fault."""
        process, text = self.run(folder, "--resume", plan=plan or PLAN)
        step = re.search(r"resuming after step (\d+)", text)
        if process.returncode != 0 or not step:
            nothing = "no complete checkpoint" in text and announced == 0
            return ([] if nothing else [f"not resumed: exit code {process.returncode}"]), text
        step, problems = int(step.group(1)), []
        if step < announced:
            problems.append(f"continued after step {step}, but {announced} was announced")
        runs = sorted(int(name) for name in os.listdir(folder + "/log_output") if name.isdigit())
        if step == STEPS:
            return problems + ledger([(source or folder, 1, 1, STEPS)]), text
        found, wanted = self.losses(folder, runs[-1]), {n: reference[n] for n in range(step + 1, STEPS + 1)}
        if plan is None and found != wanted:
            problems.append("different losses than the run without faults")
        if plan is not None and not are_close(found, wanted):
            problems.append("under another plan, different losses than within rounding")
        return problems + ledger([(source or folder, 1, 1, step), (folder, runs[-1], step + 1, STEPS)]), text

    def kill_at_a_moment(self, process, whom, seconds):
        """Kills a process of the run, at most that long after it was started."""
        time.sleep(self.rng.uniform(0, seconds))
        victims = [process.pid]
        children = host.children(process.pid)
        if whom == "rank":
            victims = list(host.ranks(process.pid).values())[:1]
        elif whom == "writer":
            victims = [pid for pid in children if host.read(f"/proc/{pid}/comm").strip() == b"trainctl-save"]
        elif whom == "all":
            victims += children
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended


def are_close(found, wanted):
    if found.keys() != wanted.keys():
        return False
    return all(len(found[n]) == 1 and abs(found[n][0] - wanted[n][0]) <= 1e-4 * max(1, abs(wanted[n][0])) for n in wanted)


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
    start = time.monotonic()
    campaign.run(whole, saved=False)
    seconds = time.monotonic() - start
    reference = campaign.losses(whole, 1)
    undisturbed = campaign.folder("undisturbed")
    process, text = campaign.run(undisturbed, faults={})
    calls = len(open(undisturbed + "/calls").readlines())
    problems = [] if process.returncode == 0 and campaign.losses(undisturbed, 1) == reference else ["failed"]
    campaign.check("undisturbed", f"{calls} calls, no fault", problems or ledger([(undisturbed, 1, 1, STEPS)]), text)

    for index in range(options.kills):
        kind = (FAULTS + MOMENTS)[index % len(FAULTS + MOMENTS)]
        folder = campaign.folder(f"kill.{index}")
        plan = OTHER_PLANS[index // 3 % len(OTHER_PLANS)] if index % 3 == 2 else None
        if kind in FAULTS:
            at = 1 + (index * calls // options.kills + campaign.rng.randrange(max(1, calls // options.kills))) % calls
            name = f"{kind} at call {at}"
            process, said = campaign.run(folder, "launch.max_restarts=0", faults={"FAULT_AT": str(at), "FAULT": kind})
        else:
            name = f"{kind} killed at a moment"
            process = campaign.start(folder, "launch.max_restarts=0", waits="true")
            campaign.kill_at_a_moment(process, kind, seconds)
            said = campaign.finish(process)
        problems = campaign.hurt_problems(folder, process, said, reference)
        more, text = campaign.resume(folder, announced_in(said), reference, plan=plan)
        campaign.check(kind, name, problems + more, said + text)
        shutil.rmtree(folder, ignore_errors=True)

    for index in range(options.power):
        folder = campaign.folder(f"power.{index}")
        at = campaign.rng.randint(1, calls)
        share = [0.0, 1.0, 0.5, 0.9, 0.1][index % 5]
        replay(undisturbed + "/calls", folder, at, lambda: campaign.rng.random() < share)
        problems, text = campaign.resume(folder, announced_by(undisturbed + "/calls", at), reference, source=undisturbed)
        campaign.check("power", f"power lost after call {at}, {share:.0%} kept", problems, text)
        shutil.rmtree(folder, ignore_errors=True)
    for kind, count in campaign.counts.items():
        print(f"{os.strerror(int(kind)) if kind.isdigit() else kind:<28} {count['ok']} ok, {count['wrong']} wrong")
    bad = sum(count["wrong"] for count in campaign.counts.values())
    print(f"{bad} went wrong")
    shutil.rmtree(campaign.root, ignore_errors=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
