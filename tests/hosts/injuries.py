"""A campaign of injuries to runs on test hosts (network.py): seeded, each run hurt once, and the outcome judged.

    python3 tests/hosts/injuries.py TRAINCTL [--seed 1] [--runs 40] [--only NAME]

A run is wrong if it ends otherwise than the injury's rule says, names another host or rank, repeats or leaves out a step, has losses that
differ from those of one rank, or leaves anything on a host. Needs root, as hosts_test.py; exits with 77 and the reason where it cannot.
"""
import argparse
import collections
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import network
from hosts_test import ONE_RANK, Scene, checkpoints, end_of, require, stop
from network import eventually

# Not the job's mae: its gradient jumps where a prediction meets its label, so rounding shows after 60 steps, on one host too.
LOSS = "loss=mse optimizer.learning_rate=0.001"
SAVES = f"{LOSS} train.checkpoint.every_steps=15 launch.reconnect=5s"


def goes_on(scene, process):
    before = scene.step()
    require(eventually(lambda: scene.step() > before + 15 or process.poll() is not None) and process.poll() is None,
            "it goes on: " + scene.output.read_text()[-1500:])
    require(stop(scene, process) == 130, scene.output.read_text()[-1500:])


def fails_at(scene, process, host, rank=None):
    code = end_of(process)
    cause = scene.cause()
    require(code == 5 and cause["host"] == host and rank in (None, cause["rank"]), f"{code} {cause}")


def processes_of(host, what):
    found = []
    for pid in host.processes():
        with contextlib.suppress(OSError):
            if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == what:
                found.append(pid)
    return found


def kill_rank(scene, process, random):
    rank = random.randrange(4)
    host, pid = scene.rank(rank)
    os.kill(pid, signal.SIGKILL)
    fails_at(scene, process, host.name, rank)


def kill_agent(scene, process, random):
    host = random.choice(list(scene.network.hosts.values()))
    for pid in processes_of(host, "trainctl-agent"):
        os.kill(pid, signal.SIGKILL)
    fails_at(scene, process, host.name)


def kill_launcher(scene, process, random):
    pids = subprocess.run(["pgrep", "-f", f"^{scene.trainctl} run .*{scene.logs}"], capture_output=True, text=True, check=True)
    for pid in pids.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    end_of(process)


def kill_connections(scene, process, random):
    """Of ssh, on the launcher's host: they are made again."""
    pids = subprocess.run(["pgrep", "-f", "ssh -T -oBatchMode=yes"], capture_output=True, text=True, check=False).stdout.split()
    for pid in pids:
        with contextlib.suppress(OSError):  # those in the launcher's network alone
            if os.readlink(f"/proc/{pid}/cwd") and f"{scene.network.folder}" in pathlib.Path(f"/proc/{pid}/mountinfo").read_text():
                os.kill(int(pid), signal.SIGKILL)
    goes_on(scene, process)


def cut(seconds):
    def hurt(scene, process, random):
        host = random.choice(list(scene.network.hosts.values()))
        host.cut()
        try:
            time.sleep(seconds)
        finally:
            host.mend()
        goes_on(scene, process)
    hurt.__name__ = f"cut_{seconds}_s"
    return hurt


def cut_for_good(scene, process, random):
    host = random.choice(list(scene.network.hosts.values()))
    host.cut()
    try:
        fails_at(scene, process, host.name)
        scene.require_nothing_left(40)
    finally:
        host.mend()


def freeze(scene, process, random):
    """All of a host's processes but sshd stand still for 2 s."""
    host = random.choice(list(scene.network.hosts.values()))
    pids = list(host.processes())
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)
    goes_on(scene, process)


def freeze_for_good(scene, process, random):
    host = random.choice(list(scene.network.hosts.values()))
    frozen = list(host.processes())
    for pid in frozen:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGSTOP)
    try:
        fails_at(scene, process, host.name)
    finally:
        for pid in frozen:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)


def interrupt(scene, process, random):
    require(stop(scene, process) == 130, scene.output.read_text()[-1500:])


def save_and_interrupt(scene, process, random):
    """A save on request in the moment before the end."""
    pid = subprocess.run(["pgrep", "-f", f"^{scene.trainctl} run .*{scene.logs}"], capture_output=True, text=True, check=True).stdout.split()[0]
    os.kill(int(pid), signal.SIGUSR1)
    time.sleep(random.uniform(0, 0.05))
    require(stop(scene, process) == 130, scene.output.read_text()[-1500:])
    require(checkpoints(scene)[-1] == scene.step(), f"the last state is saved: {checkpoints(scene)}, step {scene.step()}")


def lose_host(scene, process, random):
    """launch.elastic: the other host goes on, and takes it back."""
    host = scene.network.hosts["b"]
    host.cut()
    try:
        require(eventually(lambda: "2 ranks instead of 4" in scene.output.read_text() or process.poll() is not None) and process.poll() is None,
                "it goes on: " + scene.output.read_text()[-1500:])
    finally:
        host.mend()
    require(eventually(lambda: "4 ranks instead of 2" in scene.output.read_text() or process.poll() is not None) and process.poll() is None,
            "it takes b back: " + scene.output.read_text()[-1500:])
    goes_on(scene, process)


def lose_agent(scene, process, random):
    """The same where an agent was killed."""
    host = random.choice(list(scene.network.hosts.values()))
    for pid in processes_of(host, "trainctl-agent"):
        os.kill(pid, signal.SIGKILL)
    require(eventually(lambda: "2 ranks instead of 4" in scene.output.read_text() or process.poll() is not None) and process.poll() is None,
            "it goes on: " + scene.output.read_text()[-1500:])
    goes_on(scene, process)


def restart_rank(scene, process, random):
    """launch.max_restarts: a killed rank costs the steps since the last checkpoint."""
    require(eventually(lambda: checkpoints(scene), 30), "it saves")
    os.kill(scene.rank(random.randrange(4))[1], signal.SIGKILL)
    require(eventually(lambda: "going on after step" in scene.output.read_text()), scene.output.read_text()[-1500:])
    time.sleep(1)
    goes_on(scene, process)


def two_jobs(scene, process, random):
    """Another job on the same hosts is interrupted; this one goes on."""
    other = Scene(scene.network, scene.trainctl)
    other.runs = scene.runs + 1000
    second = other.start("train.checkpoint=null")
    require(stop(other, second) == 130, other.output.read_text()[-1500:])
    goes_on(scene, process)


INJURIES = [kill_rank, kill_agent, kill_launcher, kill_connections, cut(1), cut(3), cut_for_good, freeze, freeze_for_good, interrupt,
            save_and_interrupt, lose_host, lose_agent, restart_rank, two_jobs]
FIELDS = {"lose_host": "parallel.mode=data_parallel launch.elastic=2", "lose_agent": "parallel.mode=data_parallel launch.elastic=2",
          "restart_rank": "launch.max_restarts=1"}


def judge_steps(scene, expected):
    found = scene.losses()
    require(not found or sorted(found) == list(range(1, len(found) + 1)), f"each step once: {sorted(found)}")
    off = {step: (loss, expected[step]) for step, loss in found.items() if step in expected and abs(loss - expected[step]) > 1e-4 * abs(expected[step])}
    require(not off, f"losses differ at {len(off)} of {len(found)} steps: {dict(list(off.items())[:5])}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainctl")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=len(INJURIES))
    parser.add_argument("--only", action="append")
    options = parser.parse_args()
    reason = network.missing()
    if reason:
        print("skipped: " + reason)
        return 77
    chosen = [injury for injury in INJURIES if not options.only or injury.__name__ in options.only]
    wrong = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="hosts.", dir=pathlib.Path(options.trainctl).resolve().parent) as folder:
        with network.Network(folder, ["a", "b"]) as hosts:
            scene = Scene(hosts, str(pathlib.Path(options.trainctl).resolve()))
            one = scene.run(f"{ONE_RANK} {LOSS} train.steps=300")
            require(one.returncode == 0, one.stdout + one.stderr)
            expected = scene.losses()
            for run in range(options.runs):
                seed = options.seed * 1000 + run
                chance = random.Random(seed)
                injury = chosen[run % len(chosen)]
                begin = time.monotonic()
                try:
                    process = scene.start(f"{SAVES} {FIELDS.get(injury.__name__, '')}")
                    time.sleep(chance.uniform(0, 1.5))
                    injury(scene, process, chance)
                    judge_steps(scene, expected)
                    scene.require_nothing_left(40)
                    said = "as it should"
                except (AssertionError, OSError, subprocess.SubprocessError, ValueError) as error:
                    said = f"WRONG: {error}"
                    wrong[injury.__name__] += 1
                print(f"{seed} {injury.__name__:18} {time.monotonic() - begin:6.1f} s  {said}", flush=True)
    print(f"{options.runs} runs, {sum(wrong.values())} wrong {dict(wrong) if wrong else ''}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
