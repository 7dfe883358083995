#!/usr/bin/env python3
"""fp8.py TRAINCTL: a network under precision: fp8 trains with each recipe as the same rounding in PyTorch, whose casts to 8 bits and bf16 are the
reference, under several plans, and not as another recipe.

Exits with 77 if PyTorch is missing."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import training  # noqa: E402
from training import Trained, rounded  # noqa: E402

import torch  # noqa: E402

training.BATCH = 64
SAMPLES, IN, HIDDEN, OUT, STEPS, HISTORY, RATE = 256, 160, 144, 16, 6, 2, 0.1
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
NETWORK = [{"name": "layer1", "type": "dense", "units": HIDDEN, "bias": False}, {"name": "act", "type": "relu"},
           {"name": "layer2", "type": "dense", "units": OUT, "bias": False}]
DATA = {"launch.ranks": 2, "parallel": {"mode": "data_parallel"}}
PLANS = {"one rank": training.ONE, "data parallel": DATA,
         "rows cut": {"launch.ranks": 3, "parallel": {"mode": "semi_auto_parallel", "strategies": {"layer1": [[1, 1], [3, 1]]}}},
         "pipeline": {"launch.ranks": 2, "parallel": {"mode": "semi_auto_parallel", "stages": 2, "stage_config": {"layer1": 0, "act": 0, "layer2": 1}}}}


def bf16(x):
    return x.to(torch.float32).to(torch.bfloat16).to(torch.float32)


def cast(x, scale, dtype):
    """The numbers that x becomes in 8 bits with a scale, in f32."""
    limit = LARGEST[dtype]
    return (x * scale).clamp(-limit, limit).to(dtype).to(torch.float32) * (1 / scale)


class Recipe:
    def __init__(self, name):
        self.name, self.history, self.scales = name, {}, {}

    def blocks(self, x, height):
        """One scale for each `height` rows and 128 columns: the least power of two with which no number exceeds 448."""
        out = torch.empty_like(x)
        for r in range(0, x.shape[0], height):
            for c in range(0, x.shape[1], 128):
                part = x[r:r + height, c:c + 128]
                scale = torch.tensor(2.0**-118)
                while part.abs().max() / scale > 448:
                    scale = scale * 2
                out[r:r + height, c:c + 128] = cast(part, 1 / scale, torch.float8_e4m3fn)
        return out

    def __call__(self, key, x, is_gradient=False, is_weight=False):
        """x as it is read along its rows, and along its columns."""
        if self.name == "block":
            height = 128 if is_weight else 1
            return self.blocks(x, height), self.blocks(x.T.contiguous(), height).T
        dtype = torch.float8_e5m2 if is_gradient else torch.float8_e4m3fn
        scale = torch.tensor(LARGEST[dtype]) / x.abs().max()  # a number / a tensor is its reciprocal times the number
        if self.name == "delayed":
            self.history.setdefault(key, []).append(x.abs().max())
            scale = self.scales.get(key, torch.tensor(1.0))
            self.scales[key] = torch.tensor(LARGEST[dtype]) / max(self.history[key][-HISTORY:])
        both = cast(x, scale, dtype)
        return both, both


def product(a, b):
    return (a.to(torch.float64) @ b.to(torch.float64)).to(torch.float32)


def oracle(name, start, data, label):
    recipe, losses = Recipe(name), []
    w1, w2 = (start[key].to(torch.float32) for key in ("layer1.weight", "layer2.weight"))
    for step in range(STEPS):
        rows = slice(step * training.BATCH % SAMPLES, step * training.BATCH % SAMPLES + training.BATCH)
        x, y = bf16(torch.as_tensor(data[rows])), torch.as_tensor(label[rows]).to(torch.float32)
        x_rows, x_columns = recipe("x1", x)
        w1_rows, _ = recipe("w1", bf16(w1), is_weight=True)
        z = bf16(product(x_rows, w1_rows.T))
        a = z.relu()
        a_rows, a_columns = recipe("x2", a)
        w2_rows, w2_columns = recipe("w2", bf16(w2), is_weight=True)
        p = bf16(product(a_rows, w2_rows.T))
        losses.append(float(((p - y).to(torch.float64)**2).mean()))
        dp = bf16((p - y) * (2 / p.numel()))
        dp_rows, dp_columns = recipe("dy2", dp, is_gradient=True)
        dz = bf16(product(dp_rows, w2_columns)) * (a > 0)
        _, dz_columns = recipe("dy1", dz, is_gradient=True)
        w1 = w1 - RATE * product(dz_columns.T, x_columns)
        w2 = w2 - RATE * product(dp_columns.T, a_columns)
    return losses


def main():
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float32)
    data, label = rounded(torch.randn(SAMPLES, IN)).numpy(), rounded(torch.randn(SAMPLES, OUT)).numpy()
    start = {"layer1.weight": rounded(torch.randn(HIDDEN, IN) * 0.1), "layer2.weight": rounded(torch.randn(OUT, HIDDEN) * 0.1)}
    expected = {name: oracle(name, start, data, label) for name in ("tensor", "delayed", "block")}
    for name, losses in expected.items():
        for plan, changes in PLANS.items():
            fp8 = {"recipe": name, "min_weight": 0, "layers": ["layer1", "layer2"]} | ({"amax_history_len": HISTORY} if name == "delayed" else {})
            run = Trained(NETWORK, "mse", {"type": "sgd", "learning_rate": RATE}, start, data, label, STEPS, changes, precision="fp8", fp8=fp8)
            off = {other: [abs(a - b) / b for a, b in zip(run.losses, expected[other], strict=True)] for other in expected}
            print(f"{name}, {plan}: the losses of 4 steps differ by {max(off[name][:4]):.2g}, those of all by {max(off[name]):.2g}; from other recipes by " +
                  ", ".join(f"{max(value[:4]):.2g}" for other, value in off.items() if other != name), flush=True)
            # A sum that is rounded to another bf16 number changes the largest magnitude, and so each rounding after it. Ranks that have some
            # rows add up partial sums in bf16, which one rank does not round.
            assert max(off[name]) < 1e-2, (run.losses, losses)
            if plan != "rows cut":
                assert max(off[name][:4]) < 1e-4, (run.losses, losses)
                assert all(max(value[:4]) > 5 * max(off[name][:4]) for other, value in off.items() if other != name), off


if __name__ == "__main__":
    main()
