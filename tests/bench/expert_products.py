#!/usr/bin/env python3
"""expert_products.py TRAINCTL [TOKENSxTOPxEXPERTSxFEATURESxHIDDEN[:balanced] …]: the kernels of a mixture of experts, forward and gradient, compared with PyTorch.

In bf16 on a GPU, with swiglu and gradients of weights in f32. trainctl's kernels sort and gather random routes, apply the activation and the weights
and sum the rows. The peers: dense products alone with as many rows (cuBLAS), those with a compiled swiglu and its slope, and grouped_mm alone with equal
groups, whose gradients of weights are bf16. Ratio: the peer's time over trainctl's.

If bench_cuda_experts lies in the folder of trainctl, each grouped product alone is compared with the dense product of its size, and with torch.bmm of as many
equal experts, too: both sides as a graph of four calls, 21 times one after another. These products take random routes, or with :balanced equal ones.
With --each only they are measured."""

import argparse
import json
import math
import pathlib
import re
import subprocess

import torch
from attention import median_ms
from torch.nn import functional as F

SIZES = ["8192x8x64x2048x768", "8192x8x64x2048x768:balanced", "8192x8x128x2048x768"]
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


def graph_ms(call, copies=4, samples=21):
    """Milliseconds per call of the calls that a graph contains, measured like bench_cuda_experts."""
    call()
    torch.cuda.synchronize()
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for _ in range(copies):
            call()
    graph.replay()
    for _ in range(samples):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / copies)
    return sorted(times)[samples // 2]


def each_product(a, size):
    """Prints each grouped product of bench_cuda_experts next to the dense product (cuBLAS) of its size and torch.bmm."""
    program = pathlib.Path(a.trainctl).with_name("bench_cuda_experts")
    if a.device != "cuda" or not program.exists():
        return
    tokens, top, experts, features, hidden = map(int, size.split(":")[0].split("x"))
    rows, kind = tokens * top, dict(device=a.device, dtype=torch.bfloat16)
    each, mm = rows // experts, wide(a.device)
    x, u, act = (torch.randn(rows, n, **kind) for n in (features, 2 * hidden, hidden))
    ups, downs = (torch.randn(experts, m, k, **kind) / math.sqrt(k) for m, k in ((2 * hidden, features), (features, hidden)))
    up, down = ups[0], downs[0]
    xs, us, acts = (v[:each * experts].view(experts, each, -1) for v in (x, u, act))
    bmm = lambda a, b: torch.bmm(a, b, out_dtype=torch.float32)
    dense = [lambda: x @ up.T, lambda: act @ down.T, lambda: x @ down, lambda: u @ up, lambda: mm(u.T, x), lambda: mm(x.T, act), lambda: u.T @ x, lambda: x.T @ act]
    batched = [lambda: xs @ ups.mT, lambda: acts @ downs.mT, lambda: xs @ downs, lambda: us @ ups, lambda: bmm(us.mT, xs), lambda: bmm(xs.mT, acts),
               lambda: us.mT @ xs, lambda: xs.mT @ acts]
    lines = subprocess.run([program, size], check=True, capture_output=True, text=True).stdout.splitlines()[1:]
    total = [0.0, 0.0, 0.0]
    for i, (line, *calls) in enumerate(zip(lines, dense, batched, strict=True)):
        ms = float(re.search(r"([0-9.]+) ms", line)[1])
        peers = [graph_ms(call) for call in calls]
        print(f"{size} {line}; dense {peers[0]:.3f} ms, {peers[0] / ms:.2f}x; batched {peers[1]:.3f} ms, {peers[1] / ms:.2f}x", flush=True)
        if i < 6:  # gradients of weights in f32
            total = [before + new for before, new in zip(total, (ms, *peers))]
    print(f"{size} the first six {total[0]:.3f} ms; dense {total[1]:.3f} ms, {total[1] / total[0]:.2f}x; batched {total[2]:.3f} ms, {total[2] / total[0]:.2f}x", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl")
    parser.add_argument("sizes", nargs="*")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--each", action="store_true", help="only each grouped product alone")
    a = parser.parse_args()
    for size in a.sizes or (SIZES if a.device == "cuda" else TINY):
        if a.each or ":" in size:
            each_product(a, size)
            continue
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
