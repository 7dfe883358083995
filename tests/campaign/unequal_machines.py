"""A rank at a part of the speed costs at most its share plus 10 %, if it runs as many micro-batches as suit it.

    python3 tests/campaign/unequal_machines.py --trainctl TRAINCTL [--slower 2] [--steps 40] [--times]

Two data-parallel ranks. Each takes 2 ms per sample (TRAINCTL_TEST_SPEED, so other programs on the machine change little), and the second one
`--slower` times that. Compares three runs:

    both ranks equally fast                            T
    the second rank slow, equal shares                 T * slower at best
    the second rank slow, micro-batches by speed       T * 2 / (1 + 1 / slower) at best

--times fails if the third run takes more than 1.1 times as long as that.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

JOB = """
dataset: {type: random, shape: [16], label_dtype: f32, samples: 960, batch: 96}
network:
  - {name: fc1, type: dense, units: 16}
  - {name: act1, type: tanh}
  - {name: out, type: dense, units: 1}
loss: mse
optimizer: {type: sgd, learning_rate: 0.01}
train: {steps: 40, log_every: 1, checkpoint: none}
parallel: {mode: data_parallel}
launch: {ranks: 2, device: cpu}
"""


def seconds_per_step(options, folder, slower, *fields):
    logs = tempfile.mkdtemp(dir=folder)
    words = [options.trainctl, "run", f"{folder}/job.yaml", f"train.steps={options.steps}", f"launch.log_dir={logs}", *fields]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "TRAINCTL_TEST_SPEED": f"2000:{slower}:0:1"})
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    rows = [json.loads(line) for line in (pathlib.Path(logs) / "1/metrics.jsonl").read_text().splitlines()]
    return statistics.median([row["epoch_seconds"] / row["steps"] for row in rows if "epoch_end" in row][1:])


def shares(slower):
    """12 micro-batches in proportion to the speeds."""
    first = round(12 * slower / (1 + slower))
    return f"parallel.rank_micro_batches=[{first}, {12 - first}]"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainctl", required=True)
    parser.add_argument("--slower", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--times", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "job.yaml").write_text(JOB)
        full = seconds_per_step(options, folder, 1)
        even = seconds_per_step(options, folder, options.slower)
        uneven = seconds_per_step(options, folder, options.slower, shares(options.slower))
    best = full * 2 / (1 + 1 / options.slower)
    print(f"step: {1e3 * full:.0f} ms; with one rank {options.slower} times as slow {1e3 * even:.0f} ms in equal shares, {1e3 * uneven:.0f} ms by speed, "
          f"{uneven / best:.2f} times the best possible")
    return 1 if options.times and uneven > 1.1 * best else 0


sys.exit(main())
