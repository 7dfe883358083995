#!/usr/bin/env python3
"""cookbook.py TRAINCTL [unet | diffusion | gnn | learns]: jobs of configs/cookbook train as the same networks in PyTorch, in float64, from the same weights on
the same batches, under several plans. learns: trains them as they are, and requires the results that their pages promise.

Exits with 77 if PyTorch is missing."""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from limits import limit  # noqa: E402

SKIPPED = 77

try:
    import numpy as np
    import safetensors.torch
    import torch
except ImportError as error:
    environment = pathlib.Path(__file__).resolve().parents[3] / "build/peers/bin/python3"
    if environment.exists() and pathlib.Path(sys.executable) != environment:
        sys.exit(subprocess.run([environment, *sys.argv], check=False).returncode)
    print(f"SKIPPED: {sys.executable} has no {error.name}; ./bootstrap peers installs it")
    sys.exit(SKIPPED)

TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
COOKBOOK = pathlib.Path(__file__).resolve().parents[3] / "configs/cookbook"
STEPS, RATE, TOLERANCE = 6, 0.05, limit(2e-5)
f = torch.nn.functional
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

ONE = ["parallel=null", "launch.ranks=1"]
PLANS = {"one rank": ONE, "as it is": [],
         "4 ranks, sharded": ["parallel={mode: data_parallel, optimizer_shard: {level: 3, min_kb: 0}}", "launch.ranks=4"],
         "pipeline": ["parallel={mode: semi_auto_parallel, stages: 2, micro_batches: 1}", "launch.ranks=2"],
         "recomputed": ["parallel={mode: data_parallel, recompute: ['*']}", "launch.ranks=2"]}
OF_IMAGES = list(PLANS)


def numbers(seed, *shape, scale=1.0):
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape) * scale).to(torch.float32).to(torch.float64)


def integers(seed, below, *shape):
    return torch.tensor(np.random.default_rng(seed).integers(0, below, shape))


def trainctl(*words):
    done = subprocess.run([TRAINCTL, *map(str, words)], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}"
    return done.stdout


def saved_weights(folder):
    saved = max((folder / "1/checkpoints").glob("*/model.safetensors"))
    return {name.removesuffix(":weight"): value for name, value in safetensors.torch.load_file(saved).items() if "running" not in name}


def rows_of(folder, kind=None):
    rows = [json.loads(line) for line in (folder / "1/metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if ("run_step" in row or "step" in row) and row.get("kind") == kind]


def compare(job, fields, loss, batch, plans, more=()):
    """loss(weights, fields of a batch)"""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "data").mkdir()
        for field, values in fields.items():
            np.save(folder / f"data/{field}.npy", values.numpy().astype(np.float32 if values.dtype.is_floating_point else np.int32))
        kind = "f32" if fields["label"].dtype.is_floating_point else "i32"
        words = ["run", COOKBOOK / f"{job}.yaml", "dataset={type: npy, path: %s, fields: {%s}, batch: %d, shuffle: false, label_dtype: %s}"
                 % (folder / "data", ", ".join(f"{field}: {field}.npy" for field in fields), batch, kind),
                 "validation=null", "train={steps: %d, checkpoint: {integrated: true}}" % STEPS, "optimizer={type: sgd, learning_rate: %g}" % RATE, *more]
        trainctl(*words, *ONE, "train.steps=1", f"launch.log_dir={folder}/shapes")
        start = {key: numbers(k, *value.shape, scale=0.5 / max(1, value[0].numel()) ** 0.5 if value.dim() > 1 else 0.1) for k, (key, value)
                 in enumerate(sorted(saved_weights(folder / "shapes").items()))}
        start = {key: 1 + value if "norm" in key and key.endswith("weight") else value for key, value in start.items()}
        safetensors.torch.save_file({key: value.to(torch.float32) for key, value in start.items()}, folder / "start.safetensors")
        weights = {key: value.clone().requires_grad_() for key, value in start.items()}
        optimizer, losses = torch.optim.SGD(list(weights.values()), RATE), []
        samples = len(fields["label"])
        for step in range(STEPS):
            rows = slice(step * batch % samples, step * batch % samples + batch)
            optimizer.zero_grad()
            value = loss(weights, {field: values[rows] for field, values in fields.items()})
            value.backward()
            optimizer.step()
            losses.append(float(value.detach()))
        for plan in plans:
            runs = folder / plan.replace(" ", "_")
            trainctl(*words, *PLANS[plan], "weights={from: %s, map: job, partial: true}" % (folder / "start.safetensors"), "train.log_every=1", f"launch.log_dir={runs}")
            ours = saved_weights(runs)
            of_weights = max(float((ours[key].to(torch.float64) - value.detach()).abs().max()) for key, value in weights.items())
            of_losses = max(abs(row["loss"] - value) for row, value in zip(rows_of(runs), losses, strict=True))
            print(f"{job}, {plan}: weights differ by {of_weights:.2g}, losses by {of_losses:.2g}", flush=True)
            assert of_weights < TOLERANCE and of_losses < TOLERANCE, job


def conv(w, name, x, **fields):
    return f.conv2d(x, w[f"{name}.weight"], w.get(f"{name}.bias"), **fields)


def unet():
    def convs(w, name, x):
        for k in "12":
            x = f.batch_norm(conv(w, f"{name}.conv{k}", x, padding=1), None, None, w[f"{name}.norm{k}.weight"], w[f"{name}.norm{k}.bias"], training=True).relu()
        return x

    def loss(w, batch):
        down1 = convs(w, "down1", batch["data"])
        down2 = convs(w, "down2", f.max_pool2d(down1, 2))
        middle = convs(w, "middle", f.max_pool2d(down2, 2))
        up2 = convs(w, "up2", torch.cat([down2, f.conv_transpose2d(middle, w["twice2.weight"], w["twice2.bias"], stride=2)], 1))
        up1 = convs(w, "up1", torch.cat([down1, f.interpolate(up2, scale_factor=2, mode="bilinear")], 1))
        pixels = conv(w, "classes", up1)
        p, g = pixels.softmax(1), f.one_hot(batch["label"], 4).permute(0, 3, 1, 2)
        dice = (1 - (2 * (p * g).sum((2, 3)) + 1) / ((p + g).sum((2, 3)) + 1)).mean()
        return f.cross_entropy(pixels, batch["label"]) + 0.5 * dice

    fields = {"data": numbers(1, 16, 1, 16, 16), "label": integers(2, 4, 16, 16, 16)}
    compare("unet", fields, loss, 8, OF_IMAGES, ["vars.width=4", "metrics=[]"])


def diffusion():
    def norm(w, name, x):
        return f.group_norm(x, 8, w[f"{name}.weight"], w[f"{name}.bias"])

    def residual(w, name, x):
        y = conv(w, f"{name}.conv1", f.silu(norm(w, f"{name}.norm1", x)), padding=1)
        return x + conv(w, f"{name}.conv2", f.silu(norm(w, f"{name}.norm2", y)), padding=1)

    def loss(w, batch):
        about = f.silu(w["time.weight"][batch["timestep"]] + w["digit.weight"][batch["class"]])
        shift = about @ w["shift.weight"].T + w["shift.bias"]
        high = residual(w, "high", conv(w, "stem", batch["data"], padding=1) + shift[:, :, None, None])
        low = conv(w, "down", high, stride=2, padding=1)
        for k in range(2):
            low = residual(w, f"low.{k}", low)
        last = residual(w, "last", f.interpolate(low, scale_factor=2) + high)
        return f.mse_loss(conv(w, "noise", f.silu(norm(w, "norm", last)), padding=1), batch["label"])

    fields = {"data": numbers(3, 16, 1, 8, 8), "label": numbers(4, 16, 1, 8, 8), "timestep": integers(5, 100, 16), "class": integers(6, 10, 16)}
    compare("diffusion", fields, loss, 8, OF_IMAGES, ["vars.width=8", "vars.d=8"])


def gnn():
    whole = {name: torch.tensor(values) for name, values in np.load(COOKBOOK.parent / "data/karate/train.npz").items()}
    fields = {name: torch.cat([value] * 2).to(torch.float64 if value.dtype == torch.float32 else torch.int64) for name, value in whole.items()}

    def graph_conv(w, name, x, batch):
        x = x @ w[f"{name}.fc.weight"].T + w[f"{name}.fc.bias"]
        index = batch["source"][..., None].expand(-1, -1, x.shape[2])
        target = batch["target"][..., None].expand(-1, -1, x.shape[2])
        return torch.zeros_like(x).scatter_add(1, target, x.gather(1, index) * batch["weight"])

    def loss(w, batch):
        y = graph_conv(w, "conv2", graph_conv(w, "conv1", batch["data"], batch).relu(), batch)
        return f.cross_entropy(y.flatten(0, 1), batch["label"].flatten(), ignore_index=-1)

    PLANS["nodes cut"] = ["parallel={mode: semi_auto_parallel, strategies: {conv1.fc: [[1, 2, 1]], conv2.received: [[1, 1, 2], [1, 1]]}}", "launch.ranks=2"]
    compare("gnn", fields, loss, 2, ["one rank", "pipeline", "nodes cut"], ["network.dropout.p=0", "metrics=[]"])


def learns():
    """The metric of the last validation of each job."""
    for job, metric, is_good in (("unet", "accuracy", lambda v: v > 0.93), ("diffusion", "loss", lambda v: v < 0.35), ("gnn", "accuracy", lambda v: v > 0.9)):
        with tempfile.TemporaryDirectory() as folder:
            trainctl("run", COOKBOOK / f"{job}.yaml", f"launch.log_dir={folder}")
            values = [row[metric] for row in rows_of(pathlib.Path(folder), "validation")]
            print(f"{job}: validation {metric} {values}", flush=True)
            assert is_good(values[-1]), job


if __name__ == "__main__":
    groups = {"unet": unet, "diffusion": diffusion, "gnn": gnn, "learns": learns}
    for group in sys.argv[2:] or ["unet", "diffusion", "gnn"]:
        groups[group]()
