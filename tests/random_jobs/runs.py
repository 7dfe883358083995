"""Runs trainctl, reads the losses of runs and the digests of checkpoints, and compares losses."""

import json
import subprocess
import tempfile

EXPLODED = 100  # times the first loss: beyond that only rounding would be compared
LIMIT_S = 400  # of one run, whose own launch.timeout is 30 s; on an emulated GPU attention takes a minute


class Failure(Exception):
    pass


def call(words, env=None):
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, env=env, check=False)
    except subprocess.TimeoutExpired:
        raise Failure(f"hangs: no end after {LIMIT_S} s: {' '.join(words)}") from None
    return done.returncode, done.stdout + done.stderr


def run_losses(trainctl, path, overrides, env=None):
    """{step of the run: loss}"""
    with tempfile.TemporaryDirectory(prefix="trainctl-random-") as logs:
        code, output = call([trainctl, "run", str(path), *overrides, f"launch.log_dir={logs}"], env)
        if code != 0:
            raise Failure(f"exit code {code} of run {' '.join(overrides)}\n{output[-3000:]}")
        return read_losses(f"{logs}/1/metrics.jsonl")


def read_losses(path):
    """{step: loss}, and where the job validates {step + 0.5: loss of the validation after it}"""
    losses = {}
    with open(path) as file:
        for line in map(json.loads, file):
            if "run_step" in line and "loss" in line:
                validates = line.get("kind") == "validation"
                losses[line["run_step"] + (0.5 if validates else 0)] = float(line["loss"] if line["loss"] is not None else "nan")
    return losses


def of_steps(losses):
    """The losses of steps, without those of validations."""
    return {step: loss for step, loss in losses.items() if isinstance(step, int)}


def digests(checkpoint):
    """{file of a checkpoint: its XXH128}, of those with tensors"""
    with open(f"{checkpoint}/checkpoint.json") as file:
        return {entry["name"]: entry["xxh128"] for entry in json.load(file)["files"] if entry["name"].endswith(".safetensors")}


def finite(loss):
    return abs(loss) < 1e30


def comparable(reference):
    """Steps before the reference explodes."""
    steps, first = [], None
    for step in sorted(reference):
        loss = reference[step]
        first = loss if first is None else first
        if not finite(loss) or abs(loss) > EXPLODED * max(abs(first), 1e-3):
            break
        steps.append(step)
    return steps


def difference(found, reference, steps):
    """The largest difference, relative to the largest loss so far, and its step."""
    worst, at, largest = 0.0, None, 1e-6
    for step in steps:
        largest = max(largest, abs(reference[step]))
        apart = abs(found[step] - reference[step]) / largest if finite(found[step]) else float("inf")
        if apart > worst:
            worst, at = apart, step
    return worst, at
