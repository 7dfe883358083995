"""Fine-tuning with adapters, from a model folder to a model folder, without other packages.

    adapters_test.py TRAINCTL

A small Llama is trained and exported as a folder. A job made of that folder trains adapters on one rank and under other plans, with the same
losses. The folder that is exported from its checkpoint has the adapters merged: it gives the predictions of the checkpoint.
"""
import array
import json
import pathlib
import subprocess
import sys
import tempfile

SIZES = ["vars.layers=2", "vars.heads=4", "vars.kv_heads=2", "vars.d=64", "vars.hidden=128", "vars.length=32", "vars.vocab=320", "precision=fp32",
         "launch.device=cpu", "dataset.batch=8"]
ADAPTERS = "adapters={lora: {layers: ['h.*.qkv', 'h.*.down', head], rank: 4, alpha: 8, dropout: 0.1}}"
TUNE = ["precision=fp32", "launch.device=cpu", "train.steps=6", "train.log_every=1", "optimizer.learning_rate=0.01", "dataset.samples=16"]
PLANS = [["launch.ranks=1"], ["launch.ranks=4", "parallel.mode=data_parallel", "parallel.optimizer_shard={level: 3, min_kb: 0}"],
         ["launch.ranks=4", "parallel.stages=2", "parallel.micro_batches=2"], ["launch.ranks=2", "parallel.mode=auto_parallel"]]
VALIDATION = "validation={every_epochs: 1}"


def run(folder, *words, code=0):
    done = subprocess.run([TRAINCTL, *map(str, words)], cwd=folder, capture_output=True, text=True)
    if done.returncode != code:
        raise SystemExit(f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def losses(folder, log_dir):
    rows = [json.loads(line) for line in (folder / log_dir / "1" / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "run_step" in row and "loss" in row]


def predictions(folder, name, *words):
    run(folder, "predict", *words, "--layer", "head", "-o", f"{name}.npy", VALIDATION, *TUNE)
    content = (folder / f"{name}.npy").read_bytes()  # version 1: ten bytes, a header of the length in the last two of them, f32 values
    return array.array("f", content[10 + int.from_bytes(content[8:10], "little"):])


def difference(a, b):
    assert len(a) == len(b) > 0
    return max(abs(x - y) for x, y in zip(a, b))


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run(folder, "init", "llama", "-o", "base.yaml")
        run(folder, "run", "base.yaml", *SIZES, "train.steps=3", "launch.log_dir=base_runs")
        run(folder, "checkpoint", "export", "base_runs/1", "--map", "auto", "-o", "base/")
        run(folder, "init", "--from", "base", "-o", "tune.yaml")
        for number, plan in enumerate(PLANS):
            run(folder, "run", "tune.yaml", ADAPTERS, *TUNE, *plan, f"launch.log_dir=runs_{number}")
            same = max(abs(a - b) for a, b in zip(losses(folder, "runs_0"), losses(folder, f"runs_{number}")))
            assert len(losses(folder, f"runs_{number}")) == 6 and same < 1e-5, (plan, same)
            print(f"{' '.join(plan)}: losses within {same:.1e}")
        said = run(folder, "checkpoint", "export", "runs_0/1", "--map", "auto", "-o", "tuned/")
        assert "adapters merged into their weights: 10 tensors" in said, said
        run(folder, "init", "--from", "tuned", "-o", "tuned.yaml")
        trained = predictions(folder, "trained", "tune.yaml", "--checkpoint", "runs_0/1", ADAPTERS)
        merged, base = predictions(folder, "merged", "tuned.yaml"), predictions(folder, "base", "tune.yaml")
        off, moved = difference(trained, merged), difference(trained, base)
        assert off < 1e-5 < 1e-2 < moved, (off, moved)
        print(f"merged weights give the predictions of the adapters within {off:.1e}; training moved them by {moved:.1e}")


TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
main()
