"""Measures the goodput of an elastic run on test hosts (network.py) where hosts fail at a fixed interval (--every, in seconds).

    python3 tests/hosts/goodput.py TRAINCTL [--every 60 15] [--seconds 240] [--how kill cut] [--hosts 4] [--seed 1]

kill: all processes of the run on a host are killed, as by a crash, and the host can be used again at once. cut: its cable is out for 5 s.
Each failure hits a different host than the previous one. Each row is one run of --seconds: its goodput as the run reports it (the share of
the time since the first step that was spent on steps whose result was kept), and its steps as a share of those of a run without failures.
Needs root, like hosts_test.py; exits with 77 and prints the reason where it cannot run.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import network
from network import eventually
from scene import JOB, LONG, PLAIN, Scene, require

# Steps of some 30 ms, so that losing a step costs little compared with losing a host.
FIELDS = "parallel.mode=data_parallel dataset.batch=960 loss=mse optimizer.learning_rate=0.001 launch.reconnect=3s train.checkpoint.every_steps=500"
CUT_SECONDS = 5


def fail(host, how):
    if how == "kill":
        for pid in host.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return
    host.cut()
    time.sleep(CUT_SECONDS)
    host.mend()


def trained(scene, names, every, how, seconds, chance):
    """(steps per second, goodput, changes, most steps lost at a failure) of a run with one failure per interval; None: no failures."""
    scene.runs += 1
    scene.logs = scene.network.own / f"logs.{scene.runs}"
    scene.output = pathlib.Path(scene.network.folder) / f"output.{scene.runs}"
    hosts = ", ".join(f"{name}:2" for name in names)
    process = scene.network.start(f"{scene.trainctl} run {JOB} launch.hosts='[{hosts}]' launch.ranks={2 * len(names)} {PLAIN} {LONG} {FIELDS} "
                                  f"launch.elastic=2 launch.log_dir={scene.logs}", scene.output)
    require(eventually(lambda: scene.step() >= 10 or process.poll() is not None, 120) and process.poll() is None, scene.output.read_text()[-2000:])
    begin, first = time.monotonic(), scene.step()
    last, failures = None, 0
    while time.monotonic() - begin < seconds:
        until = begin + (failures + 1) * every if every else begin + seconds
        time.sleep(max(0.0, min(until, begin + seconds) - time.monotonic()))
        require(process.poll() is None, "it continues: " + scene.output.read_text()[-3000:])
        if not every or time.monotonic() - begin >= seconds:
            break
        last = chance.choice([name for name in names if name != last])
        fail(scene.network.hosts[last], how)
        failures += 1
    took, steps = time.monotonic() - begin, scene.step() - first
    pid = subprocess.run(["pgrep", "-of", f"^{scene.trainctl} run .*{scene.logs}"], capture_output=True, text=True, check=True).stdout.split()[0]
    os.kill(int(pid), signal.SIGINT)
    require(process.wait(120) == 130, scene.output.read_text()[-3000:])
    outcome = json.loads((scene.logs / "1/outcome.json").read_text())
    found = scene.losses()
    require(sorted(found) == list(range(1, len(found) + 1)), "each step once")
    lost = [change["last_step"] - change["resumed_step"] for change in outcome["changes"]]
    return steps / took, outcome.get("goodput", 1.0), failures, max(lost, default=0)


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would the runs
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainctl")
    parser.add_argument("--every", type=float, nargs="*", default=[60, 15])
    parser.add_argument("--how", nargs="*", default=["kill", "cut"], choices=["kill", "cut"])
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    reason = network.missing()
    if reason:
        print("skipped: " + reason)
        return 77
    names = list("abcdefgh")[:options.hosts]
    with tempfile.TemporaryDirectory(prefix="hosts.", dir=pathlib.Path(options.trainctl).resolve().parent) as folder:
        with network.Network(folder, names) as hosts:
            scene = Scene(hosts, str(pathlib.Path(options.trainctl).resolve()))
            rate, _, _, _ = trained(scene, names, None, "kill", min(60, options.seconds), random.Random(options.seed))
            print(f"without failures: {rate:.1f} steps/s", flush=True)
            print(f"{'failure':10} {'every':>6} {'failures':>9} {'goodput':>8} {'steps done':>11} {'most steps lost':>16}")
            for how in options.how:
                for every in options.every:
                    mine, goodput, failures, lost = trained(scene, names, every, how, options.seconds, random.Random(options.seed))
                    print(f"{how:10} {every:5.0f}s {failures:9} {100 * goodput:7.0f}% {100 * mine / rate:10.0f}% {lost:16}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
