"""Optimizers that PyTorch does not have, or has with rounding, written from their papers: the references of training.py."""

import numpy as np
import torch


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al. (2023), Symbolic Discovery of Optimization Algorithms."""

    def __init__(self, parameters, lr, betas, weight_decay):
        super().__init__(parameters, {})
        self.lr, self.betas, self.decay, self.m = lr, betas, weight_decay, {}

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.m.setdefault(p, torch.zeros_like(p))
                change = (self.betas[0] * m + (1 - self.betas[0]) * p.grad).sign()
                p.mul_(1 - self.lr * self.decay).sub_(self.lr * change)
                m.mul_(self.betas[1]).add_((1 - self.betas[1]) * p.grad)


class PerParameter(torch.optim.Optimizer):
    """An optimizer given by the change of one parameter: change(step from 1, parameter, gradient, state)."""

    def __init__(self, parameters, change):
        super().__init__(parameters, {})
        self.change, self.steps = change, 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                self.change(self.steps, p, p.grad, self.state[p])


def lamb(lr=0.003, betas=(0.9, 0.999), eps=1e-6, decay=0.01):
    """You et al. (2020), Large Batch Optimization for Deep Learning."""

    def change(t, p, g, state):
        m, v = state.setdefault("m", torch.zeros_like(p)), state.setdefault("v", torch.zeros_like(p))
        m.mul_(betas[0]).add_((1 - betas[0]) * g)
        v.mul_(betas[1]).add_((1 - betas[1]) * g * g)
        u = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps) + decay * p
        p.sub_(lr * (p.norm() / u.norm() if p.norm() > 0 and u.norm() > 0 else 1) * u)

    return change


def lars(lr=0.3, momentum=0.9, decay=0.01, trust=0.02):
    """You et al. (2017), Large Batch Training of Convolutional Networks; the ratio is 1 if a norm is 0, as in optax."""

    def change(_, p, g, state):
        buffer = state.setdefault("momentum", torch.zeros_like(p))
        ratio = trust * p.norm() / (g.norm() + decay * p.norm()) if p.norm() > 0 and g.norm() > 0 else 1
        buffer.mul_(momentum).add_(ratio * (g + decay * p))
        p.sub_(lr * buffer)

    return change


def muon(lr=0.003, momentum=0.95, decay=0.1, eps=1e-8):
    """torch.optim.Muon without the rounding to bf16, with match_rms_adamw; AdamW for vectors."""

    def change(t, p, g, state):
        if p.ndim < 2:
            m, v = state.setdefault("m", torch.zeros_like(p)), state.setdefault("v", torch.zeros_like(p))
            m.mul_(0.9).add_(0.1 * g)
            v.mul_(0.999).add_(0.001 * g * g)
            p.mul_(1 - lr * decay).sub_(lr * m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + eps))
            return
        buffer = state.setdefault("momentum", torch.zeros_like(p))
        buffer.lerp_(g, 1 - momentum)
        x = g.lerp(buffer, momentum)
        x = x.T if p.shape[0] > p.shape[1] else x
        x = x / x.norm().clamp(min=1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        x = x.T if p.shape[0] > p.shape[1] else x
        p.mul_(1 - lr * decay).sub_(lr * 0.2 * max(p.shape) ** 0.5 * x)

    return change


def schedule_free_adamw(lr=0.003, betas=(0.9, 0.999), eps=1e-8, decay=0.01):
    """Defazio et al. (2024), The Road Less Scheduled, as in facebookresearch/schedule_free with a constant rate; state["x"] is evaluated."""

    def change(t, y, g, state):
        z, v = state.setdefault("z", y.clone()), state.setdefault("v", torch.zeros_like(y))
        v.mul_(betas[1]).add_((1 - betas[1]) * g * g)
        d = g / ((v / (1 - betas[1] ** t)).sqrt() + eps) + decay * y
        y.lerp_(z, 1 / t).add_(lr * (betas[0] * (1 - 1 / t) - 1) * d)
        z.sub_(lr * d)
        state["x"] = (y - (1 - betas[0]) * z) / betas[0]

    return change


ADAFACTOR_EPS = float(np.finfo(np.float32).eps)  # the default of PyTorch for f32 weights


def adafactor(p):
    return torch.optim.Adafactor(p, 0.1, eps=(ADAFACTOR_EPS, 1e-3), weight_decay=0.01)
