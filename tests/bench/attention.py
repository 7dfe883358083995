#!/usr/bin/env python3
"""attention.py TRAINCTL [--device cuda] [--dtype bf16] [--threads 2] [SIZES ...]: times attention, forward and backward, here and in PyTorch
(scaled_dot_product_attention with the backend that it takes by itself, q, k and v as views of one packed product).

SIZES: BxTxHxD, causal. Needs PyTorch: ./bootstrap peers installs it, and build/peers/bin/python3 has it.
"""

import argparse
import json
import subprocess
import time

import torch
from torch.nn.functional import scaled_dot_product_attention as attend

CPU, GPU = ["8x128x4x32"], ["16x1024x12x64", "16x1024x16x64", "16x1000x12x64", "4x4096x12x64"]


def ours(trainctl, b, t, h, d, options):
    """Milliseconds forward and backward."""
    attrs = f"head_dim={d},group=1,causal=true,scale={d ** -0.5}"
    x, y, logs = f"{b}x{t}x{3 * h * d}", f"{b}x{t}x{h * d}", f"{b}x{h}x1x{t}"
    for op, shapes in (("attention", x), ("attention_grad", f"{y},{x},{y},{logs}")):
        command = [trainctl, "bench", "op", op, "--shape", shapes, "--attrs", attrs, "--device", options.device, "--json"]
        command += ["--dtype", options.dtype] + (["--threads", str(options.threads)] if options.device == "cpu" else [])
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        yield json.loads(done.stdout)


def median_ms(call, device, count=50):
    times = []
    for _ in range(count + 5):
        if device == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        else:
            begin = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - begin))
    return sorted(times[5:])[count // 2]


def theirs(b, t, h, d, options):
    torch.set_num_threads(options.threads)
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    x = torch.randn(b, t, h, 3, d, dtype=dtype, device=options.device, requires_grad=True)
    dy = torch.randn(b, h, t, d, dtype=dtype, device=options.device)

    def forward():
        q, k, v = (x[:, :, :, i].transpose(1, 2) for i in range(3))
        return attend(q, k, v, is_causal=True)

    y = forward()
    return median_ms(forward, options.device), median_ms(lambda: torch.autograd.grad(y, x, dy, retain_graph=True), options.device)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl")
    parser.add_argument("sizes", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    for size in options.sizes or (GPU if options.device == "cuda" else CPU):
        b, t, h, d = map(int, size.split("x"))
        forward, backward = theirs(b, t, h, d, options)
        print(f"{size} {options.dtype} PyTorch {torch.__version__}: forward {forward:.3f} ms, backward {backward:.3f} ms")
        for report in ours(options.trainctl, b, t, h, d, options):
            print(f"{size} {options.dtype} trainctl:", json.dumps(report))


if __name__ == "__main__":
    main()
