#!/usr/bin/env python3
"""expert_products.py TRAINCTL [TOKENSxTOPxEXPERTSxFEATURESxHIDDEN …]: the kernels of a mixture of experts, forward and gradient, beside PyTorch.

In bf16 on a GPU, with swiglu and gradients of weights in f32. trainctl's kernels sort and gather random routes, apply the activation and the weights
and sum the rows. The peers: dense products alone with as many rows (cuBLAS), those with a compiled swiglu and its slope, and grouped_mm alone with equal
groups, whose gradients of weights are bf16. Ratio: the peer's time over trainctl's.

If bench_cuda_experts is beside trainctl, each grouped product alone is compared with the dense product of its size too."""

import argparse
import json
import math
import pathlib
import re
import subprocess

import torch
from attention import median_ms
from torch.nn import functional as F

SIZES = ["8192x8x64x2048x768", "8192x8x128x2048x768"]
TINY = ["64x2x4x64x32"]


def ours(a, tokens, top, experts, features, hidden):
    """Milliseconds: median, and the 10th and 90th percentile."""
    blocks = math.gcd(hidden, 64)
    block = hidden // blocks
    call = f"{tokens}x{features},{tokens}x{top},{tokens}x{top},{experts}x2x{hidden}x{features},{experts}x{features}x{hidden}"
    kept = f"{tokens}x{experts}x{blocks}x{math.ceil(2 * top * block / experts)}"
    attrs = f"block={block},capacity=1.0,experts={experts},function=swiglu"
    for op, shapes in (("experts", call), ("experts_grad", f"{tokens}x{features},{call},{kept}")):
        words = [a.trainctl, "bench", "op", op, "--shape", shapes, "--attrs", attrs, "--device", a.device, "--json", "--repeat", "12"]
        words += ["--dtype", "bf16" if a.device == "cuda" else "f32"]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        seconds = json.loads(done.stdout)["results"][0]["seconds"]
        yield [1e3 * seconds[name] for name in ("median", "p10", "p90")]


def wide(device):
    """Products of bf16 whose result is f32, on a GPU."""
    return (lambda a, b: torch.mm(a, b, out_dtype=torch.float32)) if device == "cuda" else torch.mm


@torch.compile
def swiglu(u):
    gate, up = u.chunk(2, -1)
    return F.silu(gate) * up


@torch.compile
def swiglu_slopes(u, da):
    gate, up = (part.float() for part in u.chunk(2, -1))
    s = gate.sigmoid()
    return torch.cat((da * up * s * (1 + gate * (1 - s)), da * gate * s), -1).to(u.dtype)


def products(a, rows, experts, features, hidden):
    """For each peer forward and backward: functions without arguments."""
    kind = dict(device=a.device, dtype=torch.bfloat16)
    x, u = torch.randn(rows, features, **kind), torch.randn(rows, 2 * hidden, **kind)
    act = torch.randn(rows, hidden, **kind)
    up, down = torch.randn(2 * hidden, features, **kind), torch.randn(features, hidden, **kind)
    ups, downs = up.expand(experts, -1, -1).contiguous(), down.expand(experts, -1, -1).contiguous()
    ends = (torch.arange(1, experts + 1, device=a.device) * rows // experts).to(torch.int32)
    grouped, mm = F.grouped_mm, wide(a.device)

    def gradient():
        du = swiglu_slopes(u, x @ down)
        return du @ up, mm(du.T, x), mm(x.T, act)

    return {
        "dense": (lambda: (x @ up.T, act @ down.T), lambda: (x @ down, u @ up, mm(u.T, x), mm(x.T, act))),
        "dense with swiglu": (lambda: swiglu(x @ up.T) @ down.T, gradient),
        "grouped_mm": (lambda: (grouped(x, ups.transpose(1, 2), offs=ends), grouped(act, downs.transpose(1, 2), offs=ends)),
                       lambda: (grouped(x, downs, offs=ends), grouped(u, ups, offs=ends), grouped(u.T, x, offs=ends), grouped(x.T, act, offs=ends))),
    }


def each_product(a, size):
    """Prints each grouped product of bench_cuda_experts beside the dense product (cuBLAS) of its size."""
    program = pathlib.Path(a.trainctl).with_name("bench_cuda_experts")
    if a.device != "cuda" or not program.exists():
        return
    tokens, top, _, features, hidden = map(int, size.split("x"))
    rows, kind = tokens * top, dict(device=a.device, dtype=torch.bfloat16)
    x, u, act = (torch.randn(rows, n, **kind) for n in (features, 2 * hidden, hidden))
    up, down, mm = torch.randn(2 * hidden, features, **kind), torch.randn(features, hidden, **kind), wide(a.device)
    dense = [lambda: x @ up.T, lambda: act @ down.T, lambda: x @ down, lambda: u @ up, lambda: mm(u.T, x), lambda: mm(x.T, act), lambda: u.T @ x, lambda: x.T @ act]
    lines = subprocess.run([program, size], check=True, capture_output=True, text=True).stdout.splitlines()[1:]
    total, total_dense = 0.0, 0.0
    for i, (line, call) in enumerate(zip(lines, dense, strict=True)):
        ms, peer = float(re.search(r"([0-9.]+) ms", line)[1]), median_ms(call, a.device, 12)
        print(f"{size} {line}; dense {peer:.3f} ms, {peer / ms:.2f}x", flush=True)
        if i < 6:  # gradients of weights in f32
            total, total_dense = total + ms, total_dense + peer
    print(f"{size} the first six {total:.3f} ms; dense {total_dense:.3f} ms, {total_dense / total:.2f}x", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl")
    parser.add_argument("sizes", nargs="*")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    a = parser.parse_args()
    for size in a.sizes or (SIZES if a.device == "cuda" else TINY):
        tokens, top, experts, features, hidden = map(int, size.split("x"))
        rows = tokens * top
        flops = 2 * rows * 3 * hidden * features
        peers = {name: [median_ms(call, a.device, 12) for call in calls] for name, calls in products(a, rows, experts, features, hidden).items()}
        for k, (ms, low, high) in enumerate(ours(a, tokens, top, experts, features, hidden)):
            print(f"{size} {('forward', 'gradient')[k]:8s} {ms:.3f} ms [{low:.3f} .. {high:.3f}], {flops * (k + 1) / ms / 1e9:.0f} TFLOP/s" +
                  "".join(f"; {name} {times[k]:.3f} ms, {times[k] / ms:.2f}x" for name, times in peers.items()), flush=True)
        each_product(a, size)


if __name__ == "__main__":
    main()
