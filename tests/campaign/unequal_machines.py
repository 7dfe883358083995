"""A rank at a part of the speed costs at most its share plus 10 %, if it runs as many micro-batches as suit it.

    python3 tests/campaign/unequal_machines.py --trainctl TRAINCTL [--slower 2] [--steps 40] [--times] [--quota [--share 0.3]]

Two data-parallel ranks, the second one `--slower` times as slow. Compares three runs:

    both ranks equally fast                            T
    the second rank slow, equal shares                 T * slower at best
    the second rank slow, micro-batches by speed       T * 2 / (1 + 1 / slower) at best

Each rank sleeps 2 ms per sample, the slow one longer (TRAINCTL_TEST_SPEED), so other programs on the machine change little. With --quota the
ranks compute instead, with one thread each, in control groups with CPU quotas: `--share` of a core, and share / slower for the slow one; with
`--share 1` the fast rank has no quota. A step is long compared with the 10 ms of a quota's period: a rank that waits loses what is left of its
quota, and two ranks whose periods begin at different times wait for each other up to a period per step. Where the test cannot create such groups, or the kernel does not enforce them, it stops the slow rank for its share of each 5 ms instead (SIGSTOP), and the other rank runs freely.

The losses of the last two runs must agree. --times also fails if the third run takes more than 1.1 times as long as that; with --quota this
needs a machine with two idle cores, and the test exits with 77 if it is too busy for quotas to matter.
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

SKIPPED = 77
PERIOD_US = 10000
JOB = """
dataset: {type: random, shape: [WIDTH], label_dtype: f32, samples: SAMPLES, batch: BATCH}
network:
  - {name: fc1, type: dense, units: WIDTH}
  - {name: act1, type: tanh}
  - {name: fc2, type: dense, units: WIDTH}
  - {name: act2, type: tanh}
  - {name: out, type: dense, units: 1}
loss: mse
optimizer: {type: sgd, learning_rate: 0.01}
train: {steps: 40, log_every: 1, checkpoint: none}
parallel: {mode: data_parallel}
launch: {ranks: 2, device: cpu}
"""


class Skip(Exception):
    pass


class NoQuotas(Exception):
    """This machine has no control groups that limit CPU time."""


class Quota:
    """A control group, version 2 or 1, whose processes get a share of a core."""

    def __init__(self, share):
        root = pathlib.Path("/sys/fs/cgroup")
        is_second = (root / "cgroup.controllers").exists()
        self.folder = (root if is_second else root / "cpu") / f"trainctl_test_{os.getpid()}_{round(1000 * share)}"
        quota = round(share * PERIOD_US)
        try:
            self.folder.mkdir()
            if is_second:
                (self.folder / "cpu.max").write_text(f"{quota} {PERIOD_US}")
            else:
                (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (self.folder / "cpu.cfs_quota_us").write_text(str(quota))
        except OSError as error:
            self.remove()
            raise NoQuotas(f"no control group with a CPU quota: {error}") from error

    def take(self, process):
        (self.folder / "cgroup.procs").write_text(str(process))

    def remove(self):
        with contextlib.suppress(OSError):
            self.folder.rmdir()


class Pauses:
    """Stops a process for the rest of each 5 ms after its share, until it ends."""

    PERIOD = 0.005

    def __init__(self, share):
        self.share = share

    def take(self, process):
        threading.Thread(target=self.pause, args=(process,), daemon=True).start()

    def pause(self, process):
        with contextlib.suppress(ProcessLookupError):
            while self.share < 1:
                os.kill(process, signal.SIGSTOP)
                time.sleep(self.PERIOD * (1 - self.share))
                os.kill(process, signal.SIGCONT)
                time.sleep(self.PERIOD * self.share)

    def remove(self):
        pass


def used_by_busy_process(quota):
    """The share of a core that a busy process in the group gets."""
    spin = "import sys, time; sys.stdin.read(); c = time.process_time(); t = time.monotonic()\nwhile time.monotonic() - t < 1: pass\nprint(time.process_time() - c)"
    with subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            quota.take(process.pid)
        except OSError as error:
            process.kill()
            raise NoQuotas(f"processes cannot be moved to a control group: {error}") from error
        return float(process.communicate()[0])


def demand_enforcement(quota, share, needs_times):
    used = used_by_busy_process(quota)
    if used > 1.3 * share:
        raise NoQuotas(f"a process with {share} of a core used {used:.2f}: quotas are not enforced")
    if needs_times and used < 0.7 * share:
        raise Skip(f"a process with {share} of a core got {used:.2f}: other programs limit it more than the quota")


def ranks_of(logs):
    """The processes of a run's ranks, by rank."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            if "worker" in words and str(logs) in words:
                found[int(words[words.index("--rank") + 1])] = int(folder.name)
    return found


def place(logs, quotas, done):
    """Moves the ranks to their groups as soon as they exist."""
    while not done.is_set():
        ranks = ranks_of(logs)
        if len(ranks) == len(quotas):
            for rank, quota in enumerate(quotas):
                quota.take(ranks[rank])
            return
        done.wait(0.01)


class Runs:
    def __init__(self, options, folder):
        self.options, self.folder = options, pathlib.Path(folder)
        width, batch = (1024, 480) if options.quota else (16, 96)
        (self.folder / "job.yaml").write_text(JOB.replace("WIDTH", str(width)).replace("SAMPLES", str(10 * batch)).replace("BATCH", str(batch)))
        self.quotas = {}
        self.has_quotas = options.quota
        if options.quota:
            try:
                self.quota(min(options.share, 0.5))
            except NoQuotas as reason:
                print(f"{reason}; the slow rank is stopped for its share of the time instead", flush=True)
                self.has_quotas = False
                self.remove_quotas()

    def quota(self, share):
        if share not in self.quotas:
            self.quotas[share] = Quota(share)
            demand_enforcement(self.quotas[share], share, self.options.times)
        return self.quotas[share]

    def limits(self, slower):
        """One per rank."""
        if not self.has_quotas:
            return [Pauses(1), Pauses(1 / slower)]
        share = self.options.share
        if share >= 1:
            return [Pauses(1), self.quota(1 / slower) if slower > 1 else Pauses(1)]
        # Two groups of the same share, or groups of different shares.
        return [self.quota(share), self.quota(share / slower if slower > 1 else share + 0.001)]

    def remove_quotas(self):
        for quota in self.quotas.values():
            quota.remove()
        self.quotas = {}

    def run(self, slower, *fields):
        """(seconds per step, losses)"""
        logs = tempfile.mkdtemp(dir=self.folder)
        words = [self.options.trainctl, "run", f"{self.folder}/job.yaml", f"train.steps={self.options.steps}", f"launch.log_dir={logs}", *fields]
        environment, done = dict(os.environ, OMP_NUM_THREADS="1"), threading.Event()
        if self.options.quota:
            placing = threading.Thread(target=place, args=(logs, self.limits(slower), done))
            placing.start()
        else:
            environment["TRAINCTL_TEST_SPEED"] = f"2000:{slower}:0:1"
        process = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
        done.set()
        if self.options.quota:
            placing.join()
        if process.returncode != 0:
            sys.exit(f"{' '.join(words)}\n{process.stdout}{process.stderr}")
        rows = [json.loads(line) for line in (pathlib.Path(logs) / "1/metrics.jsonl").read_text().splitlines()]
        seconds = [row["epoch_seconds"] / row["steps"] for row in rows if "epoch_end" in row]
        return statistics.median(seconds[1:] or seconds), [row["loss"] for row in rows if "loss" in row and "kind" not in row]


def shares(slower):
    """12 micro-batches in proportion to the speeds."""
    first = round(12 * slower / (1 + slower))
    return f"parallel.rank_micro_batches=[{first}, {12 - first}]"


def compare(runs, options):
    full, _ = runs.run(1, "parallel.micro_batches=6")
    print(f"both at full speed: {1e3 * full:.0f} ms per step", flush=True)
    even, expected = runs.run(options.slower, "parallel.micro_batches=6")
    uneven, losses = runs.run(options.slower, shares(options.slower))
    best = full * 2 / (1 + 1 / options.slower)
    print(f"step: {1e3 * full:.0f} ms; with one rank {options.slower} times as slow {1e3 * even:.0f} ms in equal shares, {1e3 * uneven:.0f} ms by speed, "
          f"{uneven / best:.2f} times the best possible")
    worst = max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))
    print(f"the losses of both divisions differ by {worst:.1g}")
    if worst > 1e-5:
        return 1
    return 1 if options.times and uneven > 1.1 * best else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainctl", required=True)
    parser.add_argument("--slower", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--quota", action="store_true")
    parser.add_argument("--share", type=float, default=0.3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = None
        try:
            runs = Runs(options, folder)
            return compare(runs, options)
        except Skip as skip:
            print(f"SKIPPED: {skip}")
            return SKIPPED
        finally:
            if runs:
                runs.remove_quotas()


sys.exit(main())
