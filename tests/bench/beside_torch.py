#!/usr/bin/env python3
"""Fine-tuning, long sequences, mixtures of experts and images: one training step on GPUs compared with PyTorch, alternating in one run.

  beside_torch.py TRAINCTL PART …      lora qlora vit unet context experts experts_balanced
  --rounds N     how often each side starts (default: 2); --only trainctl | torch
  --tiny         tiny sizes, to try the program on a CPU
  --size N=V     a size of both sides, for example layers=12 where 16 layers of the mixture (100 GiB per GPU) do not fit
  --folder DIR   of qlora: a model folder of 8B's shape (language_peers.py folder)

For each side: the median of the later half of the steps but the last, which seems short: the host sees the others end only when part of the next
step's graph, which fills the queue of the GPU, has run; [fastest .. slowest], tokens or images per second, memory (of trainctl: as its plan
states and as nvidia-smi shows; of PyTorch: most that its allocator gave out), TFLOP/s per GPU by the operations that trainctl's plan counts (without
those of recomputation), and the ratio of the medians: above 1, trainctl is faster."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

here = pathlib.Path(__file__).resolve().parent
root = here.parent.parent
KEEP = "parallel.recompute=[]"
SPEED = 0.0005  # of the biases that balance experts
ALONE = ["launch.ranks=1", "parallel={mode: stand_alone, recompute: []}"]
LLAMA = dict(layers=4, heads=32, kv_heads=8, d=4096, hidden=14336, length=32768, vocab=32000)
QWEN = dict(layers=16, heads=32, kv_heads=4, head=128, d=2048, hidden=768, experts=128, top_k=8, length=4096, vocab=151936)
TINY = dict(layers=1, heads=4, kv_heads=2, head=16, d=64, hidden=128, experts=8, top_k=2, length=64, vocab=320, batch=2)


def images(job, batch, shape, labels, classes, *more):
    data = f"dataset={{type: random, shape: {shape}, label_shape: {labels}, label_dtype: i32, classes: {classes}, batch: {batch}, samples: {2 * batch}}}"
    return [f"configs/cookbook/{job}.yaml", data, "metrics=[]", "validation=null", "precision=bf16", *ALONE, "launch.device=cuda",
            "train={steps: %d, log_every: 1, checkpoint: none}", *more]


def variables(sizes):
    return [f"vars.{name}={value}" for name, value in sizes.items() if name != "batch"] + ([f"dataset.batch={sizes['batch']}"] if "batch" in sizes else [])


def vit(d, heads, layers, size, patch, batch, classes):
    rows = (size // patch) ** 2
    return images("vit", batch, [3, size, size], [], classes, f"vars.d={d}", f"vars.heads={heads}", f"vars.layers={layers}", f"network.patches.kernel={patch}",
                  f"network.patches.stride={patch}", f"network.rows.shape=[{d},{rows}]", f"network.wpe.max_length={rows}", f"network.head.units={classes}",
                  "optimizer={type: adamw, learning_rate: 0.001}")


def unet(width, size, batch):
    return images("unet", batch, [1, size, size], [size, size], 4, f"vars.width={width}", "optimizer={type: sgd, momentum: 0.9, learning_rate: 0.1}")


class Part:
    """trainctl's words, with %d where the number of steps is; sizes of the peer, and the variables of its variants; what a step computes."""

    def __init__(self, ours, peer, sizes, units, steps, ranks=1, unit="tokens", variants=({},), warm=4):
        self.ours, self.peer, self.sizes, self.units, self.steps, self.ranks, self.unit = ours, peer, sizes, units, steps, ranks, unit
        self.variants, self.warm = variants, warm


def language(job, peer, sizes, steps, ranks, *more, variants=({},), warm=4):
    words = [job, *variables(sizes), "train={steps: %d, log_every: 1, checkpoint: none}", f"launch.ranks={ranks}", "launch.device=cuda", *more]
    return Part(words, peer, sizes, sizes["batch"] * sizes["length"], steps, ranks, variants=variants, warm=warm)


def parts(tiny, folder, given):
    def cut(sizes):
        sizes = {name: given.get(name, value) for name, value in sizes.items()}
        return {name: min(value, TINY[name]) for name, value in sizes.items()} if tiny else sizes

    lora = cut(dict(layers=32, heads=32, kv_heads=8, d=4096, hidden=14336, length=4096, vocab=128256, batch=2))
    long, mixed = cut(LLAMA | dict(batch=1)), cut(QWEN | dict(batch=4))
    seen = dict(layers=2, heads=4, d=64, size=32, patch=16, classes=10, batch=4) if tiny else dict(layers=12, heads=12, d=768, size=224, patch=16, classes=1000, batch=128)
    pixels = dict(width=8, size=32, batch=2) if tiny else dict(width=64, size=256, batch=16)
    found = {
        "lora": language("tests/bench/jobs/llama_lora.yaml", "lora", lora, 16, 1, KEEP, variants=({}, {"BF16_ADAPTERS": "1"})),
        "vit": Part(vit(**seen), "vit", seen, seen["batch"], 40, unit="images"),
        "unet": Part(unet(**pixels), "unet", pixels, pixels["batch"], 40, unit="images"),
        "context": language("templates/llama_long.yaml", "context", long, 10, 2, "parallel={mode: semi_auto_parallel, context: 2, recompute: [], head_pieces: 4, optimizer_shard: 1}",
                            variants=({}, {"BACKEND": "cudnn"})),
        "experts": language("tests/bench/jobs/qwen_moe.yaml", "experts", mixed, 10, 2, "parallel={mode: semi_auto_parallel, expert: 2, recompute: []}",
                            "modules.block.moe.capacity=1.5"),
        # Biases balance the loads in the first half of the steps, which is not measured.
        "experts_balanced": language("tests/bench/jobs/qwen_moe.yaml", "experts", mixed, 40, 2, "parallel={mode: semi_auto_parallel, expert: 2, recompute: []}",
                                     "modules.block.moe.capacity=1.5", f"modules.block.moe.router={{score: softmax, normalize: true, balance: bias, bias_speed: {SPEED}, aux_loss: 0.001}}",
                                     variants=({"BALANCED": str(SPEED)},), warm=20),
    }
    if folder:
        found["qlora"] = language("tests/bench/jobs/llama_lora.yaml", None, lora, 12, 1, KEEP, "train.frozen_type=nf4", f"weights={{from: {folder}, map: auto}}")
        found["qlora_small"] = language("tests/bench/jobs/llama_lora.yaml", None, lora | dict(batch=1), 8, 1, "parallel={recompute: ['h.*'], head_pieces: 16}",
                                        "train.frozen_type=nf4", f"weights={{from: {folder}, map: auto}}")
    return found


def sh(words, **more):
    done = subprocess.run(words, capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}\nexit {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    return done.stdout


class InUse:
    """The most memory in use on the GPUs that this process sees, in GiB."""

    def __enter__(self):
        which = os.environ.get("CUDA_VISIBLE_DEVICES")
        words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-lms", "200", *([f"--id={which}"] if which else [])]
        try:
            self.watch = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        except OSError:
            self.watch = None
        return self

    def __exit__(self, *_):
        self.gib = 0
        if self.watch:
            self.watch.terminate()
            self.gib = max((int(line) for line in self.watch.communicate()[0].split() if line.isdigit()), default=0) / 1024


def trainctl(a, part):
    words = [word % part.steps if "%d" in word else word for word in part.ours]
    words = [str(root / words[0]), *words[1:], *(["launch.device=cpu", "precision=fp32"] if a.tiny else []), *a.set]
    with tempfile.TemporaryDirectory() as logs, InUse() as seen:
        sh([a.trainctl, "run", *words, f"launch.log_dir={logs}"], timeout=a.limit)
        rows = [json.loads(line) for line in open(f"{logs}/1/metrics.jsonl")]
    plan = json.loads(sh([a.trainctl, "plan", "--json", *words]))
    steps = [row["seconds"] * 1e3 for row in rows if "step" in row and "seconds" in row]
    arena = max(kind["arena_bytes"] for kind in plan["rank_classes"]) / 2**30
    losses = [row["loss"] for row in rows if row.get("loss") is not None]
    for row in [row for row in rows if row.get("kind") == "loads"][-1:]:
        print(f"loads of experts at the end: {row['min_load']:.2f} to {row['max_load']:.2f} times the mean", flush=True)
    return steps[len(steps) // 2:-1], arena, seen.gib, losses, plan["headline"]["flops_per_step"]


def torch(a, part, variant):
    sizes = {("features" if name == "d" else name): value for name, value in part.sizes.items()}
    words = [str(here / "peers_torch.py"), part.peer, *(word for name, value in sizes.items() for word in (f"--{name}", str(value)))]
    words += ["--warm", "2", "--steps", "2"] if a.tiny else ["--warm", str(part.warm), "--steps", str(max(6, part.steps // 2))]
    start = [a.python] if part.ranks == 1 else [a.python, "-m", "torch.distributed.run", "--nproc-per-node", str(part.ranks), "--master-port", "29517"]
    return json.loads(sh([*start, *words], timeout=a.limit, env={**os.environ, **variant}).strip().splitlines()[-1])


def row(name, side, ms, low, high, part, memory, more=""):
    print(f"{name:12s} {side:9s} {ms:9.2f} ms [{low:.2f} .. {high:.2f}]  {part.units / ms * 1e3:9,.0f} {part.unit}/s  {memory}{more}", flush=True)


def compare(a, name, part):
    steps, flops, peers = [], 0, [[] for _ in part.variants]

    def rate(ms):
        return f", {flops / ms / 1e9 / part.ranks:.0f} TFLOP/s per GPU" if flops else ""

    for _ in range(a.rounds):
        if a.only != "torch":
            measured, arena, seen, losses, flops = trainctl(a, part)
            steps += measured
            print(f"{name}: losses {losses[0]:.4f} to {losses[-1]:.4f}; trainctl {statistics.median(measured):.2f} ms in this round", flush=True)
        if a.only != "trainctl" and part.peer:
            for variant, measured in zip(part.variants, peers):
                measured.append(torch(a, part, variant))
                load = f", largest load {measured[-1]['max_load']:.2f} times the mean" if "max_load" in measured[-1] else ""
                print(f"{name}: PyTorch {variant or ''} {measured[-1]['ms']:.2f} ms in this round{load}", flush=True)
    if steps:
        row(name, "trainctl", statistics.median(steps), min(steps), max(steps), part, f"{arena:.1f} GiB, {seen:.1f} in use{rate(statistics.median(steps))}")
    for variant, measured in zip(part.variants, peers):
        if measured:
            ms = statistics.median(peer["ms"] for peer in measured)
            more = " ".join(f"{key}={value}" for key, value in variant.items()) + (f"   {ms / statistics.median(steps):.2f}x" if steps else "")
            row(name, "PyTorch", ms, min(peer["low"] for peer in measured), max(peer["high"] for peer in measured), part, f"{measured[-1]['memory']:.1f} GiB{rate(ms)} ", more)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl")
    parser.add_argument("parts", nargs="+")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=["trainctl", "torch"])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--folder")
    parser.add_argument("--size", action="append", default=[], help="NAME=VALUE of both sides")
    parser.add_argument("--limit", type=int, default=200, help="seconds of one start")
    parser.add_argument("--set", action="append", default=[], help="a field of trainctl's job")
    parser.add_argument("--python", default=sys.executable, help="that has PyTorch")
    a = parser.parse_args()
    given = {name: int(value) for name, _, value in (word.partition("=") for word in a.size)}
    known = parts(a.tiny, a.folder, given)
    unknown = set(a.parts) - set(known)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    failed = False
    for name in a.parts:
        try:
            compare(a, name, known[name])
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            failed = True
            print(f"{name} failed: {str(error)[-1800:]}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
