#!/usr/bin/env python3
"""attention.py TRAINCTL [--device cuda] [--dtype bf16] [--threads 2] [SIZES ...]: times attention, forward and backward, here and in PyTorch
(scaled_dot_product_attention; on a GPU the faster of cuDNN and flash attention, with k and v as views where they are packed).

SIZES: BxTxHxD, causal; H may be QUERY/KV heads, and D FEATURES/VALUES. Needs PyTorch: ./bootstrap peers installs it, and build/peers/bin/python3
has it. Brackets contain the 10th and 90th percentile; the ratio is PyTorch's time over trainctl's.
"""

import argparse
import json
import subprocess
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend

CPU = ["8x128x4x32"]
GPU = ["16x1024x12x64", "1x8192x32/8x64", "1x8192x32/8x96", "1x8192x32/8x128", "2x4096x32/8x128", "1x8192x16/16x192/128", "1x8192x8/4x256"]


def ours(trainctl, size, options):
    """Milliseconds forward and backward: median, and the 10th and 90th percentile."""
    b, t, h, g, d, e = size
    x, y, logs = f"{b}x{t}x{g * (h // g + 2) * d}", f"{b}x{t}x{h * e}", f"{b}x{g}x{h // g}x{t}"
    if d != e:
        x = f"{b}x{t}x{h * d},{b}x{t}x{g * d},{b}x{t}x{g * e}"
    attrs = f"head_dim={d},group={h // g},causal=true,scale={d ** -0.5}"
    for op, shapes in (("attention", x), ("attention_grad", f"{y},{x},{y},{logs}")):
        command = [trainctl, "bench", "op", op, "--shape", shapes, "--attrs", attrs, "--device", options.device, "--json", "--repeat", "20"]
        command += ["--dtype", options.dtype] + (["--threads", str(options.threads)] if options.device == "cpu" else [])
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        seconds = json.loads(done.stdout)["results"][0]["seconds"]
        yield [1e3 * seconds[name] for name in ("median", "p10", "p90")]


def median_ms(call, device, count=20):
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


def timed(size, options):
    b, t, h, g, d, e = size
    kind = dict(dtype=torch.bfloat16 if options.dtype == "bf16" else torch.float32, device=options.device)
    rows = torch.randn(b, t, g, (h // g + 2) * max(d, e), **kind)
    q, k, v = (part.unflatten(-1, (-1, max(d, e))).flatten(2, 3).transpose(1, 2) for part in rows.split([h // g * max(d, e), max(d, e), max(d, e)], -1))
    q, k, v = (part[..., :n].detach().requires_grad_() for part, n in ((q, d), (k, d), (v, e)))
    dy = torch.randn(b, h, t, e, **kind)

    def forward():
        return attend(q, k, v, is_causal=True, enable_gqa=h != g)

    y = forward()
    return median_ms(forward, options.device), median_ms(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True), options.device)


def theirs(size, options):
    """The name of a backend, and its milliseconds forward and backward."""
    torch.set_num_threads(options.threads)
    if options.device == "cpu":
        return {"PyTorch": timed(size, options)}
    found = {}
    for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
        try:
            with sdpa_kernel(backend):
                found[name] = timed(size, options)
        except RuntimeError:  # a backend that does not support the size
            continue
    return found


def size_of(text):
    b, t, heads, features = text.split("x")
    h, g = (int(n) for n in (heads.split("/") * 2)[:2])
    d, e = (int(n) for n in (features.split("/") * 2)[:2])
    return int(b), int(t), h, g, d, e


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl")
    parser.add_argument("sizes", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    for text in options.sizes or (GPU if options.device == "cuda" else CPU):
        size = b, t, h, _, d, e = size_of(text)
        peers = theirs(size, options)
        for k, (ms, low, high) in enumerate(ours(options.trainctl, size, options)):
            flops = b * h * t * t * ((d + e) if k == 0 else (3 * d + 2 * e))
            row = f"{text} {options.dtype} {('forward', 'backward')[k]:8s} trainctl {ms:.3f} ms [{low:.3f} .. {high:.3f}], {flops / ms / 1e9:.1f} TFLOP/s"
            print(row + "".join(f"; {name} {times[k]:.3f} ms, {times[k] / ms:.2f}x" for name, times in peers.items()), flush=True)


if __name__ == "__main__":
    main()
