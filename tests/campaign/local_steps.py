"""Local steps reach the loss of steps that all ranks share: gpt_text on two replicas, on the same tokens.

    python3 tests/campaign/local_steps.py --trainctl TRAINCTL [--steps 1500] [--local 64] [--within 0.02] [--batch 16] [--small]
                                          [--outer LEARNING_RATE:MOMENTUM …] [--rate-scale FACTOR] [--device cuda]

Compares the last validation, on documents that neither run trains on: that of the outer weights with that of two data-parallel ranks.
`--small` has half the width, layers and tokens. `--outer` tries other outer optimizers than the job's default, one run each. `--rate-scale`
multiplies the learning rate of the replicas by another factor than the default: docs/local_steps.md says why. The shared steps run on one rank, which has the same numbers as two.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOB = ROOT / "configs/gpt_text.yaml"
PAGES = sorted(map(str, (ROOT / "docs").glob("*.md")))
HELD_OUT = PAGES[::8]
TRAINING = [page for page in PAGES if page not in HELD_OUT] + [f"{ROOT}/engine/**/*.h"]
SMALL = ["vars.d=64", "vars.layers=2", "vars.tokens=64"]


def fields_of(options):
    return ["launch.ranks=2", "parallel.mode=data_parallel", f"train.steps={options.steps}", "train.checkpoint=none",
            f"dataset.path={json.dumps(TRAINING)}", f"validation={json.dumps({'dataset': {'path': HELD_OUT}, 'every_epochs': 1000})}",
            "launch.timeout=600", f"dataset.batch={options.batch}", f"launch.device={options.device}", *(SMALL if options.small else [])]


def validation_loss(options, folder, *fields):
    words = [options.trainctl, "run", JOB, *fields_of(options), f"launch.log_dir={folder}", *fields]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    run = max(int(path.name) for path in pathlib.Path(folder).iterdir() if path.name.isdigit())
    rows = [json.loads(line) for line in (pathlib.Path(folder) / str(run) / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row.get("kind") == "validation"][-1]["loss"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainctl", required=True)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--local", type=int, default=64)
    parser.add_argument("--within", type=float, default=0.02)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--outer", nargs="*", default=[""])
    parser.add_argument("--rate-scale", type=float, default=0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    os.nice(5)
    worst = -1
    of_replicas = f"parallel.outer.local_rate={options.rate_scale}"
    with tempfile.TemporaryDirectory() as folder:
        shared = validation_loss(options, folder, "launch.ranks=1")
        print(f"validation loss after {options.steps} steps: {shared:.4f} with shared steps", flush=True)
        for outer in options.outer:
            rate, _, momentum = outer.partition(":")
            more = [f"parallel.outer={{learning_rate: {rate}, momentum: {momentum}}}"] if outer else []
            local = validation_loss(options, folder, f"parallel.local_steps={options.local}", "parallel.replicas=2", *more, of_replicas)
            worse = local / shared - 1
            worst = max(worst, worse)
            print(f"  {local:.4f} with {options.local} local steps, outer {outer or 'default'}: {100 * worse:+.2f} %", flush=True)
    return 0 if worst <= options.within else 1


sys.exit(main())
