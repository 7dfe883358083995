"""parameter_servers.py TRAINCTL [--epochs N]: LeNet with 4 workers and 2 servers, synchronous and asynchronous, in one run.

Three cases: workers of equal speed, workers that are 3 times slower during random intervals, and one worker that is always slow.
Prints seconds, validation accuracy after the last epoch, and how stale the gradients at the servers were. Processors are emulated by sleeps
(TRAINCTL_TEST_SPEED), so that a machine of two cores shows what waiting costs."""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Microseconds per sample, factor by which a worker is slower at times, length of such a time in ms (0: the whole run), seed.
SPEEDS = {"equal": "400:1:0:0", "bursts": "400:3:150:7", "one slow": "400:3:0:2"}
MODES = {"sync": ["parallel.sync=true"], "async": ["parallel.sync=false", "parallel.staleness=4"],
         "rebalance": ["parallel.sync=false", "parallel.staleness=4", "parallel.rebalance=true"]}


def run(trainctl, epochs, speed, overrides):
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        done = subprocess.run([trainctl, "run", str(ROOT / "configs/lenet_ps.yaml"), f"train.epochs={epochs}",
                               f"launch.log_dir={folder}", *overrides], capture_output=True, text=True,
                              env={**os.environ, "TRAINCTL_TEST_SPEED": speed})
        seconds = time.monotonic() - start
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        lines = [json.loads(line) for line in open(f"{folder}/1/metrics.jsonl")]
    validations = [line for line in lines if line.get("kind") == "validation"]
    staleness = next((line["staleness"] for line in lines if line.get("kind") == "workers"), [])
    return seconds, validations[-1]["accuracy"], staleness


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("trainctl")
    options.add_argument("--epochs", type=int, default=3)
    options = options.parse_args()
    print(f"{'speeds':10} {'mode':10} {'seconds':>8} {'vs sync':>12} {'accuracy':>9}  staleness")
    for name, speed in SPEEDS.items():
        sync = None
        for mode, overrides in MODES.items():
            seconds, accuracy, staleness = run(options.trainctl, options.epochs, speed, overrides)
            sync = sync or seconds
            updates = sum(staleness)
            shares = " ".join(f"{s}:{100 * n / updates:.0f}%" for s, n in enumerate(staleness) if n) if updates else ""
            print(f"{name:10} {mode:10} {seconds:8.1f} {sync / seconds:11.2f}x {accuracy:9.4f}  {shares}", flush=True)


main()
