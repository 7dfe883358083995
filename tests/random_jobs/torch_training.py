"""Optimizers, their clipping, and schedules of random networks (torch_networks.py): the fields of the job, and the same in PyTorch."""

import math
import pathlib
import sys

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "equivalence/torch"))
from reference_optimizers import adafactor, lamb, lars, muon, schedule_free_adamw  # noqa: E402


class Rated(torch.optim.Optimizer):
    """An optimizer of reference_optimizers.py whose rate changes. change(rate) returns the change of one parameter."""

    def __init__(self, parameters, rate, change):
        super().__init__(parameters, {"lr": rate})
        self.change, self.steps = change, 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for group in self.param_groups:
            change = self.change(group["lr"])
            for p in group["params"]:
                change(self.steps, p, p.grad, self.state[p])


def has_only_matrices(net):
    """muon updates matrices; PyTorch has no reference for weights of other forms."""
    kinds = {layer["name"]: layer["type"] for layer in net.layers}
    return all(value.ndim < 2 or kinds.get(name.rsplit(".", 1)[0]) == "dense" for name, value in net.start.items())


def draw_optimizer(rng, net):
    """(fields, make(parameters, rate), the rate)"""
    o = torch.optim
    choices = [
        ({"type": "sgd", "momentum": 0.9}, lambda p, r: o.SGD(p, r, momentum=0.9), 0.02),
        ({"type": "sgd", "momentum": 0.5, "nesterov": True, "weight_decay": 0.01}, lambda p, r: o.SGD(p, r, momentum=0.5, nesterov=True, weight_decay=0.01), 0.05),
        ({"type": "sgd"}, o.SGD, 0.05),
        ({"type": "adam", "eps": 1e-3}, lambda p, r: o.Adam(p, r, eps=1e-3), 0.01),
        ({"type": "adamw", "eps": 1e-3, "weight_decay": 0.1, "amsgrad": True}, lambda p, r: o.AdamW(p, r, eps=1e-3, weight_decay=0.1, amsgrad=True), 0.01),
        ({"type": "nadam", "eps": 1e-3}, lambda p, r: o.NAdam(p, r, eps=1e-3), 0.01),
        ({"type": "rmsprop", "eps": 1e-2, "momentum": 0.5}, lambda p, r: o.RMSprop(p, r, eps=1e-2, momentum=0.5), 0.003),
        ({"type": "rmsprop", "eps": 1e-2, "centered": True}, lambda p, r: o.RMSprop(p, r, eps=1e-2, centered=True), 0.003),
        ({"type": "adagrad", "eps": 1e-3}, lambda p, r: o.Adagrad(p, r, eps=1e-3), 0.02),
        ({"type": "lamb", "eps": 1e-3, "weight_decay": 0.01}, lambda p, r: Rated(p, r, lambda rate: lamb(rate, eps=1e-3)), 0.01),
        ({"type": "lars", "weight_decay": 0.01, "trust_coefficient": 0.02}, lambda p, r: Rated(p, r, lars), 0.3),
        ({"type": "adafactor", "weight_decay": 0.01}, adafactor_at, 0.05),
    ]
    if has_only_matrices(net):
        choices += [({"type": "muon", "weight_decay": 0.1, "eps": 1e-3}, lambda p, r: Rated(p, r, lambda rate: muon(rate, eps=1e-3)), 0.01)]
    fields, make, rate = rng.choice(choices)
    clip = rng.choice([None, None, None, "clip_norm", "clip_value", "clip_parameter_norm"])
    return {**fields, **({clip: {"clip_norm": 0.5, "clip_value": 0.05, "clip_parameter_norm": 0.1}[clip]} if clip else {})}, make, rate


def adafactor_at(parameters, rate):
    optimizer = adafactor(parameters)
    optimizer.param_groups[0]["lr"] = rate
    return optimizer


def clip(fields, parameters):
    """Clips the gradients as the job's optimizer does."""
    utils = torch.nn.utils
    if "clip_norm" in fields:
        utils.clip_grad_norm_(parameters, fields["clip_norm"])
    if "clip_value" in fields:
        utils.clip_grad_value_(parameters, fields["clip_value"])
    for parameter in parameters if "clip_parameter_norm" in fields else []:
        utils.clip_grad_norm_(parameter, fields["clip_parameter_norm"])


def one_cycle(base, steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], base)
    scheduler, rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, base, total_steps=steps), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def draw_schedule(rng, base, steps):
    """The value of learning_rate, and the rate of each step."""
    t = range(steps)
    falls = lambda k, n: base / 5 + 0.8 * base * (1 + math.cos(math.pi * k / n)) / 2  # noqa: E731
    return rng.choice([
        (base, [base for _ in t]),
        ({"type": "step", "base": base, "step_size": 4, "gamma": 0.5}, [base * 0.5 ** (k // 4) for k in t]),
        ({"type": "linear", "base": base, "min": base / 10}, [base - 0.9 * base * k / steps for k in t]),
        ({"type": "polynomial", "base": base, "power": 2, "min": base / 10}, [base / 10 + 0.9 * base * (1 - k / steps) ** 2 for k in t]),
        ({"type": "cosine", "base": base, "min": base / 5}, [falls(k, steps) for k in t]),
        ({"type": "cosine_restarts", "base": base, "min": base / 5, "restart_steps": 2, "restart_factor": 2}, [falls(*place) for place in [(0, 2), (1, 2), *((k, 4) for k in range(4)), *((k, 8) for k in range(steps - 6))]]),
        ({"type": "multi_step", "base": base, "milestones": [3, 7], "gamma": 0.5}, [base * 0.5 ** sum(k >= m for m in (3, 7)) for k in t]),
        ({"type": "exponential", "base": base, "gamma": 0.8, "decay_steps": 2}, [base * 0.8 ** (k / 2) for k in t]),
        ({"type": "inverse_sqrt", "base": base, "warmup_steps": 3}, [base * (k + 1) / 3 if k < 3 else base / math.sqrt(1 + (k - 3) / 3) for k in t]),
        ({"type": "wsd", "base": base, "warmup_steps": 2, "decay_steps": 4, "min": base / 10},
         [base * (k + 1) / 2 if k < 2 else base - 0.9 * base * max(0, k - (steps - 4)) / 4 for k in t]),
        ({"type": "one_cycle", "base": base}, one_cycle(base, steps)),
        ({"type": "piecewise", "points": [2, 6], "rates": [base / 10, base]}, [float(np.interp(k, [2, 6], [base / 10, base])) for k in t]),
        ({"type": "segments", "base": base, "segments": [{"steps": 4, "type": "constant", "base": base / 2}, {"type": "exponential", "gamma": 0.9, "decay_steps": 1}]},
         [base / 2 if k < 4 else base * 0.9 ** (k - 4) for k in t]),
    ])


def draw_schedule_free(rng):
    """schedule_free_adamw: its reference has a constant rate."""
    return {"type": "schedule_free_adamw", "eps": 1e-3, "weight_decay": 0.01}, lambda p, r: Rated(p, r, lambda rate: schedule_free_adamw(rate, eps=1e-3)), 0.01
