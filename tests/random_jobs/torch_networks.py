#!/usr/bin/env python3
"""Random networks, losses, optimizers and schedules under random plans, each compared with PyTorch in float64.

  python3 tests/random_jobs/torch_networks.py --trainctl build/release/bin/trainctl --jobs 60 --seed 1

Job N of a seed is always the same: --only N. A job fails if it does not run, or if its losses or its final weights differ from those of PyTorch in
float64 by more than TOLERANCE, or, if that is more, by SPREAD times as much as those of PyTorch in f32 do. Elements of weights whose gradients are 0
but for rounding, as of a bias before a norm, are not compared: lars, adafactor and muon divide by a gradient's size, so they follow its rounding.
Drafts that `plan` refuses are drawn again; more than MOST_REFUSED of them are a failure too. The jobs that failed are kept in --keep.

With --emulated build/release/bin/test_cuda_emulated the networks run in bf16 and fp16, in turn, on emulated GPUs; only their losses are compared, by
APART.

Exits with 77 if PyTorch is missing.
"""

import argparse
import collections
import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

SKIPPED = 77

try:
    import numpy as np
    import safetensors.torch
    import torch
except ImportError as error:
    environment = pathlib.Path(__file__).resolve().parents[2] / "build/peers/bin/python3"
    if environment.exists() and pathlib.Path(sys.executable) != environment:
        sys.exit(subprocess.run([environment, *sys.argv], check=False).returncode)
    print(f"SKIPPED: {sys.executable} has no {error.name}; ./bootstrap peers installs it")
    sys.exit(SKIPPED)

from runs import Failure, call, read_losses
from torch_layers import Network
from torch_training import clip, draw_optimizer, draw_schedule, draw_schedule_free

TOLERANCE, SPREAD = 2e-5, 8
APART = {"bf16": 0.1, "fp16": 0.03}
ROUNDING = 1e-12  # a gradient in float64 below this, relative to the largest of its step, is 0 but for rounding
EXPLODES = 1e6  # a job whose loss in PyTorch exceeds this is not compared
MOST_REFUSED = 0.5
torch.set_num_threads(1)


def make_network(rng, samples, layers):
    net = Network(rng)
    net.samples = samples
    net.field("data", net.numbers(samples, 6))
    x = net.reshaped("data")
    x = net.grow(x, layers)
    net.loss, net.loss_inputs, net.loss_function = net.end(x)
    return net


# Plans.

def names_of(net):
    return [layer["name"] for layer in net.layers]


def draw_stages(rng, net, stages):
    names = names_of(net)
    cuts = sorted(rng.sample(range(1, len(names)), stages - 1))
    return {name: sum(k >= cut for cut in cuts) for k, name in enumerate(names)}


def draw_strategies(rng, net, ways):
    """A cut of one dim of the first input of some layers, and of units or features of dense layers."""
    strategies = {}
    for layer in net.layers:
        if rng.random() < 0.6:
            continue
        shape = net.shapes[layer["inputs"][0]]
        cuts = [1] * (len(shape) + 1)
        if layer["type"] == "dense" and rng.random() < 0.7:
            if layer["units"] % ways == 0 and rng.random() < 0.5:
                strategies[layer["name"]] = [cuts, [ways, 1]]
            elif shape[-1] % ways == 0:
                strategies[layer["name"]] = [[*cuts[:-1], ways], [1, ways]]
            continue
        dim = rng.randrange(len(cuts))
        if dim > 0 and shape[dim - 1] % ways:
            continue
        cuts[dim] = ways
        strategies[layer["name"]] = [cuts]
    return strategies


def draw_plan(rng, net):
    """The sections parallel and launch."""
    kind = rng.choice(["data", "data", "shard", "tensor", "tensor", "tensor", "pipeline", "pipeline", "hybrid", "auto"])
    micro = 1 if net.mixes_rows else rng.choice([1, 2, 4])
    parallel, ranks = {"mode": "data_parallel"}, rng.choice([2, 4])
    if kind == "shard":
        parallel["optimizer_shard"] = {"level": rng.choice([1, 2, 3]), "min_kb": 0}
    elif kind == "tensor":
        ranks = rng.choice([2, 2, 4])
        parallel = {"mode": "semi_auto_parallel", "strategies": draw_strategies(rng, net, 2)}
        if rng.random() < 0.3:
            parallel["optimizer_shard"] = {"level": rng.choice([1, 2, 3]), "min_kb": 0}
    elif kind == "pipeline":
        stages = 2
        parallel = {"mode": "semi_auto_parallel", "stages": stages, "stage_config": draw_stages(rng, net, stages), "schedule": rng.choice(["gpipe", "1f1b", "zero_bubble"])}
        ranks = stages * rng.choice([1, 2])
        if rng.random() < 0.3:
            parallel["optimizer_shard"] = {"level": rng.choice([1, 2, 3]), "min_kb": 0}
    elif kind == "hybrid":
        parallel = {"mode": "hybrid_parallel"}
        if net.mixes_rows:  # a rank sees only its own rows
            parallel["full_batch"] = True
    elif kind == "auto":
        parallel, ranks = {"mode": "auto_parallel"}, 2
    if micro > 1 and kind != "auto":
        parallel["micro_batches"] = micro
    if kind != "auto" and rng.random() < 0.3:
        names = names_of(net)
        parallel["recompute"] = rng.choice([["*"], rng.sample(names, rng.randint(1, len(names)))])
    return parallel, {"ranks": ranks}


class Job:
    def __init__(self, options, number):
        seed = f"{options.seed} {number}"
        rng = self.rng = random.Random(seed)
        self.batch, self.steps = 8, 10
        self.net = make_network(rng, 24, rng.choice([1, 2, 3, 4, 6]))
        schedule_free = rng.random() < 0.05
        self.optimizer, self.make, base = draw_schedule_free(rng) if schedule_free else draw_optimizer(rng, self.net)
        self.rate, self.rates = (base, [base] * self.steps) if schedule_free else draw_schedule(rng, base, self.steps)

    def draw_plan(self):
        self.parallel, self.launch = draw_plan(self.rng, self.net)

    def fields(self, folder):
        loss = dict(self.net.loss)
        auxiliary = loss.pop("auxiliary", None)
        if "inputs" not in loss:
            loss.setdefault("input", self.net.loss_inputs[0])
        label = self.net.fields.get("label")
        classes = label is not None and not label.dtype.is_floating_point
        return {"name": "torch", "seed": 3, "network": self.net.layers, "loss": loss, **({"auxiliary_losses": auxiliary} if auxiliary else {}),
                "dataset": {"type": "npy", "path": str(folder / "data"), "fields": {name: f"{name}.npy" for name in self.net.fields}, "batch": self.batch,
                            "shuffle": False, "label_dtype": "i32" if classes else "f32"},
                "weights": {"from": str(folder / "start.safetensors"), "map": "job"}, "optimizer": {**self.optimizer, "learning_rate": self.rate},
                "train": {"steps": self.steps, "checkpoint": {"integrated": True}}, "parallel": self.parallel,
                "launch": {"device": "cpu", "log_dir": str(folder / "runs"), **self.launch}}

    def write(self, folder):
        (folder / "data").mkdir(exist_ok=True)
        for name, values in self.net.fields.items():
            np.save(folder / f"data/{name}.npy", values.numpy().astype(np.float32 if values.dtype.is_floating_point else np.int32))
        safetensors.torch.save_file({name: value.to(torch.float32).contiguous() for name, value in {**self.net.start, **self.net.states}.items()}, folder / "start.safetensors")
        (folder / "job.yaml").write_text(json.dumps(self.fields(folder), indent=1))  # JSON is YAML
        return folder / "job.yaml"

    def reference(self, dtype):
        """The final weights, the losses, and the elements with gradients beyond rounding, {name: bools}, of PyTorch."""
        weights = {name: value.to(dtype).clone().requires_grad_() for name, value in self.net.start.items()}
        optimizer, losses = self.make(list(weights.values()), self.rates[0]), []
        clear = {name: torch.ones_like(value, dtype=torch.bool) for name, value in weights.items()}
        samples = {name: values.to(dtype) if values.dtype.is_floating_point else values for name, values in self.net.fields.items()}
        for step in range(self.steps):
            rows = slice(step * self.batch % self.net.samples, step * self.batch % self.net.samples + self.batch)
            for group in optimizer.param_groups:
                group["lr"] = self.rates[step]
            optimizer.zero_grad()
            loss = self.net.loss_function(*self.net.compute(weights, {name: values[rows] for name, values in samples.items()}, self.net.loss_inputs))
            loss.backward()
            for value in weights.values():  # trainctl updates weights without influence, too
                value.grad = torch.zeros_like(value) if value.grad is None else value.grad
            least = ROUNDING * max(float(value.grad.abs().max()) for value in weights.values())
            for name, value in weights.items():
                clear[name] &= (value.grad == 0) | (value.grad.abs() > least)
            clip(self.optimizer, list(weights.values()))
            optimizer.step()
            losses.append(float(loss.detach()))
        return {name: value.detach().to(torch.float64) for name, value in weights.items()}, losses, clear


def apart(ours, theirs):
    """The largest difference of weights and of losses, relative to the values where they are above 1."""
    weights, _, clear = theirs
    of_weights = max(float(((ours[0][name].reshape(value.shape) - value) * clear[name]).abs().max()) / max(1.0, float(value.abs().max())) for name, value in weights.items())
    of_losses = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(ours[1], theirs[1], strict=True))
    return max(of_weights, of_losses) if math.isfinite(of_weights + of_losses) else math.inf


def run(options, job, folder):
    code, output = call([options.trainctl, "run", str(folder / "job.yaml")])
    if code != 0:
        raise Failure(f"exit code {code} of run\n{output[-3000:]}")
    saved = max((folder / "runs/1/checkpoints").glob("*/model.safetensors"))
    weights = {name.removesuffix(":weight"): value.to(torch.float64) for name, value in safetensors.torch.load_file(saved).items()}
    losses = read_losses(folder / "runs/1/metrics.jsonl")
    return {name: weights[name] for name in job.net.start}, [losses[step] for step in sorted(losses)]


def run_emulated(options, folder):
    losses = folder / "losses.jsonl"
    code, output = call([options.emulated, "-tc=the job of the file*"],
                        {**os.environ, "TRAINCTL_JOB": str(folder / "job.yaml"), "TRAINCTL_LOSSES": str(losses)})
    if code != 0:
        raise Failure(f"exit code {code} of the emulator\n{output[-3000:]}")
    found = read_losses(losses)
    return [found[step] for step in sorted(found)]


def planned(options, job, folder, refused, number):
    """Draws plans until one is possible; returns the file."""
    for _ in range(12):
        job.draw_plan()
        path = job.write(folder)
        if options.emulated:
            fields = json.loads(path.read_text())
            fields |= {"precision": "bf16"} if number % 2 == 0 else {"precision": "fp16", "fp16": {"initial_scale": 64}}
            fields["launch"] = {**fields["launch"], "device": "cuda"}
            fields.pop("weights"), fields["train"].pop("checkpoint")
            path.write_text(json.dumps(fields, indent=1))
        code, output = call([options.trainctl, "plan", str(path)])
        if code == 0:
            return path
        if code != 2 or "parallel" not in output:
            raise Failure(f"exit code {code} of plan\n{output[-3000:]}")
        message = re.sub(r"'[^']*'|\[[^\]]*\]|\d+", "…", next((line for line in output.splitlines() if "parallel" in line), output[:200]))
        refused[message.split("parallel", 1)[-1][:110]] += 1
    return None


def check(options, number, refused):
    job = Job(options, number)
    with tempfile.TemporaryDirectory(prefix="trainctl-torch-") as name:
        folder = pathlib.Path(name)
        said = f"job {number}: {', '.join(dict.fromkeys(layer['type'] for layer in job.net.layers if layer['type'] not in ('dense', 'reshape', 'flatten')))}; {job.net.loss['type']}, {job.optimizer['type']}"
        try:
            if planned(options, job, folder, refused, number) is None:
                raise Failure("no plan of twelve is possible")
            said += f", {job.parallel['mode']} on {job.launch['ranks']}"
            exact = job.reference(torch.float64)
            if not all(abs(loss) < EXPLODES for loss in exact[1]):
                return said, f"excused: PyTorch's loss explodes, to {max(exact[1], key=abs):.1g}"
            if options.emulated:
                return said, compare_halves(options, job, folder)
            found, f32 = run(options, job, folder), job.reference(torch.float32)
            allowed = max(TOLERANCE, SPREAD * apart(f32, exact))
            difference = apart(found, exact)
            if difference > allowed:
                raise Failure(f"differs by {difference:.2g} from PyTorch, whose f32 differs by {apart(f32, exact):.2g}\n"
                              f"losses {found[1]}\nexpected {exact[1]}")
            return said, f"{difference:.1e} (f32 of PyTorch: {apart(f32, exact):.1e})"
        except Failure as problem:
            keep = pathlib.Path(options.keep) / f"{options.seed}.{number}"
            keep.mkdir(parents=True, exist_ok=True)
            for file in (folder / "job.yaml", folder / "start.safetensors"):
                if file.exists():
                    (keep / file.name).write_bytes(file.read_bytes())
            raise Failure(f"{said}\n{problem}\n  again: --seed {options.seed} --only {number}; kept in {keep}") from None


def compare_halves(options, job, folder):
    """The losses on emulated GPUs in 16 bits, compared with those of one rank of the same job on the CPU in fp32."""
    found = run_emulated(options, folder)
    fields = json.loads((folder / "job.yaml").read_text())
    precision = fields.pop("precision")
    fields.pop("fp16", None)
    fields |= {"precision": "fp32", "parallel": {"micro_batches": job.parallel.get("micro_batches", 1)}, "launch": {"ranks": 1, "device": "cpu", "log_dir": str(folder / "runs")}}
    (folder / "one.yaml").write_text(json.dumps(fields))
    code, output = call([options.trainctl, "run", str(folder / "one.yaml")])
    if code != 0:
        raise Failure(f"exit code {code} of run\n{output[-3000:]}")
    expected = read_losses(folder / "runs/1/metrics.jsonl")
    expected = [expected[step] for step in sorted(expected)]
    worst = max((abs(a - b) / max(1.0, abs(b)) if math.isfinite(a) else math.inf) for a, b in zip(found, expected, strict=True))
    if worst > APART[precision]:
        raise Failure(f"{precision} differs by {worst:.2g} from fp32\nlosses {found}\nexpected {expected}")
    return f"{precision} differs by {worst:.1e} from fp32"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainctl", required=True, type=os.path.abspath)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this job alone")
    parser.add_argument("--emulated", type=os.path.abspath, help="test_cuda_emulated: bf16 and fp16 on emulated GPUs")
    parser.add_argument("--keep", default="torch_networks.failed", help="folder for the jobs that failed")
    options = parser.parse_args()
    refused, failed = collections.Counter(), 0
    numbers = [options.only] if options.only is not None else range(options.jobs)
    for number in numbers:
        try:
            said, result = check(options, number, refused)
            print(f"ok   {said}: {result}", flush=True)
        except Failure as problem:
            failed += 1
            print(f"FAIL {problem}", flush=True)
    for message, count in refused.most_common():
        print(f"refused {count} times: {message}")
    print(f"{len(numbers)} networks, {sum(refused.values())} drafts refused, {failed} failed")
    too_many = sum(refused.values()) > max(3, MOST_REFUSED * len(numbers))
    return 1 if failed or too_many else 0


if __name__ == "__main__":
    sys.exit(main())
