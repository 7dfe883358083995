"""Fine-tuning with adapters, from a model folder to a model folder, without other packages.

    adapters_test.py TRAINCTL

A small Llama is trained and exported as a folder. A job made of that folder trains adapters on one rank and under other plans, with the same
losses. The folder that is exported from its checkpoint has the adapters merged: it gives the predictions of the checkpoint. Checkpoints have only the
adapters: runs resume from them under other plans, and a base that has changed is noticed.
"""
import array
import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from limits import limit  # noqa: E402

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


def fails(folder, expected, *words, code=3):
    said = " ".join(run(folder, *words, code=code).split())
    for text in expected:
        assert text in said, (text, said)


def resumes(folder):
    """A checkpoint of some ranks leaves the base out, and a run under another plan continues it from the base's folder."""
    for number, (plan, other) in enumerate(zip(PLANS, PLANS[1:] + PLANS[:1])):
        half, whole = f"half_{number}", f"whole_{number}"
        words = [ADAPTERS, *TUNE, "train.checkpoint={every_steps: 3, keep: 3}"]
        run(folder, "run", "tune.yaml", *words, *plan, "train.steps=3", f"launch.log_dir={half}")
        run(folder, "run", "tune.yaml", *words, *other, "--resume-from", f"{half}/1", f"launch.log_dir={whole}")
        same = max(abs(a - b) for a, b in zip(losses(folder, "runs_0")[3:], losses(folder, whole)))
        assert len(losses(folder, whole)) == 3 and same < limit(1e-5), (plan, same)
        manifest = json.loads((folder / f"{whole}/1/checkpoints/step_00000006/checkpoint.json").read_text())
        names = {tensor["name"] for tensor in manifest["tensors"]}
        assert len(names) == 10 and all(".lora_" in name for name in names), names
        assert {"h.0.qkv.weight", "table.weight", "head.weight"} <= {tensor["name"] for tensor in manifest["base"]["tensors"]}
        print(f"resumed from {' '.join(plan)} under {' '.join(other)}: losses within {same:.1e}")
    said = " ".join(run(folder, "plan", "tune.yaml", *words).split())
    assert "without the frozen weights of " in said, said
    assert "without the frozen weights of " in run(folder, "checkpoint", "list", "half_0/1")
    assert "without its base: " in run(folder, "checkpoint", "show", "half_0/1")


def notices_other_bases(folder):
    """Each command that needs the base states that it is missing or another one."""
    words = [ADAPTERS, *TUNE, VALIDATION]
    run(folder, "run", "base.yaml", *SIZES, "train.steps=1", "seed=5", "launch.log_dir=other_runs")
    run(folder, "checkpoint", "export", "other_runs/1", "--map", "auto", "-o", "other/")
    (folder / "base").rename(folder / "kept")
    (folder / "other").rename(folder / "base")
    changed = ["is not the base that", "its fingerprint is", "set weights.from to a copy of them"]
    fails(folder, changed, "run", "tune.yaml", *words, "train.checkpoint={}", "--resume-from", "half_0/1")
    fails(folder, changed, "predict", "tune.yaml", "--checkpoint", "half_0/1", "--layer", "head", "-o", "no.npy", *words)
    fails(folder, changed, "evaluate", "tune.yaml", "--checkpoint", "half_0/1", *words)
    fails(folder, changed, "checkpoint", "export", "half_0/1", "--map", "auto", "-o", "no/")
    moved = predictions(folder, "moved", "tune.yaml", "--checkpoint", "half_0/1", ADAPTERS, "weights={from: kept, map: auto}")
    (folder / "base").rename(folder / "other")
    (folder / "kept").rename(folder / "base")
    assert difference(moved, predictions(folder, "back", "tune.yaml", "--checkpoint", "half_0/1", ADAPTERS)) == 0
    (folder / "without.yaml").write_text(re.sub(r"(?m)^weights:.*\n(  .*\n)*", "", (folder / "tune.yaml").read_text()))
    fails(folder, ["contains only what was trained; its base is in"], "evaluate", "without.yaml", "--checkpoint", "half_0/1", *words)
    run(folder, "run", "without.yaml", ADAPTERS, *TUNE, "train.steps=3", "train.checkpoint={}", "launch.log_dir=full")
    fails(folder, ["contains the frozen", "remove `weights` from the job"], "run", "tune.yaml", *words, "train.checkpoint={}", "--resume-from",
          "full/1")
    print("a base that changed, moved or is missing is noticed")


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
            assert len(losses(folder, f"runs_{number}")) == 6 and same < limit(1e-5), (plan, same)
            print(f"{' '.join(plan)}: losses within {same:.1e}")
        said = run(folder, "checkpoint", "export", "runs_0/1", "--map", "auto", "-o", "tuned/")
        assert "adapters merged into their weights: 10 tensors" in said, said
        run(folder, "init", "--from", "tuned", "-o", "tuned.yaml")
        trained = predictions(folder, "trained", "tune.yaml", "--checkpoint", "runs_0/1", ADAPTERS)
        merged, base = predictions(folder, "merged", "tuned.yaml", "--checkpoint", "weights"), \
            predictions(folder, "base", "tune.yaml", "--checkpoint", "weights")
        off, moved = difference(trained, merged), difference(trained, base)
        assert off < limit(1e-5) < 1e-2 < moved, (off, moved)
        print(f"merged weights give the predictions of the adapters within {off:.1e}; training moved them by {moved:.1e}")
        resumes(folder)
        notices_other_bases(folder)


TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
main()
