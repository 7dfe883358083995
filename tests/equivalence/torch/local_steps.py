#!/usr/bin/env python3
"""local_steps.py TRAINCTL: parallel.local_steps (DiLoCo) computes what a simulation in PyTorch computes in float64, under any plan inside
a replica, and resumes in the middle of a round with the same bits.

Exits with 77 if PyTorch is missing."""

import json
import math
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
BATCH, SAMPLES, IN, HIDDEN, OUT = 16, 64, 8, 16, 4
STEPS, LOCAL = 26, 4  # synchronizes after each fourth step and the last one, and more often before step 16
# The default of parallel.outer for two replicas and AdamW, but for the bf16 in which differences are exchanged.
DEFAULT = {"learning_rate": 0.9, "momentum": 0.7, "nesterov": True, "round_growth": 0.25, "local_rate": math.sqrt(2), "precision": "fp32"}
EVEN = {**DEFAULT, "round_growth": 0, "local_rate": 1}
torch.manual_seed(1)
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

NETWORK = [{"name": "layer1", "type": "dense", "units": HIDDEN}, {"name": "act", "type": "tanh"}, {"name": "layer2", "type": "dense", "units": OUT}]
INNER = {"type": "adamw", "learning_rate": 0.01, "betas": [0.9, 0.95], "weight_decay": 0.1}
STAGES = {"mode": "semi_auto_parallel", "stages": 2, "micro_batches": 2, "stage_config": {"layer1": 0, "act": 0, "layer2": 1}}
PLANS = {"one rank": (1, {"mode": "data_parallel"}),
         "data parallel": (2, {"mode": "data_parallel", "micro_batches": 2}),
         "sharded, level 1": (2, {"mode": "data_parallel", "optimizer_shard": {"level": 1, "min_kb": 0}}),
         "sharded, level 3": (2, {"mode": "data_parallel", "optimizer_shard": {"level": 3, "min_kb": 0}}),
         "pipeline": (2, STAGES)}


def rounded(values):
    """Numbers that f32 has, in float64."""
    return values.to(torch.float32).to(torch.float64)


def first_weights():
    return {"layer1.weight": rounded(torch.randn(HIDDEN, IN) * 0.4), "layer1.bias": rounded(torch.randn(HIDDEN) * 0.1),
            "layer2.weight": rounded(torch.randn(OUT, HIDDEN) * 0.3), "layer2.bias": rounded(torch.randn(OUT) * 0.1)}


def forward(w, x):
    return torch.tanh(x @ w["layer1.weight"].T + w["layer1.bias"]) @ w["layer2.weight"].T + w["layer2.bias"]


def end_of_round(step, growth):
    """The step of the next synchronization after one at `step`."""
    return min((step // LOCAL + 1) * LOCAL, step + max(1, math.floor(growth * step)) if growth else STEPS * LOCAL)


def exchanged(value, precision):
    return value.to(torch.bfloat16).to(value.dtype) if precision == "bf16" else value


def simulate(start, data, label, replicas, outer):
    """Algorithm 1 of DiLoCo (Douillard et al., 2023): returns the outer weights and the losses of the first replica."""
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}
    outer_optimizer = torch.optim.SGD(parameters.values(), lr=outer["learning_rate"], momentum=outer["momentum"], nesterov=outer["nesterov"])
    inner = [{name: value.clone().requires_grad_() for name, value in start.items()} for _ in range(replicas)]
    optimizers = [torch.optim.AdamW(weights.values(), lr=INNER["learning_rate"] * outer["local_rate"], betas=INNER["betas"], weight_decay=INNER["weight_decay"])
                  for weights in inner]
    losses, begin, end = [], 0, end_of_round(0, outer["round_growth"])
    for step in range(STEPS):
        first, part = step * BATCH % SAMPLES, BATCH // replicas
        for replica, (weights, optimizer) in enumerate(zip(inner, optimizers)):
            rows = slice(first + replica * part, first + (replica + 1) * part)
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(forward(weights, data[rows]), label[rows])
            loss.backward()
            optimizer.step()
            if replica == 0:
                losses.append(float(loss.detach()))
        if step + 1 in (end, STEPS):
            is_short = outer["round_growth"] > 0 and step + 1 - begin < LOCAL
            begin, end = step + 1, end_of_round(step + 1, outer["round_growth"])
            for name, parameter in parameters.items():
                differences = [exchanged(parameter.detach() - weights[name].detach(), outer["precision"]) for weights in inner]
                parameter.grad = exchanged(sum(differences), outer["precision"]) / replicas
            if is_short:  # the mean
                for parameter in parameters.values():
                    parameter.data -= parameter.grad
            else:
                outer_optimizer.step()
            for weights in inner:
                for name, parameter in parameters.items():
                    weights[name].data.copy_(parameter.detach())
    return {name: parameter.detach() for name, parameter in parameters.items()}, losses


class Scene:
    """A folder with the data, the weights to start from, and the runs."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.data, self.label = rounded(torch.randn(SAMPLES, IN)), rounded(torch.randn(SAMPLES, OUT))
        self.start = first_weights()
        (self.folder / "data").mkdir()
        np.save(self.folder / "data/data.npy", self.data.numpy().astype(np.float32))
        np.save(self.folder / "data/label.npy", self.label.numpy().astype(np.float32))
        safetensors.torch.save_file({name: value.to(torch.float32).contiguous() for name, value in self.start.items()},
                                    self.folder / "start.safetensors")
        self.runs = 0

    def job(self, ranks, parallel, steps=STEPS):
        self.runs += 1
        logs = self.folder / f"runs.{self.runs}"
        job = {"name": "local", "seed": 3, "network": NETWORK, "loss": "mse", "optimizer": INNER,
               "dataset": {"type": "npy", "path": str(self.folder / "data"), "fields": {"data": "data.npy", "label": "label.npy"},
                           "batch": BATCH, "shuffle": False, "label_dtype": "f32"},
               "weights": {"from": str(self.folder / "start.safetensors"), "map": "job"},
               "train": {"steps": steps, "checkpoint": {"integrated": True, "keep": 9}},
               "parallel": {"local_steps": LOCAL, **parallel}, "launch": {"ranks": ranks, "device": "cpu", "log_dir": str(logs)}}
        path = self.folder / f"job.{self.runs}.yaml"
        path.write_text(json.dumps(job))  # JSON is YAML
        return path, logs

    def run(self, path, *more):
        done = subprocess.run([TRAINCTL, "run", path, *more], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, path.read_text() + "\n" + done.stdout + done.stderr


def tensors_of(checkpoint):
    """All that a checkpoint has, by the names in its files."""
    found = {}
    for path in sorted(checkpoint.glob("rank.*.safetensors")):
        found.update(safetensors.torch.load_file(path))
    return found


def newest(logs, run=1):
    return max((logs / f"{run}/checkpoints").glob("step_*"))


def follows_pytorch(scene, replicas, plan, outer):
    ranks, parallel = PLANS[plan]
    fields = {**parallel, "outer": {"precision": outer["precision"]} if outer in (DEFAULT, {**DEFAULT, "precision": "bf16"}) else outer}
    path, logs = scene.job(ranks * replicas, {**fields, "replicas": replicas})
    scene.run(path)
    weights, losses = simulate(scene.start, scene.data, scene.label, replicas, outer)
    whole = safetensors.torch.load_file(newest(logs) / "model.safetensors")
    worst = max(float((whole[f"{name}:weight"].to(torch.float64).reshape(value.shape) - value).abs().max()) for name, value in weights.items())
    rows = [json.loads(line) for line in (logs / "1/metrics.jsonl").read_text().splitlines()]
    ours = [row["loss"] for row in rows if "step" in row and "kind" not in row]
    of_losses = max(abs(a - b) for a, b in zip(ours, losses, strict=True))
    print(f"{replicas} replicas, {plan}, {outer}: weights differ by {worst:.2g}, losses by {of_losses:.2g}", flush=True)
    # A value between two of bf16 may be rounded to either.
    most = limit(1e-4 if outer["precision"] == "bf16" else 2e-6)
    assert worst < most and of_losses < most


def resumes_within_a_round(scene, plan):
    """A run that ends after step 6, two steps after a synchronization, continues with the bits of one that does not end."""
    ranks, parallel = PLANS[plan]
    parallel = {**parallel, "replicas": 2, "outer": EVEN}
    path, logs = scene.job(ranks * 2, parallel)
    scene.run(path)
    whole = tensors_of(newest(logs))
    path, logs = scene.job(ranks * 2, parallel, steps=12)
    scene.run(path, "train.checkpoint.every_steps=6", "train.steps=12")
    middle = max(p for p in (logs / "1/checkpoints").glob("step_*") if p.name.startswith("step_00000006"))
    scene.run(path, "--resume-from", middle, f"train.steps={STEPS}")
    resumed = tensors_of(newest(logs, 2))
    assert whole.keys() == resumed.keys(), whole.keys() ^ resumed.keys()
    differ = [name for name in whole if not torch.equal(whole[name], resumed[name])]
    assert not differ, differ
    slots = {name.split(":")[1].split("[")[0] for name in whole}
    assert {"weight", "weight@1", "m", "m@1", "average", "outer_momentum"} <= slots, slots
    print(f"resumed within a round, {plan}: {len(whole)} tensors have the same bits", flush=True)


def another_number_of_replicas(scene):
    """A checkpoint of two replicas continues with four and with one: new replicas begin with the outer weights."""
    path, logs = scene.job(2, {"mode": "data_parallel", "replicas": 2}, steps=LOCAL)
    scene.run(path)
    saved = newest(logs)
    for replicas in (4, 1):
        scene.run(path, "--resume-from", saved, f"launch.ranks={replicas}", f"parallel.replicas={replicas}", f"train.steps={STEPS}")
    print("resumed with 4 and with 1 replicas", flush=True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(folder)
        for plan in PLANS:
            follows_pytorch(scene, 2, plan, DEFAULT)
        follows_pytorch(scene, 2, "one rank", {**DEFAULT, "precision": "bf16"})
        follows_pytorch(scene, 2, "one rank", {**EVEN, "learning_rate": 0.7, "momentum": 0.9})  # of the paper
        follows_pytorch(scene, 4, "one rank", {**EVEN, "learning_rate": 0.4, "momentum": 0.5, "nesterov": False, "local_rate": 2})
        for plan in ("data parallel", "sharded, level 3"):
            resumes_within_a_round(scene, plan)
        another_number_of_replicas(scene)


main()
