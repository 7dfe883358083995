#!/usr/bin/env python3
"""jobs.py TRAINCTL JOB.yaml ...: each job on one rank, on the CPU and on a GPU, in the job's precision and in fp32: the losses of some steps.

Prints a line per job, with the largest relative difference, and exits with 1 if one is above the limit of its precision or a run fails."""

import concurrent.futures
import os
import pathlib
import sys
import tempfile

# The script runs from the root of the packed files, beside their tests/random_jobs.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "tests/random_jobs"))
from runs import Failure, call, comparable, difference, of_steps, read_losses  # noqa: E402

TRAINCTL, STEPS = os.path.abspath(sys.argv[1]), 8
LIMITS = {"fp32": 2e-4, "own": 5e-2}


def losses(job, folder, *words):
    code, output = call([TRAINCTL, "run", job, "launch.ranks=1", "parallel={mode: stand_alone}", f"train.steps={STEPS}", "train.log_every=1",
                         "train.checkpoint=none", f"launch.log_dir={folder}", *words])
    if code != 0:
        raise Failure(f"exit code {code} of {' '.join(words)}\n{output[-1500:]}")
    return of_steps(read_losses(f"{folder}/1/metrics.jsonl"))


def compare(job, precision):
    words = ["precision=fp32"] if precision == "fp32" else []
    with tempfile.TemporaryDirectory(prefix="trainctl-jobs-") as folder:
        try:
            cpu = losses(job, f"{folder}/cpu", "launch.device=cpu", *words)
            found = losses(job, f"{folder}/cuda", "launch.device=cuda", *words)
        except Failure as failure:
            return False, f"FAIL {job} {precision}: {failure}"
        worst, at = difference(found, cpu, comparable(cpu))
        fine = len(cpu) == len(found) > 0 and worst < LIMITS[precision]
        return fine, f"{'ok  ' if fine else 'FAIL'} {job} {precision}: {len(found)} steps, largest difference {worst:.1e} at step {at}"


with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("AT_ONCE", 4))) as pool:
    results = list(pool.map(lambda pair: compare(*pair), [(job, precision) for job in sys.argv[2:] for precision in LIMITS]))
print("\n".join(line for _, line in results))
sys.exit(0 if results and all(fine for fine, _ in results) else 1)
