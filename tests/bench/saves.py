"""Measures what a save costs training, in trainctl and in PyTorch, alternating between them in one run.

  saves.py TRAINCTL [--ranks 1 2] [--d 4096] [--layers 5] [--steps N] [--rounds N]
  saves.py TRAINCTL --device cuda [--set vars.d=1024 …]

On a CPU an MLP with adamw, whose state is 12 bytes for each of d * d * layers weights; on a GPU templates/gpt2.yaml. One
save after half of the steps. Prints for each kind of save the usual step (the median before the save), the longest step
from the save on, the total time that the steps from then on took beyond the usual one, and how long the save took until
it was written (trainctl: on disk, with fsync; PyTorch does not wait for the disk). Medians over the rounds, with the
lowest and the highest.
"""
import argparse, json, os, pathlib, re, shutil, statistics, subprocess, sys, tempfile

here = pathlib.Path(__file__).resolve().parent
root = here.parent.parent

MLP = """name: saves
dataset: {{type: random, shape: [{d}], label_dtype: i32, classes: {d}, batch: {batch}, samples: {samples}}}
network:
{layers}
loss: softmax_cross_entropy
optimizer: {{type: adamw, learning_rate: 0.0001}}
train: {{steps: {steps}}}
parallel: {{mode: data_parallel, optimizer_shard: {{level: 1}}}}
"""


def sh(command, a):
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS=str(a.threads)), check=False)
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def trainctl(a, save, folder):
    half = a.steps // 2 + 1
    spec = {"no": "null", "async": f"{{every_steps: {half}}}", "sync": f"{{every_steps: {half}, async: false}}"}[save]
    sets = [f"train.checkpoint={spec}", f"launch.log_dir={folder}/logs", f"launch.device={a.device}"]
    if a.device == "cpu":
        job = pathlib.Path(folder) / "job.yaml"
        layers = "\n".join(f"  - {{type: dense, units: {a.d}}}" + ("\n  - {type: relu}" if i + 1 < a.layers else "") for i in range(a.layers))
        job.write_text(MLP.format(d=a.d, batch=a.batch, samples=a.batch * a.steps, steps=a.steps, layers=layers))
        sets.append(f"launch.ranks={a.ranks}")
    else:
        job = root / "templates/gpt2.yaml"
        sets += ["launch.ranks=1", "parallel.mode=stand_alone", f"dataset.batch={a.batch}", f"train.steps={a.steps}", "train.log_every=1", *a.set]
    out = sh([a.trainctl, "run", job, *sets], a)
    rows = [json.loads(line) for line in open(f"{folder}/logs/1/metrics.jsonl")]
    written = re.findall(r"checkpoint of step \d+: (.*) in ([\d.]+) s", out)
    return [row["seconds"] for row in rows if "step" in row], float(written[0][1]) if written else None, written[0][0] if written else ""


def torch(a, save, folder):
    sizes = {"d": a.d, "layers": a.layers}
    if a.device == "cuda":
        sizes = {"d": 768, "layers": 12, "heads": 12, "length": 1024, "vocab": 50304}
        sizes.update({one.removeprefix("vars.").split("=")[0]: one.split("=")[1] for one in a.set if one.startswith("vars.")})
    command = [a.python, here / "saves_torch.py", "mlp" if a.device == "cpu" else "gpt", "--save", save, "--folder", folder, "--device",
               a.device, "--steps", str(a.steps), "--batch", str(a.batch), "--threads", str(a.threads)]
    for size, value in sizes.items():
        command += [f"--{size}", str(value)]
    report = json.loads(sh(command, a).strip().splitlines()[-1])
    return report["seconds"], report["saved"], ""


def spread(values, unit, digits):
    return f"{statistics.median(values):.{digits}f} {unit} [{min(values):.{digits}f} .. {max(values):.{digits}f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, default=2, help="of trainctl on a CPU; PyTorch is one process with as many threads")
    parser.add_argument("--d", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", help="where the saves go; default: a temporary folder")
    parser.add_argument("--set", action="append", default=[], help="a field of the job, on a GPU")
    ours = root / "build/peers/bin/python3"
    parser.add_argument("--python", default=str(ours) if ours.exists() else sys.executable, help="that has PyTorch")
    a = parser.parse_args()
    kinds = {"trainctl, no save": (trainctl, "no"), "trainctl": (trainctl, "async"), "trainctl, async: false": (trainctl, "sync"),
             "torch, no save": (torch, "no"), "torch.save": (torch, "torch"), "torch async_save": (torch, "async")}
    seen = {kind: [] for kind in kinds}
    for _ in range(a.rounds):
        for kind, (run, save) in kinds.items():
            folder = tempfile.mkdtemp(dir=a.folder)
            steps, written, size = run(a, save, folder)
            shutil.rmtree(folder)
            before, after = steps[a.steps // 8:a.steps // 2], steps[a.steps // 2:]
            usual = statistics.median(before)
            seen[kind].append((usual * 1e3, max(after) * 1e3, (sum(after) - len(after) * usual) * 1e3, written or 0, size))
    for kind, rows in seen.items():
        usual, longest, lost, written, size = zip(*rows)
        print(f"{kind:24s} step {spread(usual, 'ms', 1):30s} longest {spread(longest, 'ms', 1):32s} lost {spread(lost, 'ms', 0):28s}"
              + (f" written {spread(written, 's', 2)} {size[0]}" if max(written) else ""), flush=True)


if __name__ == "__main__":
    main()
