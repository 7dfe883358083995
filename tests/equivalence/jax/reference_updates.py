"""Optimizers and learning-rate schedules of the reference in JAX (reference.py), as PyTorch defines them."""

import fnmatch
import math

import jax.numpy as jnp


def learning_rate(rate, step, steps):
    warmup, since = rate["warmup_steps"], step - rate["warmup_steps"]
    if since < 0:
        return rate["base"] * (step + 1) / warmup
    if rate["type"] == "step":
        return rate["base"] * rate["gamma"] ** (since // rate["step_size"])
    if rate["type"] == "cosine":
        whole = (rate["total_steps"] or steps) - warmup
        done = min(1, since / whole) if whole > 0 else 1
        return rate["min"] + (rate["base"] - rate["min"]) * (1 + math.cos(math.pi * done)) / 2
    return rate["base"]


def settings_of(o, name):
    """The optimizer's settings of a parameter, and the factor of its learning rate: those of the first group that names it."""
    for group in o["groups"]:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in group["patterns"]):
            return {**o, **group["settings"]}, group["learning_rate_scale"]
    return o, 1


def updated(o, name, w, g, slots, rate, step):
    """A parameter after a step, and the optimizer's state of it."""
    o, scale = settings_of(o, name)
    rate = rate * scale
    decoupled = o["type"] == "adamw"
    if not decoupled:
        g = g + o["weight_decay"] * w
    if o["type"] == "sgd":
        momentum = o["momentum"] * slots[0] + g
        return w - rate * (g + o["momentum"] * momentum if o["nesterov"] else momentum), (momentum, slots[1])
    if o["type"] == "rmsprop":  # without momentum, not centered
        square = o["alpha"] * slots[0] + (1 - o["alpha"]) * g * g
        return w - rate * g / (jnp.sqrt(square) + o["eps"]), (square, slots[1])
    m = o["betas"][0] * slots[0] + (1 - o["betas"][0]) * g
    v = o["betas"][1] * slots[1] + (1 - o["betas"][1]) * g * g
    m_hat, v_hat = m / (1 - o["betas"][0] ** (step + 1.0)), v / (1 - o["betas"][1] ** (step + 1.0))
    kept = w * (1 - rate * o["weight_decay"]) if decoupled else w
    return kept - rate * m_hat / (jnp.sqrt(v_hat) + o["eps"]), (m, v)
