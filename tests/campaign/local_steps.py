"""Local steps reach the loss of steps that all ranks share: gpt_text on two replicas, on the same tokens.

    python3 tests/campaign/local_steps.py --trainctl TRAINCTL [--steps 1000] [--local 64] [--within 0.02]

Compares the last validation, on documents that neither run trains on: that of the outer weights with that of two data-parallel ranks.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOB = ROOT / "configs/gpt_text.yaml"
PAGES = sorted(map(str, (ROOT / "docs").glob("*.md")))
HELD_OUT = PAGES[::8]
TRAINING = [page for page in PAGES if page not in HELD_OUT] + [f"{ROOT}/engine/**/*.h"]


def validation_loss(trainctl, folder, steps, *fields):
    words = [trainctl, "run", JOB, "launch.ranks=2", "parallel.mode=data_parallel", f"train.steps={steps}", "train.checkpoint=none",
             f"dataset.path={json.dumps(TRAINING)}", f"validation={json.dumps({'dataset': {'path': HELD_OUT}, 'every_epochs': 1000})}",
             "launch.timeout=600", f"launch.log_dir={folder}", *fields]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    run = max(int(path.name) for path in pathlib.Path(folder).iterdir() if path.name.isdigit())
    rows = [json.loads(line) for line in (pathlib.Path(folder) / str(run) / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row.get("kind") == "validation"][-1]["loss"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainctl", required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--local", type=int, default=64)
    parser.add_argument("--within", type=float, default=0.02)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shared = validation_loss(options.trainctl, folder, options.steps)
        local = validation_loss(options.trainctl, folder, options.steps, f"parallel.local_steps={options.local}", "parallel.replicas=2")
    worse = local / shared - 1
    print(f"validation loss after {options.steps} steps: {shared:.4f} shared, {local:.4f} with {options.local} local steps, {100 * worse:+.2f} %")
    return 0 if worse <= options.within else 1


sys.exit(main())
