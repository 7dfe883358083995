#!/usr/bin/env python3
"""training.py TRAINCTL [optimizers | averages | schedules | losses | layers | recurrent | skips]: a small network trains as PyTorch trains it in float64, from the same
weights on the same batches.

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

from reference_optimizers import ADAFACTOR_EPS, Lion, PerParameter, adafactor, lamb, lars, muon, schedule_free_adamw  # noqa: E402

TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
BATCH, SAMPLES, IN, HIDDEN, OUT = 16, 64, 8, 16, 4
WEIGHTS = [0.5, 2.0, 1.25, 0.0]
torch.manual_seed(1)
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

MLP = [{"name": "layer1", "type": "dense", "units": HIDDEN}, {"name": "act", "type": "tanh"}, {"name": "layer2", "type": "dense", "units": OUT}]
ONE = {"launch.ranks": 1, "parallel": {"mode": "stand_alone"}}
PLANS = {"one rank": ONE,
         "data parallel": {"launch.ranks": 2, "parallel": {"mode": "data_parallel", "micro_batches": 2}},
         "sharded, level 2": {"launch.ranks": 2, "parallel": {"mode": "data_parallel", "optimizer_shard": {"level": 2, "min_kb": 0}}},
         "sharded, level 3": {"launch.ranks": 4, "parallel": {"mode": "data_parallel", "optimizer_shard": {"level": 3, "min_kb": 0}}},
         "pipeline": {"launch.ranks": 2, "parallel": {"mode": "semi_auto_parallel", "stages": 2, "micro_batches": 2,
                                                      "stage_config": {"layer1": 0, "act": 0, "layer2": 1}}}}

# Matrices are cut by rows and columns too.
CUTS = {"rows cut": {"launch.ranks": 2, "parallel": {"mode": "semi_auto_parallel", "strategies": {"layer1": [[1, 1], [2, 1]]}}},
        "columns cut, sharded": {"launch.ranks": 4, "parallel": {"mode": "semi_auto_parallel", "optimizer_shard": {"level": 2, "min_kb": 0},
                                                                 "strategies": {"layer2": [[2, 2], [1, 2]]}}}}


class Trained:
    """The final weights of a job, and the rows of its metrics."""

    def __init__(self, network, loss, optimizer, start, data, label, steps, plan=ONE, validates=0, **more):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "data").mkdir()
            np.save(folder / "data/data.npy", data.astype(np.float32))
            np.save(folder / "data/label.npy", label.astype(np.int32 if label.dtype.kind == "i" else np.float32))
            safetensors.torch.save_file({key: value.to(torch.float32).contiguous() for key, value in start.items()}, folder / "start.safetensors")
            job = {"name": "training", "seed": 3, "network": network, "loss": loss, "optimizer": optimizer,
                   "dataset": {"type": "npy", "path": str(folder / "data"), "fields": {"data": "data.npy", "label": "label.npy"},
                               "batch": BATCH, "shuffle": False, "label_dtype": "i32" if label.dtype.kind == "i" else "f32"},
                   "weights": {"from": str(folder / "start.safetensors"), "map": "job"},
                   "train": {"steps": steps, "checkpoint": {"integrated": True}, **more.pop("train", {})},
                   "launch": {"device": "cpu", "log_dir": str(folder / "runs")}, **more}
            if validates:
                job["validation"] = {"dataset": {"path": str(folder / "data")}, "every_steps": validates}
            for key, value in plan.items():
                job.setdefault(key.split(".")[0], {})
                if "." in key:
                    job[key.split(".")[0]][key.split(".")[1]] = value
                else:
                    job[key] = value
            (folder / "job.yaml").write_text(json.dumps(job))  # JSON is YAML
            done = subprocess.run([TRAINCTL, "run", folder / "job.yaml"], capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, json.dumps(job) + "\n" + done.stdout + done.stderr
            saved = max((folder / "runs/1/checkpoints").glob("*/model.safetensors"))
            self.weights = {key.removesuffix(":weight"): value.to(torch.float64) for key, value in safetensors.torch.load_file(saved).items()}
            lines = [json.loads(line) for line in (folder / "runs/1/metrics.jsonl").read_text().splitlines()]
            self.validations = [row for row in lines if row.get("kind") == "validation"]
            if validates:
                subprocess.run([TRAINCTL, "checkpoint", "export", saved.parent, "-o", folder / "out.safetensors"], check=True, capture_output=True)
                self.exported = {key: value.to(torch.float64) for key, value in safetensors.torch.load_file(folder / "out.safetensors").items()}
            self.rows = lines
            self.rows = [row for row in self.rows if "step" in row and "kind" not in row]
            self.losses = [row["loss"] for row in self.rows]


def compare(what, trained, weights, losses, tolerance):
    worst = 0.0
    for name, theirs in weights.items():
        ours = trained.weights[name].reshape(theirs.shape)
        worst = max(worst, float((ours - theirs.detach()).abs().max()) / max(1.0, float(theirs.detach().abs().max())))
    of_losses = max((abs(a - b) / max(1.0, abs(b)) for a, b in zip(trained.losses, losses, strict=True)), default=0.0)
    print(f"{what}: weights differ by {worst:.2g}, losses by {of_losses:.2g}", flush=True)
    assert worst < tolerance and of_losses < tolerance, what


def rounded(values):
    """Numbers that f32 has, in float64."""
    return torch.as_tensor(values).to(torch.float32).to(torch.float64)


def mlp_weights():
    return {"layer1.weight": rounded(torch.randn(HIDDEN, IN) * 0.4), "layer1.bias": rounded(torch.randn(HIDDEN) * 0.1),
            "layer2.weight": rounded(torch.randn(OUT, HIDDEN) * 0.3), "layer2.bias": rounded(torch.randn(OUT) * 0.1)}


def mlp(w, x):
    return torch.tanh(x @ w["layer1.weight"].T + w["layer1.bias"]) @ w["layer2.weight"].T + w["layer2.bias"]


def reference(forward, loss, start, data, label, steps, make_optimizer, before_update=None):
    """The weights after `steps`, and each step's loss. make_optimizer(parameters) has step(), and may have a schedule."""
    weights = {name: value.clone().requires_grad_() for name, value in start.items()}
    optimizer, losses = make_optimizer(list(weights.values())), []
    for step in range(steps):
        rows = slice(step * BATCH % SAMPLES, step * BATCH % SAMPLES + BATCH)
        optimizer.zero_grad()
        value = loss(forward(weights, torch.as_tensor(data[rows])), torch.as_tensor(label[rows]))
        value.backward()
        if before_update:
            before_update(list(weights.values()))
        optimizer.step()
        losses.append(float(value.detach()))
    return weights, losses


def data_of(seed, shape=(IN,), out=(OUT,)):
    random = np.random.default_rng(seed)
    return (random.standard_normal((SAMPLES, *shape)).astype(np.float32).astype(np.float64),
            random.standard_normal((SAMPLES, *out)).astype(np.float32).astype(np.float64))


def rounded_cost(weights, start, data, label, make, key, clip=None):
    """Measures how far PyTorch in float64 gets from `weights` if each step's weights are rounded at random, up or down, as f32 would round them."""
    random = torch.Generator().manual_seed(key)

    def make_rounded(parameters):
        optimizer = make(parameters)
        exact = optimizer.step

        @torch.no_grad()
        def step():
            exact()
            for p in parameters:
                p.mul_(1 + (torch.rand(p.shape, generator=random, dtype=torch.float64) - 0.5) * 2**-23)

        optimizer.step = step
        return optimizer

    found = reference(mlp, torch.nn.functional.mse_loss, start, data, label, 100, make_rounded, clip)[0]
    return max(float((found[name] - value).detach().abs().max()) / max(1.0, float(value.detach().abs().max())) for name, value in weights.items())


def optimizers():
    mse = torch.nn.functional.mse_loss
    data, label = data_of(5)
    t = torch.optim
    cases = {
        "adam, amsgrad": ({"type": "adam", "amsgrad": True, "weight_decay": 0.01}, lambda p: t.Adam(p, 0.003, amsgrad=True, weight_decay=0.01)),
        "adamw, amsgrad": ({"type": "adamw", "amsgrad": True, "weight_decay": 0.1}, lambda p: t.AdamW(p, 0.003, amsgrad=True, weight_decay=0.1)),
        "nadam": ({"type": "nadam", "weight_decay": 0.01}, lambda p: t.NAdam(p, 0.003, weight_decay=0.01)),
        "nadam, decoupled": ({"type": "nadam", "weight_decay": 0.1, "decoupled_weight_decay": True, "momentum_decay": 0.02},
                             lambda p: t.NAdam(p, 0.003, weight_decay=0.1, decoupled_weight_decay=True, momentum_decay=0.02)),
        "rmsprop": ({"type": "rmsprop", "weight_decay": 0.01}, lambda p: t.RMSprop(p, 0.003, weight_decay=0.01)),
        "rmsprop, momentum": ({"type": "rmsprop", "momentum": 0.9, "alpha": 0.9}, lambda p: t.RMSprop(p, 0.003, momentum=0.9, alpha=0.9)),
        "rmsprop, centered": ({"type": "rmsprop", "centered": True, "momentum": 0.5, "eps": 1e-4},
                              lambda p: t.RMSprop(p, 0.003, centered=True, momentum=0.5, eps=1e-4)),
        "lion": ({"type": "lion", "weight_decay": 0.1}, lambda p: Lion(p, 0.003, (0.9, 0.99), 0.1)),
        "sgd, clipped by value": ({"type": "sgd", "momentum": 0.9, "clip_value": 0.05}, lambda p: t.SGD(p, 0.003, momentum=0.9)),
        "lamb": ({"type": "lamb", "weight_decay": 0.01}, lambda p: PerParameter(p, lamb())),
        "lars": ({"type": "lars", "weight_decay": 0.01, "trust_coefficient": 0.02, "learning_rate": 0.3}, lambda p: PerParameter(p, lars())),
        "muon": ({"type": "muon", "weight_decay": 0.1}, lambda p: PerParameter(p, muon())),
        "schedule_free_adamw": ({"type": "schedule_free_adamw", "weight_decay": 0.01}, lambda p: PerParameter(p, schedule_free_adamw())),
        "adafactor": ({"type": "adafactor", "weight_decay": 0.01, "learning_rate": 0.1}, adafactor),
        "adafactor, limited updates": ({"type": "adafactor", "max_update_rms": 1.5, "beta2_decay": -0.6, "learning_rate": 0.05},
                                       lambda p: t.Adafactor(p, 0.05, beta2_decay=-0.6, eps=(ADAFACTOR_EPS, 1e-3), d=1.5)),
        "adafactor, clipped by parameter": ({"type": "adafactor", "clip_parameter_norm": 0.02, "learning_rate": 0.1}, lambda p: t.Adafactor(p, 0.1, eps=(ADAFACTOR_EPS, 1e-3))),
        "adamw, clipped by parameter": ({"type": "adamw", "clip_parameter_norm": 0.02}, lambda p: t.AdamW(p, 0.003, weight_decay=0)),
        "adamw, clipped by value": ({"type": "adamw", "clip_value": 0.02}, lambda p: t.AdamW(p, 0.003, weight_decay=0)),
    }
    for name, (fields, make) in cases.items():
        start = mlp_weights()
        clip = None
        if "clip_value" in fields:
            clip = lambda p, most=fields["clip_value"]: torch.nn.utils.clip_grad_value_(p, most)  # noqa: E731
        if "clip_parameter_norm" in fields:
            clip = lambda p, most=fields["clip_parameter_norm"]: [torch.nn.utils.clip_grad_norm_(one, most) for one in p]  # noqa: E731
        whole = fields["type"] in ("lamb", "lars", "muon") or "clip_parameter_norm" in fields
        weights, losses = reference(mlp, mse, start, data, label, 100, make, clip)
        # PyTorch in f32 is up to 1.4e-6 away from PyTorch in float64 (adamw), which is what f32 weights cost.
        single = reference(mlp, mse, {key: value.float() for key, value in start.items()}, data.astype(np.float32), label.astype(np.float32), 100, make, clip)[0]
        cost = max(float((single[key] - value).detach().abs().max()) / max(1.0, float(value.detach().abs().max())) for key, value in weights.items())
        if fields["type"] == "adafactor":
            # A step is relative to the weights, so their roundings grow: PyTorch in f32 is one sample of that, and others are twice as far away.
            cost = max(cost, *(rounded_cost(weights, start, data, label, make, key, clip) for key in range(4)))
        tolerance = max(1e-6, 2 * cost if fields["type"] != "adafactor" else 1.5 * cost)
        plans = PLANS | CUTS if fields["type"] == "adafactor" and not whole else PLANS
        for plan, changes in plans.items():
            if whole and plan == "sharded, level 3":
                continue  # an error of `check`
            trained = Trained(MLP, "mse", {"learning_rate": 0.003, **fields}, start, data, label, 100, changes)
            compare(f"{name}, {plan} (PyTorch in f32: {cost:.2g})", trained, weights, losses, tolerance)


def averages():
    """Validations and exports use the average of the weights; the training continues with the weights."""
    mse = torch.nn.functional.mse_loss
    data, label = data_of(11)
    steps = 30

    def sgd(p):
        return torch.optim.SGD(p, 0.05, momentum=0.9)

    def ema(decay, warmup=False, after=0, every=1):
        def rate(step):  # of update `step`, from 1
            if step <= after + 1:
                return 1.0
            n, rest = divmod(step - 1 - after, every)
            return 0.0 if rest else 1 - (min(decay, (1 + n) / (10 + n)) if warmup else decay)

        return rate

    def swa(after, every):
        def rate(step):
            n, rest = divmod(max(0, step - 1 - after), every)
            return 0.0 if rest else 1 / (n + 1)

        return rate

    cases = {"ema": ({"decay": 0.9}, ema(0.9)), "ema, warmup": ({"decay": 0.99, "warmup": True}, ema(0.99, True)),
             "ema, later": ({"decay": 0.8, "start": 10, "every": 3}, ema(0.8, False, 10, 3)), "swa": ({"type": "swa", "start": 5, "every": 4}, swa(5, 4)),
             "schedule_free_adamw": (None, None)}
    for name, (fields, rate) in cases.items():
        start = mlp_weights()
        weights, average = {key: value.clone().requires_grad_() for key, value in start.items()}, {}
        optimizer = sgd(list(weights.values())) if rate else PerParameter(list(weights.values()), schedule_free_adamw())
        expected = {}
        for step in range(1, steps + 1):
            rows = slice((step - 1) * BATCH % SAMPLES, (step - 1) * BATCH % SAMPLES + BATCH)
            optimizer.zero_grad()
            mse(mlp(weights, torch.as_tensor(data[rows])), torch.as_tensor(label[rows])).backward()
            optimizer.step()
            for key, value in weights.items():
                if rate:
                    old = average.get(key, value.detach())
                    average[key] = old + rate(step) * (value.detach() - old)
                else:
                    average[key] = optimizer.state[value]["x"].clone()
            if step % 10 == 0:
                expected[step] = float(mse(mlp(average, torch.as_tensor(data)), torch.as_tensor(label)))
        spec = {"type": "sgd", "momentum": 0.9, "learning_rate": 0.05, "average": fields} if rate else \
            {"type": "schedule_free_adamw", "weight_decay": 0.01, "learning_rate": 0.003}
        for plan, changes in PLANS.items():
            trained = Trained(MLP, "mse", spec, start, data, label, steps, changes, validates=10)
            trained.losses = []
            compare(f"{name}, {plan}", trained, weights, [], 2e-6)
            found = {row["run_step"]: row["loss"] for row in trained.validations}
            assert found.keys() == expected.keys(), (found, expected)
            worst = max(abs(found[step] - expected[step]) for step in expected)
            trained.weights = trained.exported
            compare(f"{name}, {plan}: validations differ by {worst:.2g}; the export", trained, average, [], 2e-6)
            assert worst < limit(2e-6), (name, plan, found, expected)


def schedules():
    data, label = data_of(6)
    start, steps = mlp_weights(), 40
    s = torch.optim.lr_scheduler

    def rates(make, base=0.01):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], base)
        scheduler, values = make(optimizer), []
        for _ in range(steps):
            values.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        return values

    def rates_of_segments(milestones, make):
        return rates(lambda o: s.SequentialLR(o, make(o), milestones))

    cases = {
        "linear": ({"type": "linear", "min": 0.001}, rates(lambda o: s.LinearLR(o, 1.0, 0.1, steps))),
        "linear to 0 before the end": ({"type": "linear", "total_steps": 30}, rates(lambda o: s.PolynomialLR(o, 30, 1.0))),
        "polynomial": ({"type": "polynomial", "power": 2}, rates(lambda o: s.PolynomialLR(o, steps, 2.0))),
        "exponential": ({"type": "exponential", "gamma": 0.9, "decay_steps": 1}, rates(lambda o: s.ExponentialLR(o, 0.9))),
        "multi_step": ({"type": "multi_step", "milestones": [7, 20, 31], "gamma": 0.3}, rates(lambda o: s.MultiStepLR(o, [7, 20, 31], 0.3))),
        "cosine": ({"type": "cosine", "min": 0.002}, rates(lambda o: s.CosineAnnealingLR(o, steps, 0.002))),
        "cosine_restarts": ({"type": "cosine_restarts", "restart_steps": 5, "restart_factor": 2, "min": 0.001},
                            rates(lambda o: s.CosineAnnealingWarmRestarts(o, 5, 2, 0.001))),
        "cosine_restarts of equal periods": ({"type": "cosine_restarts", "restart_steps": 7}, rates(lambda o: s.CosineAnnealingWarmRestarts(o, 7))),
        "one_cycle": ({"type": "one_cycle"}, rates(lambda o: s.OneCycleLR(o, 0.01, total_steps=steps))),
        "one_cycle, other factors": ({"type": "one_cycle", "pct_start": 0.5, "div_factor": 10, "final_div_factor": 100},
                                     rates(lambda o: s.OneCycleLR(o, 0.01, total_steps=steps, pct_start=0.5, div_factor=10, final_div_factor=100))),
        "inverse_sqrt": ({"type": "inverse_sqrt", "warmup_steps": 8},
                         [0.01 * (t + 1) / 8 if t < 8 else 0.01 / math.sqrt(1 + (t - 8) / 8) for t in range(steps)]),
        "wsd": ({"type": "wsd", "warmup_steps": 4, "decay_steps": 10, "min": 0.001},
                [0.01 * (t + 1) / 4 if t < 4 else 0.01 if t <= 30 else 0.01 - 0.009 * (t - 30) / 10 for t in range(steps)]),
        "wsd, sqrt": ({"type": "wsd", "decay_steps": 10, "decay_shape": "sqrt"},
                      [0.01 if t <= 30 else 0.01 * (1 - math.sqrt((t - 30) / 10)) for t in range(steps)]),
        "segments": ({"type": "segments", "segments": [{"steps": 8, "type": "linear", "base": 0.002, "min": 0.01}, {"steps": 20, "type": "exponential",
                                                        "gamma": 0.9, "decay_steps": 1}, {"type": "cosine", "base": 0.003, "min": 0.001}]},
                     rates_of_segments([8, 28], lambda o: [s.LinearLR(o, 0.2, 1.0, 8), s.ExponentialLR(o, 0.9),
                                                           s.LambdaLR(o, lambda t: 0.1 + 0.1 * (1 + math.cos(math.pi * t / 12)))])),
        "piecewise": ({"type": "piecewise", "points": [5, 10, 30], "rates": [0.001, 0.02, 0.0]},
                      [0.001 if t < 5 else np.interp(t, [5, 10, 30], [0.001, 0.02, 0.0]) for t in range(steps)]),
    }
    for name, (fields, expected) in cases.items():
        rate = fields if name == "piecewise" else {**fields, "base": 0.01}
        trained = Trained(MLP, "mse", {"type": "sgd", "learning_rate": rate}, start, data, label, steps)
        ours = [row["learning_rate"] for row in trained.rows]
        worst = max(abs(a - b) for a, b in zip(ours, expected, strict=True))
        print(f"{name}: rates differ by {worst:.2g}", flush=True)
        assert worst < 1e-8, (name, ours, expected)


def losses():
    f = torch.nn.functional
    data, label = data_of(7)
    share, counts = 1 / (1 + np.exp(-label)), np.floor(np.abs(label) * 2)
    classes = np.random.default_rng(8).integers(0, OUT, SAMPLES)

    def focal(p, l, alpha=0.25, gamma=2.0):
        s, ce = torch.sigmoid(p), f.binary_cross_entropy_with_logits(p, l, reduction="none")
        value = ce * (1 - (s * l + (1 - s) * (1 - l))) ** gamma
        return (value * (alpha * l + (1 - alpha) * (1 - l)) if alpha >= 0 else value).mean()

    cases = {
        "huber": ({"type": "huber", "delta": 0.5}, label, lambda p, l: f.huber_loss(p, l, delta=0.5)),
        "quantile": ({"type": "quantile", "q": 0.9}, label, lambda p, l: torch.maximum(0.9 * (l - p), 0.1 * (p - l)).mean()),
        "log_cosh": ("log_cosh", label, lambda p, l: torch.log(torch.cosh(p - l)).mean()),
        "poisson": ("poisson", counts, lambda p, l: f.poisson_nll_loss(p, l, log_input=True)),
        "focal": ("focal", share, focal),
        "focal without weights": ({"type": "focal", "alpha": -1, "gamma": 1.5}, share, lambda p, l: focal(p, l, -1, 1.5)),
        "binary_cross_entropy, pos_weight": ({"type": "binary_cross_entropy", "pos_weight": 3}, share,
                                             lambda p, l: f.binary_cross_entropy_with_logits(p, l, pos_weight=torch.tensor(3.0))),
        "binary_cross_entropy, label_smoothing": ({"type": "binary_cross_entropy", "label_smoothing": 0.2}, share,
                                                  lambda p, l: f.binary_cross_entropy_with_logits(p, 0.8 * l + 0.1)),
        "kl_div": ("kl_div", share, lambda p, l: f.kl_div(p, l)),
        "hinge": ("hinge", np.sign(label), lambda p, l: torch.clamp(1 - l * p, min=0).mean()),
        "softmax_cross_entropy, class_weights": ({"type": "softmax_cross_entropy", "class_weights": WEIGHTS, "label_smoothing": 0.1}, classes,
                                                 lambda p, l: f.cross_entropy(p, l, torch.tensor(WEIGHTS), reduction="sum", label_smoothing=0.1) / len(l)),
        "mse, sum": ({"type": "mse", "reduction": "sum"}, label, lambda p, l: f.mse_loss(p, l, reduction="sum")),
        "softmax_cross_entropy, sum": ({"type": "softmax_cross_entropy", "reduction": "sum", "label_smoothing": 0.1}, classes,
                                       lambda p, l: f.cross_entropy(p, l, reduction="sum", label_smoothing=0.1)),
    }
    for name, (fields, labels, loss) in cases.items():
        start, rate = mlp_weights(), 0.0005 if "sum" in name else 0.02
        weights, values = reference(mlp, loss, start, data, labels, 30, lambda p, rate=rate: torch.optim.SGD(p, rate, momentum=0.9))
        for plan in ("one rank", "data parallel", "pipeline"):
            trained = Trained(MLP, fields, {"type": "sgd", "learning_rate": rate, "momentum": 0.9}, start, data, labels, 30, PLANS[plan])
            compare(f"{name}, {plan}", trained, weights, values, limit(5e-6))


def layers():
    f = torch.nn.functional
    mse = f.mse_loss

    def train(name, network, start, forward, shape, out, plans=("one rank", "data parallel")):
        data, label = data_of(9, shape, out)
        weights, values = reference(forward, mse, start, data, label, 20, lambda p: torch.optim.SGD(p, 0.05))
        for plan in plans:
            trained = Trained(network, "mse", {"type": "sgd", "learning_rate": 0.05}, start, data, label, 20, PLANS[plan])
            compare(f"{name}, {plan}", trained, weights, values, limit(5e-6))

    functions = {"elu": ({"alpha": 0.7}, lambda x: f.elu(x, 0.7)), "selu": ({}, f.selu), "mish": ({}, f.mish), "hardswish": ({}, f.hardswish),
                 "hardsigmoid": ({}, f.hardsigmoid), "softsign": ({}, f.softsign), "log_sigmoid": ({}, f.logsigmoid), "sin": ({}, torch.sin),
                 "cos": ({}, torch.cos)}
    for name, (fields, function) in functions.items():
        network = [MLP[0], {"name": "act", "type": name, **fields}, MLP[2]]
        train(name, network, mlp_weights(), lambda w, x, g=function: g(x @ w["layer1.weight"].T + w["layer1.bias"]) @ w["layer2.weight"].T + w["layer2.bias"],
              (IN,), (OUT,))

    dense = [MLP[0], {"name": "second", "type": "dense", "units": HIDDEN, "inputs": "data"}]
    more = {**mlp_weights(), "second.weight": rounded(torch.randn(HIDDEN, IN) * 0.4), "second.bias": rounded(torch.randn(HIDDEN) * 0.1)}

    def both(w, x):
        return x @ w["layer1.weight"].T + w["layer1.bias"], x @ w["second.weight"].T + w["second.bias"]

    for name, function in (("maximum", torch.maximum), ("minimum", torch.minimum)):
        network = [*dense, {"name": "chosen", "type": name, "inputs": ["layer1", "second"]}, MLP[2]]
        train(name, network, more, lambda w, x, g=function: g(*both(w, x)) @ w["layer2.weight"].T + w["layer2.bias"], (IN,), (OUT,))

    start = {**mlp_weights(), "act.weight": rounded(torch.full((HIDDEN,), 0.3))}
    network = [MLP[0], {"name": "act", "type": "prelu", "per_channel": True}, MLP[2]]
    train("prelu", network, start, lambda w, x: f.prelu(x @ w["layer1.weight"].T + w["layer1.bias"], w["act.weight"]) @ w["layer2.weight"].T + w["layer2.bias"],
          (IN,), (OUT,))

    # [n, 3, 8, 6] -> instance_norm -> conv -> reduce_min over pixels
    start = {"up.weight": rounded(torch.randn(3, 2, 3, 2) * 0.3), "up.bias": rounded(torch.randn(2) * 0.1), "down.weight": rounded(torch.randn(4, 2, 3, 3) * 0.3),
             "down.bias": rounded(torch.randn(4) * 0.1)}
    network = [{"name": "up", "type": "conv_transpose2d", "channels": 2, "kernel": [3, 2], "stride": 2, "padding": [1, 0], "output_padding": [1, 0]},
               {"name": "wide", "type": "upsample", "factor": [1, 2]}, {"name": "norm", "type": "instance_norm"},
               {"name": "down", "type": "conv2d", "channels": 4, "kernel": 3}, {"name": "least", "type": "reduce_min", "dims": [2, 3]}]

    def images(w, x):
        y = f.conv_transpose2d(x, w["up.weight"], w["up.bias"], stride=2, padding=(1, 0), output_padding=(1, 0))
        y = f.instance_norm(f.interpolate(y, scale_factor=(1, 2), mode="nearest"))
        return f.conv2d(y, w["down.weight"], w["down.bias"]).amin((2, 3))

    train("images", network, start, images, (3, 4, 3), (4,))

    start = {"conv.weight": rounded(torch.randn(6, 3, 1, 3) * 0.4), "conv.bias": rounded(torch.randn(6) * 0.1), "out.weight": rounded(torch.randn(OUT, 24) * 0.2),
             "out.bias": rounded(torch.randn(OUT) * 0.1)}
    network = [{"name": "conv", "type": "conv1d", "channels": 6, "kernel": 3, "stride": 2, "padding": 1}, {"name": "flat", "type": "flatten"},
               {"name": "out", "type": "dense", "units": OUT}]
    train("conv1d", network, start, lambda w, x: f.conv1d(x, w["conv.weight"][:, :, 0], w["conv.bias"], stride=2, padding=1).flatten(1) @ w["out.weight"].T
          + w["out.bias"], (3, 8), (OUT,))


def recurrent():
    """lstm and gru, forwards and backwards in time, against torch.nn with one bias set to 0."""
    mse = torch.nn.functional.mse_loss
    steps, units = 6, 5
    data, label = data_of(12, (steps, IN), (steps, OUT))
    for kind, reverse in (("lstm", False), ("lstm", True), ("gru", False), ("gru", True)):
        cell = (torch.nn.LSTM if kind == "lstm" else torch.nn.GRU)(IN, units, batch_first=True)
        start = {"rnn.weight": rounded(cell.weight_ih_l0.detach()), "rnn.bias": rounded(cell.bias_ih_l0.detach()),
                 "rnn.recurrent_weight": rounded(cell.weight_hh_l0.detach()), "out.weight": rounded(torch.randn(OUT, units) * 0.4),
                 "out.bias": rounded(torch.randn(OUT) * 0.1)}
        if kind == "gru":
            start["rnn.recurrent_bias"] = rounded(torch.randn(units) * 0.3)

        def forward(w, x, kind=kind, reverse=reverse):
            bias_hh = torch.zeros_like(w["rnn.bias"])
            if kind == "gru":
                bias_hh = torch.cat([bias_hh[:2 * units], w["rnn.recurrent_bias"]])
            x = x.flip(1) if reverse else x
            flat = [w["rnn.weight"], w["rnn.recurrent_weight"], w["rnn.bias"], bias_hh]
            zero = torch.zeros(1, len(x), units)
            if kind == "lstm":
                y = torch.lstm(x, (zero, zero), flat, True, 1, 0.0, False, False, True)[0]
            else:
                y = torch.gru(x, zero, flat, True, 1, 0.0, False, False, True)[0]
            return (y.flip(1) if reverse else y) @ w["out.weight"].T + w["out.bias"]

        network = [{"name": "rnn", "type": kind, "units": units, "reverse": reverse}, {"name": "out", "type": "dense", "units": OUT}]
        weights, values = reference(forward, mse, start, data, label, 20, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))
        plans = {**PLANS, "pipeline": {"launch.ranks": 2, "parallel": {"mode": "semi_auto_parallel", "stages": 2, "micro_batches": 2,
                                                                       "stage_config": {"rnn": 0, "out": 1}}}}
        for plan, changes in plans.items():
            trained = Trained(network, "mse", {"type": "sgd", "learning_rate": 0.1, "momentum": 0.9}, start, data, label, 20, changes)
            compare(f"{kind}{', reverse' if reverse else ''}, {plan}", trained, weights, values, limit(5e-6))


def skips():
    """Every fourth batch has a sample whose gradients overflow f32: the steps in between continue as if it was not there."""
    data, label = data_of(10)
    start, steps = mlp_weights(), 24
    network = [MLP[0], {"name": "act", "type": "relu"}, MLP[2]]
    weights = {name: value.clone().requires_grad_() for name, value in start.items()}
    optimizer = torch.optim.SGD(list(weights.values()), 0.02, momentum=0.9)
    for step in range(steps):
        rows = slice(step * BATCH % SAMPLES, step * BATCH % SAMPLES + BATCH)
        if step % 4 == 1:
            continue
        optimizer.zero_grad()
        hidden = torch.relu(torch.as_tensor(data[rows]) @ weights["layer1.weight"].T + weights["layer1.bias"])
        torch.nn.functional.mse_loss(hidden @ weights["layer2.weight"].T + weights["layer2.bias"], torch.as_tensor(label[rows])).backward()
        optimizer.step()
    data[BATCH + 3] = 1e30
    for plan, changes in PLANS.items():
        trained = Trained(network, "mse", {"type": "sgd", "learning_rate": 0.02, "momentum": 0.9}, start, data, label, steps, changes,
                          train={"on_nan": "skip"})
        assert [row["skipped"] for row in trained.rows] == [float(step % 4 == 1) for step in range(steps)], trained.rows
        trained.losses = []
        compare(f"skipped steps, {plan}", trained, weights, [], limit(5e-6))


if __name__ == "__main__":
    groups = {"optimizers": optimizers, "averages": averages, "schedules": schedules, "losses": losses, "layers": layers, "recurrent": recurrent, "skips": skips}
    for group in sys.argv[2:] or groups:
        groups[group]()
