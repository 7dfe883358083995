#!/usr/bin/env python3
"""composed.py TRAINCTL [layers | losses | sequences | dlrm]: networks with layers that are built from other ops, and losses of several outputs, train as
PyTorch trains them in float64, from the same weights on the same batches, under several plans.

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
BATCH, SAMPLES, STEPS = 8, 32, 12
TOLERANCE = limit(1e-5)
f = torch.nn.functional
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

DATA_PARALLEL = {"launch.ranks": 2, "parallel": {"mode": "data_parallel"}}
MICRO_BATCHES = {"launch.ranks": 2, "parallel": {"mode": "data_parallel", "micro_batches": 2}}
ONE = {"launch.ranks": 1, "parallel": {"mode": "stand_alone"}}


def cut(**strategies):
    return {"launch.ranks": 2, "parallel": {"mode": "semi_auto_parallel", "strategies": strategies}}


def stages(count, **layers):
    return {"launch.ranks": count, "parallel": {"mode": "semi_auto_parallel", "stages": count, "micro_batches": 2, "stage_config": layers}}


def rounded(values):
    """Numbers that f32 has, in float64."""
    return torch.as_tensor(values).to(torch.float32).to(torch.float64)


def random(seed, *shape, scale=1.0):
    return rounded(torch.tensor(np.random.default_rng(seed).standard_normal(shape) * scale))


def run(job, fields, start, plan):
    """Returns the final weights, and the rows of the metrics."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "data").mkdir()
        for field, values in fields.items():
            np.save(folder / f"data/{field}.npy", values.numpy().astype(np.float32 if values.dtype.is_floating_point else np.int32))
        safetensors.torch.save_file({key: value.to(torch.float32).contiguous() for key, value in start.items()}, folder / "start.safetensors")
        label = fields.get("label")
        job = {"name": "composed", "seed": 3, "optimizer": {"type": "sgd", "learning_rate": 0.05}, **job,
               "dataset": {"type": "npy", "path": str(folder / "data"), "fields": {field: f"{field}.npy" for field in fields}, "batch": BATCH,
                           "shuffle": False, "label_dtype": "i32" if label is not None and not label.dtype.is_floating_point else "f32"},
               "weights": {"from": str(folder / "start.safetensors"), "map": "job"}, "train": {"steps": STEPS, "checkpoint": {"integrated": True}},
               "launch": {"device": "cpu", "log_dir": str(folder / "runs")}}
        for key, value in plan.items():
            if "." in key:
                job[key.split(".")[0]][key.split(".")[1]] = value
            else:
                job[key] = value
        (folder / "job.yaml").write_text(json.dumps(job))  # JSON is YAML
        done = subprocess.run([TRAINCTL, "run", folder / "job.yaml"], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, json.dumps(job) + "\n" + done.stdout + done.stderr
        saved = max((folder / "runs/1/checkpoints").glob("*/model.safetensors"))
        weights = {key.removesuffix(":weight"): value.to(torch.float64) for key, value in safetensors.torch.load_file(saved).items()}
        rows = [json.loads(line) for line in (folder / "runs/1/metrics.jsonl").read_text().splitlines()]
        return weights, [row for row in rows if "step" in row and "kind" not in row]


def compare(name, job, fields, start, loss, plans):
    """loss(weights, fields of a batch): the loss, or (loss, {metric: value})."""
    weights = {key: value.clone().requires_grad_() for key, value in start.items()}
    optimizer, theirs = torch.optim.SGD(list(weights.values()), 0.05), []
    for step in range(STEPS):
        rows = slice(step * BATCH % SAMPLES, step * BATCH % SAMPLES + BATCH)
        optimizer.zero_grad()
        value = loss(weights, {field: values[rows] for field, values in fields.items()})
        value, metrics = value if isinstance(value, tuple) else (value, {})
        value.backward()
        optimizer.step()
        theirs.append({"loss": float(value.detach()), **{key: float(metric.detach()) for key, metric in metrics.items()}})
    for plan, changes in plans.items():
        ours, rows = run(job, fields, start, changes)
        of_weights = max(float((ours[key].reshape(value.shape) - value.detach()).abs().max()) for key, value in weights.items())
        of_losses = max(abs(row[key] - value) / max(1.0, abs(value)) for row, step in zip(rows, theirs, strict=True) for key, value in step.items())
        print(f"{name}, {plan}: weights differ by {of_weights:.2g}, losses by {of_losses:.2g}", flush=True)
        assert of_weights < TOLERANCE and of_losses < TOLERANCE, name


def dense(w, name, x):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def dense_start(seed, name, out, inputs):
    return {f"{name}.weight": random(seed, out, inputs, scale=0.3), f"{name}.bias": random(seed + 1, out, scale=0.1)}


def between(name, shape, layers, out, function, plans, more=None):
    """data [6] -> dense `up` -> reshape to `shape` -> the layers, of which the last is `layer` -> flatten -> dense `down` -> mse."""
    inside, more = int(np.prod(shape)), more or {}
    start = {**dense_start(1, "up", inside, 6), **dense_start(3, "down", 3, out), **more}
    network = [{"name": "up", "type": "dense", "units": inside}, {"name": "shaped", "type": "reshape", "shape": list(shape)}, *layers,
               {"name": "flat", "type": "flatten"}, {"name": "down", "type": "dense", "units": 3}]
    fields = {"data": random(5, SAMPLES, 6), "label": random(6, SAMPLES, 3)}

    def loss(w, batch):
        x = dense(w, "up", batch["data"]).reshape(-1, *shape)
        return f.mse_loss(dense(w, "down", function(w, x).flatten(1)), batch["label"])

    compare(name, {"network": network, "loss": "mse"}, fields, start, loss, {"one rank": ONE, "data parallel": MICRO_BATCHES, **plans})


def layer(type, **fields):
    return {"name": "layer", "type": type, **fields}


def layers():
    between("cumsum", (4, 3), [layer("cumsum", dim=1)], 12, lambda w, x: x.cumsum(1), {"cut": cut(layer=[[1, 1, 1]])})
    between("cumsum, reverse", (4, 3), [layer("cumsum", dim=-1, reverse=True)], 12, lambda w, x: x.flip(-1).cumsum(-1).flip(-1), {"cut": cut(layer=[[1, 2, 1]])})
    between("roll", (4, 6), [layer("roll", dim=2, shift=-2)], 24, lambda w, x: x.roll(-2, 2), {"cut": cut(layer=[[1, 1, 2]])})
    between("pad, reflect", (2, 4, 6), [layer("pad", mode="reflect", dims=[2, 3], before=[1, 3], after=[2, 1])], 140,
            lambda w, x: f.pad(x, (3, 1, 1, 2), mode="reflect"), {"cut": cut(layer=[[1, 1, 2, 1]])})
    between("pad, replicate", (2, 4, 6), [layer("pad", mode="replicate", dims=[2, 3], before=[1, 3], after=[2, 1])], 140,
            lambda w, x: f.pad(x, (3, 1, 1, 2), mode="replicate"), {"cut": cut(layer=[[1, 1, 1, 2]])})
    between("pad, circular", (2, 4, 6), [layer("pad", mode="circular", dims=[2, 3], before=[1, 3], after=[2, 1])], 140,
            lambda w, x: f.pad(x, (3, 1, 1, 2), mode="circular"), {"cut": cut(layer=[[1, 2, 1, 1]])})
    conv = {"layer.weight": random(7, 4, 2, 3, 3, scale=0.3), "layer.bias": random(8, 4, scale=0.1)}
    for mode in ("reflect", "circular"):
        between(f"conv2d, {mode}", (2, 4, 6), [layer("conv2d", channels=4, kernel=3, padding=1, padding_mode=mode)], 96,
                lambda w, x, mode=mode: f.conv2d(f.pad(x, (1, 1, 1, 1), mode=mode), w["layer.weight"], w["layer.bias"]), {}, conv)
    between("layer_norm over 2 dims", (2, 4, 3), [layer("layer_norm", dims=2)], 24,
            lambda w, x: f.layer_norm(x, (4, 3), w["layer.weight"].reshape(4, 3), w["layer.bias"].reshape(4, 3)), {"cut": cut(layer=[[1, 2, 1, 1]])},
            {"layer.weight": 1 + random(9, 12, scale=0.2), "layer.bias": random(10, 12, scale=0.2)})
    for size, shape in ((2, (2, 4, 6)), ([3, 2], (2, 5, 3))):
        out = 2 * int(np.prod([size, size] if isinstance(size, int) else size))
        between(f"adaptive_avg_pool2d to {size}", shape, [layer("adaptive_avg_pool2d", size=size)], out, lambda w, x, s=size: f.adaptive_avg_pool2d(x, s), {})
        between(f"adaptive_max_pool2d to {size}", shape, [layer("adaptive_max_pool2d", size=size)], out, lambda w, x, s=size: f.adaptive_max_pool2d(x, s), {})
    volume = {"layer.weight": random(11, 3, 6, 3, 2, scale=0.2), "layer.bias": random(12, 3, scale=0.1)}
    between("conv3d", (2, 4, 5, 3), [layer("conv3d", channels=3, kernel=[3, 3, 2], padding=[1, 1, 0], stride=[1, 2, 1])], 72,
            lambda w, x: f.conv3d(x, w["layer.weight"].reshape(3, 2, 3, 3, 2), w["layer.bias"], (1, 2, 1), (1, 1, 0)), {}, volume)
    grouped = {"layer.weight": random(11, 4, 6, 3, 2, scale=0.2), "layer.bias": random(12, 4, scale=0.1)}
    between("conv3d, groups and dilation", (4, 4, 5, 3), [layer("conv3d", channels=4, kernel=[3, 3, 2], padding=[1, 1, 0], dilation=[2, 1, 2], groups=2)], 40,
            lambda w, x: f.conv3d(x, w["layer.weight"].reshape(4, 2, 3, 3, 2), w["layer.bias"], 1, (1, 1, 0), (2, 1, 2), 2), {"cut": cut(layer=[[2, 1, 1, 1, 1]])}, grouped)
    transposed = {"layer.weight": random(11, 4, 3, 3, 2, scale=0.3), "layer.bias": random(12, 6, scale=0.1)}
    between("conv_transpose2d, groups", (4, 3, 4), [layer("conv_transpose2d", channels=6, kernel=[3, 2], stride=2, padding=[1, 0], groups=2)], 240,
            lambda w, x: f.conv_transpose2d(x, w["layer.weight"], w["layer.bias"], 2, (1, 0), groups=2), {"cut": cut(layer=[[1, 2, 1, 1], [2, 1, 1, 1]])}, transposed)
    for fields, theirs, size in (({"size": [7, 9]}, {"size": (7, 9)}, 126), ({"scale": [0.7, 2]}, {"scale_factor": (0.7, 2.0)}, 72),
                                 ({"size": [6, 3], "align_corners": True}, {"size": (6, 3), "align_corners": True}, 36)):
        between(f"bicubic, {fields}", (2, 5, 6), [layer("interpolate", mode="bicubic", **fields)], size,
                lambda w, x, theirs=theirs: f.interpolate(x, mode="bicubic", **theirs), {"cut": cut(layer=[[1, 1, 1, 2]])})
    two = [{"name": "second", "type": "dense", "units": 12, "inputs": "data"}, {"name": "other", "type": "reshape", "shape": [3, 4]}]
    for equation, shape, out in (("bij,bkj->bik", (2, 4), 6), ("bji,bkj->bik", (4, 2), 6), ("bij,bkj->bj", (2, 4), 4), ("bi,bkj->bkij", (5,), 60),
                                 ("bijk,bki->bj", (4, 2, 3), 2)):
        between_two(equation, shape, two, out)
    index = torch.tensor(np.random.default_rng(14).integers(0, 5, (SAMPLES, 4)))
    gathers(index)


def between_two(equation, shape, two, out):
    inside = int(np.prod(shape))
    start = {**dense_start(1, "up", inside, 6), **dense_start(13, "second", 12, 6), **dense_start(3, "down", 3, out)}
    network = [{"name": "up", "type": "dense", "units": inside}, {"name": "shaped", "type": "reshape", "shape": list(shape)}, *two,
               layer("einsum", equation=equation, inputs=["shaped", "other"]), {"name": "flat", "type": "flatten"}, {"name": "down", "type": "dense", "units": 3}]
    fields = {"data": random(5, SAMPLES, 6), "label": random(6, SAMPLES, 3)}

    def loss(w, batch):
        x, y = dense(w, "up", batch["data"]).reshape(-1, *shape), dense(w, "second", batch["data"]).reshape(-1, 3, 4)
        return f.mse_loss(dense(w, "down", torch.einsum(equation, x, y).flatten(1)), batch["label"])

    compare(f"einsum {equation}", {"network": network, "loss": "mse"}, fields, start, loss, {"one rank": ONE, "data parallel": MICRO_BATCHES})


def gathers(index):
    start = {**dense_start(1, "up", 15, 6), **dense_start(3, "down", 3, 12)}
    network = [{"name": "up", "type": "dense", "units": 15}, {"name": "shaped", "type": "reshape", "shape": [5, 3]},
               layer("gather", dim=1, inputs=["shaped", "index"]), {"name": "flat", "type": "flatten"}, {"name": "down", "type": "dense", "units": 3}]
    fields = {"data": random(5, SAMPLES, 6), "index": index, "label": random(6, SAMPLES, 3)}

    def loss(w, batch):
        x = dense(w, "up", batch["data"]).reshape(-1, 5, 3)
        return f.mse_loss(dense(w, "down", x.gather(1, batch["index"][..., None].expand(-1, -1, 3)).flatten(1)), batch["label"])

    compare("gather", {"network": network, "loss": "mse"}, fields, start, loss,
            {"one rank": ONE, "data parallel": MICRO_BATCHES, "cut": cut(layer=[[1, 1, 1], [1, 2]])})


def dlrm():
    """The network of configs/cookbook/dlrm.yaml, at a small size."""
    start = {**dense_start(1, "bottom", 3, 6), "table.weight": random(20, 7, 3, scale=0.5), **dense_start(3, "top", 2, 28)}
    network = [{"name": "bottom", "type": "dense", "units": 3, "inputs": "data"}, {"name": "dense_row", "type": "reshape", "shape": [1, 3]},
               {"name": "table", "type": "embedding", "inputs": "ids", "vocab": 7, "units": 3},
               {"name": "rows", "type": "concat", "inputs": ["dense_row", "table"], "dim": 1},
               {"name": "columns", "type": "transpose", "inputs": "rows", "perm": [0, 2, 1]},
               {"name": "pairs", "type": "einsum", "inputs": ["rows", "columns"], "equation": "nid,ndj->nij"}, {"name": "interactions", "type": "flatten"},
               {"name": "features", "type": "concat", "inputs": ["interactions", "bottom"], "dim": 1}, {"name": "top", "type": "dense", "units": 2}]
    integers = np.random.default_rng(21)
    fields = {"data": random(5, SAMPLES, 6), "ids": torch.tensor(integers.integers(0, 7, (SAMPLES, 4))), "label": torch.tensor(integers.integers(0, 2, SAMPLES))}

    def loss(w, batch):
        bottom = dense(w, "bottom", batch["data"])
        rows = torch.cat([bottom[:, None], w["table.weight"][batch["ids"]]], 1)
        return f.cross_entropy(dense(w, "top", torch.cat([torch.bmm(rows, rows.transpose(1, 2)).flatten(1), bottom], 1)), batch["label"])

    compare("dlrm", {"network": network, "loss": "softmax_cross_entropy"}, fields, start, loss, {"one rank": ONE, "data parallel": MICRO_BATCHES})


TOWERS = [{"name": "left", "type": "dense", "units": 5, "inputs": "data"}, {"name": "right", "type": "dense", "units": 5, "inputs": "data"},
          {"name": "third", "type": "dense", "units": 5, "inputs": "data"}]


def losses():
    start = {**dense_start(1, "left", 5, 6), **dense_start(3, "right", 5, 6), **dense_start(5, "third", 5, 6)}
    fields = {"data": random(7, SAMPLES, 6), "label": random(8, SAMPLES, 5)}

    def outputs(w, batch):
        return (dense(w, name, batch["data"]) for name in ("left", "right", "third"))

    def train(name, job, names, fields, loss, plans=None):
        network = [each for each in TOWERS if each["name"] in names]
        plans = plans or {"one rank": ONE, "data parallel": DATA_PARALLEL, "micro-batches": MICRO_BATCHES}
        compare(name, {"network": network, **job}, fields, {key: value for key, value in start.items() if key.split(".")[0] in names}, loss, plans)

    signs = {**fields, "label": torch.sign(random(9, SAMPLES))}
    train("cosine_embedding", {"loss": {"type": "cosine_embedding", "inputs": ["left", "right"], "margin": 0.1}}, ("left", "right"), signs,
          lambda w, b: f.cosine_embedding_loss(*list(outputs({**w, **{k: v for k, v in start.items() if k not in w}}, b))[:2], b["label"], margin=0.1))
    train("triplet", {"loss": {"type": "triplet", "inputs": ["left", "right", "third"], "margin": 0.7}}, ("left", "right", "third"), fields,
          lambda w, b: f.triplet_margin_loss(*outputs(w, b), margin=0.7))

    def info_nce(symmetric):
        def loss(w, b):
            q, k = (f.normalize(dense(w, name, b["data"]), dim=-1) for name in ("left", "right"))
            logits, own = q @ k.T / 0.2, torch.arange(BATCH)
            one = f.cross_entropy(logits, own)
            return (one + f.cross_entropy(logits.T, own)) / 2 if symmetric else one
        return loss

    without_label = {"data": fields["data"]}
    for symmetric in (True, False):
        job = {"loss": {"type": "info_nce", "inputs": ["left", "right"], "temperature": 0.2, "symmetric": symmetric}}
        train(f"info_nce{', symmetric' if symmetric else ''}", job, ("left", "right"), without_label, info_nce(symmetric), {"one rank": ONE, "data parallel": DATA_PARALLEL,
              "4 ranks": {"launch.ranks": 4, "parallel": {"mode": "data_parallel"}}})

    several = {**fields, "size": random(10, SAMPLES, 5), "kind": torch.tensor(np.random.default_rng(11).integers(0, 5, SAMPLES))}

    def sum_of_losses(w, b):
        left, right, third = outputs(w, b)
        parts = {"loss.size": f.l1_loss(right, b["size"]), "loss.kind": f.cross_entropy(third, b["kind"], label_smoothing=0.1)}
        return 2.0 * f.mse_loss(left, b["label"]) + 0.3 * parts["loss.size"] + 0.5 * parts["loss.kind"], parts

    job = {"loss": {"type": "mse", "input": "left", "weight": 2.0},
           "auxiliary_losses": [{"type": "mae", "name": "size", "input": "right", "label": "size", "weight": 0.3},
                                {"type": "softmax_cross_entropy", "name": "kind", "input": "third", "label": "kind", "weight": 0.5, "label_smoothing": 0.1}]}
    train("auxiliary losses", job, ("left", "right", "third"), several, sum_of_losses,
          {"one rank": ONE, "data parallel": MICRO_BATCHES, "pipeline": stages(2, left=0, right=1, third=1)})

    shares = {**fields, "label": torch.softmax(random(12, SAMPLES, 5), -1).to(torch.float32).to(torch.float64)}
    train("softmax_cross_entropy with shares of classes", {"loss": {"type": "softmax_cross_entropy", "label_smoothing": 0.2, "input": "left"}}, ("left",), shares,
          lambda w, b: f.cross_entropy(dense(w, "left", b["data"]), b["label"], label_smoothing=0.2))


def sequences():
    """ctc, with and without lengths, and dice of classes and of shares of classes."""
    integers = np.random.default_rng(30)
    steps, classes, most = 9, 5, 3
    start = dense_start(1, "up", steps * classes, 6)
    network = [{"name": "up", "type": "dense", "units": steps * classes}, {"name": "out", "type": "reshape", "shape": [steps, classes]}]
    counts, rows = torch.tensor(integers.integers(1, most + 1, SAMPLES)), torch.tensor(integers.integers(6, steps + 1, SAMPLES))
    labels = torch.tensor(integers.integers(0, classes - 1, (SAMPLES, most)))
    padded = torch.where(torch.arange(most) < counts[:, None], labels, -1)
    plans = {"one rank": ONE, "data parallel": MICRO_BATCHES, "pipeline": stages(2, up=0, out=1)}

    def ctc(w, b, reduction="mean"):
        p = dense(w, "up", b["data"]).reshape(-1, steps, classes).log_softmax(-1).transpose(0, 1)
        lengths = b["label_lengths"] if "label_lengths" in b else (b["label"] >= 0).sum(1)
        return f.ctc_loss(p, b["label"].clamp(min=0), b.get("input_lengths", torch.full((BATCH,), steps)), lengths, blank=classes - 1, reduction=reduction)

    data = random(5, SAMPLES, 6)
    job = {"network": network, "loss": {"type": "ctc", "blank": classes - 1}}
    compare("ctc, padded labels", job, {"data": data, "label": padded}, start, ctc, plans)
    compare("ctc, lengths", job, {"data": data, "label": labels, "label_lengths": counts, "input_lengths": rows}, start, ctc, plans)
    job["loss"] = {**job["loss"], "reduction": "sum", "weight": 0.02}
    compare("ctc, sum", job, {"data": data, "label": labels, "label_lengths": counts}, start, lambda w, b: 0.02 * ctc(w, b, "sum"), plans)

    for shares in (False, True):
        kinds = torch.tensor(integers.integers(0, classes, (SAMPLES, steps)))
        label = torch.softmax(random(31, SAMPLES, steps, classes), -1).to(torch.float32).to(torch.float64) if shares else kinds

        def dice(w, b, shares=shares):
            p = dense(w, "up", b["data"]).reshape(-1, steps, classes).softmax(-1)
            g = b["label"] if shares else f.one_hot(b["label"], classes)
            return (1 - (2 * (p * g).sum(1) + 1) / ((p + g).sum(1) + 1))[:, 1:].mean()

        compare(f"dice{' of shares' if shares else ''}", {"network": network, "loss": {"type": "dice", "background": False}}, {"data": data, "label": label}, start, dice,
                {**plans, "pixels cut": {"launch.ranks": 3, "parallel": {"mode": "semi_auto_parallel", "strategies": {"loss.dice": [[1, 3, 1]]}}}})


if __name__ == "__main__":
    groups = {"layers": layers, "losses": losses, "sequences": sequences, "dlrm": dlrm}
    for group in sys.argv[2:] or groups:
        groups[group]()
