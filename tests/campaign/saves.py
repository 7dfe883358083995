#!/usr/bin/env python3
"""Saves that are many, slow, or without a disk, in runs that continue meanwhile.

  python3 tests/campaign/saves.py --trainctl build/release/bin/trainctl --shim libdisk_faults.so [--only hung]
"""

import argparse
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import host
from resumes import FOLDER, JOB, PLAN, write_samples

MANY = 100  # saves
GROWTH = 2 << 20  # bytes that a process may grow in MANY saves; a leaked copy of the state in each is ten times that
LAG = 30
PATIENCE = 600  # seconds after which something hangs


class Run:
    started = []

    def __init__(self, options, folder, *words, save, steps=10**9, faults=None):
        if not os.path.exists(folder + "/job.yaml"):
            write_samples(folder)
            with open(folder + "/job.yaml", "w") as file:
                file.write(JOB[:JOB.index("print:")].replace("units: 16", "units: 2048"))
        environment = dict(os.environ, OMP_NUM_THREADS="1", XDG_RUNTIME_DIR=folder)
        if faults is not None:
            environment.update({"LD_PRELOAD": options.shim, "FAULT_FOLDER": "/checkpoints", "FAULT_LOG": folder + "/calls", **faults})
        self.folder, self.out = folder, folder + "/out"
        with open(self.out, "w") as out:
            self.process = subprocess.Popen([options.trainctl, "run", "job.yaml", f"train={{steps: {steps}, checkpoint: {{{save}}}}}",
                                             "launch.device=cpu", *PLAN, *words], cwd=folder, env=environment,
                                            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        Run.started.append(self.process)

    def said(self):
        with open(self.out) as file:
            return file.read()

    def lines(self):
        return self.said().count(" step: ")

    def saves(self):
        return len(re.findall(r"checkpoint of step \d+: .* in ", self.said()))

    def wait_for(self, what, holds):
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > deadline or (self.process.poll() is not None and not holds()):
                raise AssertionError(f"waited in vain for {what}; exit code {self.process.poll()}\n{self.said()[-1500:]}")
            time.sleep(0.02)

    def goes_on(self, lines=200):
        """Training does not wait."""
        before = self.lines()
        self.wait_for(f"{lines} more steps", lambda: self.lines() >= before + lines)

    def end(self, code, number=signal.SIGTERM):
        self.process.send_signal(number)
        self.ends(code)

    def ends(self, code, case=""):
        try:
            got = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end in {PATIENCE} s\n{self.said()[-1500:]}")
        assert got == code, f"{case}exit code {got}, not {code}\n{self.said()[-1500:]}"

    def allow(self):
        open(self.folder + "/calls.go", "w").close()

    def published(self):
        folder = f"{self.folder}/{FOLDER}"
        return sorted(name for name in os.listdir(folder) if name.startswith("step_"))

    def verify(self, options):
        """Each checkpoint with a final name is whole."""
        for name in self.published():
            done = subprocess.run([options.trainctl, "checkpoint", "verify", f"{FOLDER}/{name}"], cwd=self.folder,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert done.returncode == 0, done.stdout

    def usage(self):
        """By process: bytes of its own, and open files."""
        pids = [self.process.pid] + host.children(self.process.pid)
        found = {}
        for pid in pids:
            anonymous = re.search(rb"RssAnon:\s+(\d+)", host.read(f"/proc/{pid}/status"))
            shared = re.search(rb"RssShmem:\s+(\d+)", host.read(f"/proc/{pid}/status"))
            if anonymous:
                name = host.read(f"/proc/{pid}/comm").decode().strip()
                found[f"{name} {pid}"] = (int(anonymous[1]) << 10, int(shared[1]) << 10, len(os.listdir(f"/proc/{pid}/fd")))
        return found


def many(options, folder):
    """100 saves: the memory of ranks, launcher and writer, and their open files, stay as they are."""
    run = Run(options, folder, save="every_steps: 1, async: false, keep: 2")
    run.wait_for("20 saves", lambda: run.saves() >= 20)
    before = run.usage()
    run.wait_for(f"{MANY} more", lambda: run.saves() >= 20 + MANY)
    after = run.usage()
    run.end(143)
    assert before.keys() == after.keys(), f"processes: {before.keys()} {after.keys()}"
    assert sum("trainctl-save" in name for name in after) == 1
    for name, (anonymous, shared, files) in after.items():
        was = before[name]
        assert anonymous - was[0] < GROWTH, f"{name} grew from {was[0]} to {anonymous} bytes"
        assert shared - was[1] < GROWTH, f"{name}: shared memory grew from {was[1]} to {shared} bytes"
        assert files <= was[2] + 2, f"{name} had {was[2]} open files, now {files}"  # some are open for a moment
    assert len(run.published()) <= 3, run.published()


def hung(options, folder):
    """Writes block: training continues, the user is notified, and when the disk responds the save is finished."""
    run = Run(options, folder, save="every_steps: 20", faults={"FAULT": "hang", "FAULT_AT": "40"})
    run.wait_for("the notice", lambda: "waiting for the disk" in run.said())
    saves = run.saves()
    run.goes_on()
    assert run.saves() == saves
    run.allow()
    run.wait_for("later saves", lambda: run.saves() > saves + 1)
    run.end(143)
    run.verify(options)


def slow(options, folder):
    """Saves take longer than an epoch: each epoch's checkpoint has begun before its validation, so it is of the epoch's last step."""
    os.mkdir(folder + "/validation")
    write_samples(folder + "/validation")
    run = Run(options, folder, "validation={dataset: {path: validation}}", save="every_epochs: 1, keep: 9", steps=48,
              faults={"FAULT": "slow", "FAULT_AT": "1"})
    run.ends(0)
    assert run.published() == [f"step_{step:08}" for step in range(8, 49, 8)], run.published()
    run.verify(options)


def full(options, folder):
    """The disk is full: training continues, the user is notified, and the save is tried again."""
    run = Run(options, folder, save="every_steps: 20", faults={"FAULT": "full", "FAULT_AT": "40"})
    run.wait_for("the notice", lambda: "No space left on device; retrying" in run.said())
    saves = run.saves()
    run.goes_on()
    assert run.saves() == saves
    run.allow()
    run.wait_for("later saves", lambda: run.saves() > saves + 1)
    run.end(143)
    run.verify(options)


def unsaved(options, folder):
    """A run ends with exit code 3 and says so last when the disk never takes its last state, whatever it saves."""
    # A save makes more than 14 calls. How many asynchronous saves a run makes depends on its speed: maybe only the last one.
    for number, (save, at) in enumerate([("every_steps: 20", 14), ("every_steps: 20, async: false", 60), ("every: weights", 14)]):
        place = f"{folder}/{number}"
        os.mkdir(place)
        run = Run(options, place, save=save, steps=300, faults={"FAULT": "full", "FAULT_AT": str(at)})
        run.ends(3)
        last = "\n".join(run.said().rstrip().splitlines()[-2:])
        assert " not saved: " in last and "No space left on device" in last and "retrying" not in last, last
        assert "done after " not in run.said(), run.said()[-1500:]
        with open(place + "/log_output/1/outcome.json") as file:
            assert json.load(file)["exit_code"] == 3
        run.verify(options)


def refused(options, folder):
    """Whatever call of a save the disk refuses from some moment on, the run trains to its end, and ends with exit code 3."""
    saves = ["every_steps: 20", "every_steps: 20, async: false", "every_minutes: 0.001", "every: weights"]
    refusals = [(errno.EROFS, "create"), (errno.EIO, "write"), (errno.EIO, "fsync"), (errno.EACCES, "rename"), (errno.EDQUOT, "mkdir")]
    for number, (error, call) in enumerate(refusals):
        for save in (saves[number % len(saves)], saves[(number + 1) % len(saves)]):
            place = f"{folder}/{call}.{saves.index(save)}"
            os.mkdir(place)
            run = Run(options, place, save=save, steps=200, faults={"FAULT": f"fails:{error}", "FAULT_AT": "1", "FAULT_CALL": call})
            run.ends(3, f"{save}, {call}: ")
            last = "\n".join(run.said().rstrip().splitlines()[-2:])
            assert " not saved: " in last and os.strerror(error) in last, f"{save}, {call}: {last}"
            assert "done after " not in run.said() and "step: 8, loss" in run.said(), run.said()[-1500:]
            run.verify(options)


def refused_once(options, folder):
    """One error of the disk at any call of the last save costs nothing: it is tried again."""
    for at in range(8, 30, 3):
        place = f"{folder}/{at}"
        os.mkdir(place)
        run = Run(options, place, save="every_minutes: 1000", steps=20, faults={"FAULT": str(errno.EIO), "FAULT_AT": str(at)})
        run.ends(0)
        assert run.published() == ["step_00000020"], run.published()


def given_up(options, folder):
    """The disk of the last save hangs for good: the run ends with exit code 3, and the process that writes ends with it."""
    run = Run(options, folder, save="every: weights", steps=20, faults={"FAULT": "hang", "FAULT_AT": "12"})
    run.wait_for("the ranks' end", lambda: run.lines() >= 20 and not host.ranks(run.process.pid))
    children = host.children(run.process.pid)
    assert children, run.said()
    run.ends(3)
    assert "the disk has not responded for " in run.said().rstrip().splitlines()[-1], run.said()[-1500:]
    deadline = time.monotonic() + PATIENCE
    while any(b"trainctl-save" in host.read(f"/proc/{pid}/comm") for pid in children):
        assert time.monotonic() < deadline, "the process that writes is left behind"
        time.sleep(0.02)
    run.allow()
    assert run.published() == [], run.published()


def impatient(options, folder):
    """A second Ctrl-C while the disk of the last save hangs ends the run at once, and nothing half has a final name."""
    run = Run(options, folder, save="every_minutes: 1000", faults={"FAULT": "hang", "FAULT_AT": "12"})
    run.wait_for("steps", lambda: run.lines() > 20)
    run.process.send_signal(signal.SIGINT)
    run.wait_for("the ranks' end", lambda: not host.ranks(run.process.pid))
    time.sleep(1)
    assert run.process.poll() is None, "it did not wait for the last save\n" + run.said()
    run.end(130, signal.SIGINT)  # the disk hangs on, so it ends because of the second Ctrl-C
    assert "did not wait for the last checkpoint" in run.said(), run.said()
    run.allow()
    time.sleep(0.5)
    assert run.published() == [], run.published()


def lagging(options, folder):
    """Listings lack what is younger than 30 s: the newest complete checkpoint is found, or the one before."""
    lag = {"FAULT_LAG": str(LAG)}
    Run(options, folder, save="every_steps: 5, keep: 2", steps=20).ends(0)
    listed = subprocess.run([options.trainctl, "checkpoint", "list", "1"], cwd=folder, stdout=subprocess.PIPE, text=True,
                            env=dict(os.environ, LD_PRELOAD=options.shim, FAULT_FOLDER="/checkpoints", FAULT_LOG=folder + "/calls", **lag))
    run = Run(options, folder, "--resume", save="every_steps: 5, keep: 1", steps=31, faults=lag)
    run.ends(0)
    assert re.search("resuming after step (20|15) ", run.said()), run.said() + listed.stdout
    newest = f"{folder}/log_output/2/checkpoints/step_00000031"
    with open(newest + "/rank.0001.safetensors", "r+b") as file:
        file.truncate(1000)
    last = Run(options, folder, "--resume", save="every_steps: 5", steps=36, faults=lag)
    last.ends(0)
    assert re.search(r"resuming after step (30|20) ", last.said()), last.said()


def retained(options, folder):
    """Listings lag while checkpoints are deleted: neither the newest that were announced nor the last verified one goes, old ones do."""
    lag, keep, here = 2, 2, "kept"
    Run(options, folder, save=f"every_steps: 5, keep: {keep}, dir: {here}", steps=20).ends(0)
    verified = "step_00000020"
    subprocess.run([options.trainctl, "checkpoint", "verify", f"{here}/{verified}"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    run = Run(options, folder, "--resume", save=f"every_steps: 10, keep: {keep}, dir: {here}",
              faults={"FAULT_LAG": str(lag), "FAULT_FOLDER": f"/{here}"})
    run.wait_for("going on", lambda: "resuming after step 20 " in run.said())
    announced = lambda: [f"step_{int(step):08}" for step in re.findall(r"checkpoint of step (\d+): .* in ", run.said())]
    gone, end = set(), time.monotonic() + 4 * lag
    while time.monotonic() < end or not gone:
        assert time.monotonic() < end + PATIENCE, f"nothing is deleted: {sorted(os.listdir(f'{folder}/{here}'))}"
        before = announced()
        there = os.listdir(f"{folder}/{here}")
        newer = lambda name: sum(other > name for other in there if other.startswith("step_"))  # not announced yet, on a busy machine
        lost = [name for name in before[-keep:] if name not in there and newer(name) < keep]
        lost += [verified] if verified not in there else []
        assert not lost, f"{lost} of {before[-5:]} and the verified {verified} are gone: {sorted(there)}"
        gone = set(before) - set(there)
        time.sleep(lag / 50)
    run.end(143)
    for name in announced()[-keep:]:
        done = subprocess.run([options.trainctl, "checkpoint", "verify", f"{here}/{name}"], cwd=folder, stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0, done.stdout


CASES = [many, hung, slow, full, unsaved, refused, refused_once, given_up, impatient, lagging, retained]


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would the runs
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainctl", required=True)
    parser.add_argument("--shim", required=True)
    parser.add_argument("--only", help="the case of that name")
    options = parser.parse_args()
    options.trainctl, options.shim = os.path.abspath(options.trainctl), os.path.abspath(options.shim)
    bad = 0
    for case in CASES:
        if options.only not in (None, case.__name__):
            continue
        folder = tempfile.mkdtemp(prefix="trainctl-saves-")
        start, problem = time.monotonic(), "ok"
        try:
            case(options, folder)
        except AssertionError as error:
            problem = str(error)
            bad += 1
        print(f"{case.__name__:<10} {time.monotonic() - start:5.1f} s  {problem}", flush=True)
        for process in Run.started:
            if process.poll() is None:
                process.kill()  # its guards end the ranks
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
