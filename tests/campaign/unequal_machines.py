"""A rank at a part of the speed costs at most its share plus 10 %, if it runs as many micro-batches as suit it.

    python3 tests/campaign/unequal_machines.py --trainctl TRAINCTL [--speed 0.5] [--steps 300] [--times]

Two data-parallel ranks; the second one is stopped for a part of each 20 ms, as a CPU quota does. Compares three runs:

    both ranks at full speed, equal shares                       T
    the second rank slow, equal shares                           T / speed at best
    the second rank slow, micro-batches by speed                 T * 2 / (1 + speed) at best

--times, on a machine with two idle cores, fails if the third run takes more than 1.1 times as long as that.
"""
import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

JOB = """
dataset: {type: random, shape: [256], label_dtype: f32, samples: 9600, batch: 192}
network:
  - {name: fc1, type: dense, units: 512}
  - {name: act1, type: tanh}
  - {name: fc2, type: dense, units: 512}
  - {name: act2, type: tanh}
  - {name: out, type: dense, units: 1}
loss: mse
optimizer: {type: sgd, learning_rate: 0.01}
train: {steps: 300, log_every: 1, checkpoint: none}
parallel: {mode: data_parallel}
launch: {ranks: 2, device: cpu}
"""
PERIOD = 0.02


class Throttled:
    """A process that runs for a part of the time."""

    def __init__(self, pid, speed):
        self.pid, self.speed, self.ended = pid, speed, threading.Event()
        self.thread = threading.Thread(target=self.throttle)

    def throttle(self):
        while not self.ended.is_set():
            for number, seconds in ((signal.SIGSTOP, PERIOD * (1 - self.speed)), (signal.SIGCONT, PERIOD * self.speed)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)
                time.sleep(seconds)

    def __enter__(self):
        if self.speed < 1:
            self.thread.start()

    def __exit__(self, *_):
        self.ended.set()
        if self.speed < 1:
            self.thread.join()


def worker(launcher, rank):
    """The process of a rank, once it exists."""
    while launcher.poll() is None:
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if b"worker" in words and words[words.index(b"--rank") + 1] == str(rank).encode() and descends(path.parent.name, launcher.pid):
                    return int(path.parent.name)
        time.sleep(0.01)
    sys.exit("the run has ended:\n" + launcher.communicate()[0])


def descends(pid, ancestor):
    while int(pid) > 1:
        pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        if pid == ancestor:
            return True
    return False


def seconds_per_step(options, folder, speed, *fields):
    logs = tempfile.mkdtemp(dir=folder)
    words = [options.trainctl, "run", f"{folder}/job.yaml", f"train.steps={options.steps}", f"launch.log_dir={logs}", *fields]
    launcher = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with Throttled(worker(launcher, 1), speed):
        output = launcher.communicate()[0]
    if launcher.returncode != 0:
        sys.exit(f"{' '.join(words)}\n{output}")
    rows = [json.loads(line) for line in (pathlib.Path(logs) / "1/metrics.jsonl").read_text().splitlines()]
    steps = [row["seconds"] for row in rows if "seconds" in row and "run_step" in row]
    return statistics.median(steps[len(steps) // 3:])


def shares(speed):
    """12 micro-batches, in proportion to the speeds."""
    first = round(12 / (1 + speed))
    return f"parallel.rank_micro_batches=[{first}, {12 - first}]"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainctl", required=True)
    parser.add_argument("--speed", type=float, default=0.5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--times", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "job.yaml").write_text(JOB)
        full = seconds_per_step(options, folder, 1)
        even = seconds_per_step(options, folder, options.speed)
        uneven = seconds_per_step(options, folder, options.speed, shares(options.speed))
    best = full * 2 / (1 + options.speed)
    print(f"step: {1e3 * full:.2f} ms at full speed; with one rank at {options.speed:g} of it {1e3 * even:.2f} ms in equal shares, {1e3 * uneven:.2f} ms in "
          f"shares by speed, {uneven / best:.2f} times the best possible")
    return 1 if options.times and uneven > 1.1 * best else 0


sys.exit(main())
