#!/usr/bin/env python3
"""Random networks with attention, whose sequences are shared by ranks (parallel.context): every method has the losses of one rank.

  python3 tests/random_jobs/context.py --trainctl build/release/bin/trainctl --jobs 40
  python3 tests/random_jobs/context.py --trainctl build/release/bin/trainctl --jobs 4 --resume

A network has one or two blocks: packed or separate queries, keys and values, grouped queries, windows, softcaps, sinks, masks of keys or
documents, biases of scores (trained, or computed for each sample), ALiBi, dropout of attention, rotary or learned positions. Each job runs on one rank, and then with each method that fits, under a random product of data, tensor
and context, with random micro-batches, stages, levels of optimizer_shard, recomputation and offloaded activations, and is validated every two
steps. With --resume a run is saved and resumed under another context size. Of one seed, job N is always the same: --only N.
"""

import argparse
import json
import os
import pathlib
import random
import sys
import tempfile

from runs import Failure, call, comparable, difference, of_steps, read_losses, run_losses

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from limits import limit  # noqa: E402

TOLERANCE = limit(2e-5)  # relative to the largest loss so far: sums in another order
STEPS = 4


def draw_attention(rng, heads, kv_heads):
    fields = {"type": "attention", "heads": heads, "kv_heads": kv_heads, "causal": rng.random() < 0.8}
    if fields["causal"] and rng.random() < 0.3:
        fields["window"] = rng.choice([1, 3, 5, 9])
    if rng.random() < 0.2:
        fields["softcap"] = 2.0
    mask = rng.choice(["none", "none", "keys", "documents", "documents"])
    if mask != "none":
        fields["mask"] = mask
    if rng.random() < 0.3:
        fields["sinks"] = True
    if rng.random() < 0.25:
        fields["alibi"] = True
    if rng.random() < 0.3:
        fields["dropout"] = 0.2
    bias = rng.choice(["none", "none", "none", "trained", "input"])
    if bias != "none":
        fields["score_bias"] = bias
    if bias == "trained":
        fields["init"] = {"type": "normal", "std": 1.0}
    return fields


def draw_block(rng, name, before, width, heads, kv_heads, head_dim, learned, length):
    """Layers of a block, and the name of its last."""
    attention = draw_attention(rng, heads, kv_heads)
    masked = "mask" in attention
    layers = [{"name": f"{name}norm", "type": rng.choice(["rms_norm", "layer_norm"]), "inputs": before}]
    rotary = not learned and rng.random() < 0.8
    documents = ["label"] if attention.get("mask") == "documents" else []
    if rng.random() < 0.7:
        packing = rng.choice(["heads", "heads", "qkv"])
        attention["packing"] = packing
        layers.append({"name": f"{name}qkv", "type": "dense", "units": (heads + 2 * kv_heads) * head_dim, "bias": rng.random() < 0.5})
        source = [f"{name}qkv"]
        if rotary:
            layers.append({"name": f"{name}turn", "type": "rotary", "heads": heads, "kv_heads": kv_heads, "packing": packing,
                           "inputs": source + documents})
            source = [f"{name}turn"]
    else:
        source = []
        for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            layers.append({"name": name + part, "type": "dense", "units": count * head_dim, "inputs": f"{name}norm"})
            source.append(name + part)
            if rotary and part != "v":
                layers.append({"name": f"{name}{part}_turn", "type": "rotary", "heads": count, "inputs": [name + part] + documents})
                source[-1] = f"{name}{part}_turn"
    bias = [f"{name}bias"] if attention.get("score_bias") == "input" else []
    if bias:
        layers.append({"name": f"{name}bias", "type": "dense", "units": length, "inputs": f"{name}norm"})  # [batch, rows, keys]
    layers.append({"name": f"{name}attn", **attention, "inputs": source + (["label"] if masked else []) + bias})
    layers += [{"name": f"{name}proj", "type": "dense", "units": width},
               {"name": f"{name}sum", "type": "add", "inputs": [f"{name}proj", before]},
               {"name": f"{name}up", "type": "dense", "units": 2 * width},
               {"name": f"{name}act", "type": rng.choice(["gelu", "silu", "relu"])},
               {"name": f"{name}down", "type": "dense", "units": width},
               {"name": f"{name}out", "type": "add", "inputs": [f"{name}down", f"{name}sum"]}]
    return layers, f"{name}out", packing_of(attention)


def packing_of(attention):
    return attention.get("packing")


def draw_job(rng):
    kv_heads = rng.choice([1, 2, 4, 4, 8])
    heads, head_dim = kv_heads * rng.choice([1, 1, 2, 3]), rng.choice([2, 4, 6])
    length, width, batch = rng.choice([8, 16, 24, 48]), rng.choice([8, 16]), rng.choice([4, 8])
    learned = rng.random() < 0.3
    network = [{"name": "table", "type": "embedding", "vocab": 4, "units": width}]
    if learned:
        network.append({"name": "places", "type": "position_embedding", "max_length": length + rng.choice([0, 5])})
    last, packings = network[-1]["name"], set()
    for name in ("a", "b")[:rng.choice([1, 2])]:
        layers, last, packing = draw_block(rng, name, last, width, heads, kv_heads, head_dim, learned, length)
        network += layers
        packings.add(packing)
    network += [{"name": "norm", "type": "rms_norm"}, {"name": "head", "type": "dense", "units": 4}]
    job = {
        "name": "context", "seed": rng.randrange(1000),
        "dataset": {"type": "random", "shape": [length], "dtype": "i32", "label_shape": [length], "label_dtype": "i32", "classes": 4,
                    "batch": batch, "samples": batch * STEPS},
        "network": network, "loss": "softmax_cross_entropy",
        "optimizer": {"type": "sgd", "learning_rate": 0.1, "momentum": 0.9},
        "validation": {"dataset": {"samples": batch}, "every_steps": 2},
        "train": {"steps": STEPS}, "launch": {"ranks": 1, "device": "cpu"},
    }
    return job, {"length": length, "kv_heads": kv_heads, "batch": batch, "by_heads": "qkv" not in packings and kv_heads > 1}


def draw_plan(rng, facts, method, context=None):
    """Overrides; None if the method does not fit the network."""
    contexts = [n for n in (2, 3, 4, 4, 8) if facts["length"] % n == 0]
    tensors = [n for n in (1, 1, 2) if n == 1 or (facts["by_heads"] and facts["kv_heads"] % n == 0)]
    for _ in range(20):
        ways, tensor, data = context or rng.choice(contexts), rng.choice(tensors), rng.choice([1, 1, 2])
        if method == "ulysses" and (not facts["by_heads"] or facts["kv_heads"] % (ways * tensor) != 0):
            continue
        stages, micro_batches = rng.choice([1, 1, 1, 2]), rng.choice([1, 2])
        if ways * tensor * data * stages > 8 or facts["batch"] // micro_batches % data != 0:
            continue
        level = rng.choice([0, 0, 1, 2, 3])
        overrides = ["parallel.mode=semi_auto_parallel", f"parallel.context={ways}", f"parallel.tensor={tensor}",
                     f"parallel.stages={stages}", f"parallel.context_method={method}", f"launch.ranks={ways * tensor * data * stages}",
                     f"parallel.optimizer_shard={{level: {level}, min_kb: 0}}"]
        if rng.random() < 0.3:
            overrides.append("parallel.recompute=['?attn', '?act', '?norm']")
        if rng.random() < 0.3:
            overrides.append("parallel.offload={activations: ['*']}")
        return overrides, [f"parallel.micro_batches={micro_batches}"]
    return None


def check(trainctl, path, reference, overrides, env):
    losses = run_losses(trainctl, path, overrides, env)
    apart, step = difference(losses, reference, comparable(reference))
    if apart > TOLERANCE:
        raise Failure(f"the losses differ by {apart:.1e} at step {step}: {' '.join(overrides)}\n  {reference}\n  {losses}")


def check_resume(trainctl, path, reference, first, second, env):
    """Half of the steps under one plan, saved, and the rest under another."""
    with tempfile.TemporaryDirectory(prefix="trainctl-context-") as logs:
        saved = f"train.checkpoint={{every_steps: {STEPS // 2}, keep: 1000, dir: {logs}/saved}}"
        code, output = call([trainctl, "run", str(path), *first, saved, f"launch.log_dir={logs}/a"], env)
        if code != 0:
            raise Failure(f"exit code {code} of run {' '.join(first)}\n{output[-3000:]}")
        checkpoint = f"{logs}/saved/step_{STEPS // 2:08}"
        code, output = call([trainctl, "run", str(path), *second, "--resume-from", checkpoint, f"launch.log_dir={logs}/b"], env)
        if code != 0:
            raise Failure(f"exit code {code} of the resumed run {' '.join(second)}\n{output[-3000:]}")
        losses = of_steps(read_losses(f"{logs}/b/1/metrics.jsonl"))
        apart, step = difference(losses, reference, [s for s in comparable(reference) if s in losses])
        if apart > TOLERANCE or not losses:
            raise Failure(f"the resumed losses differ by {apart:.1e} at step {step}: {' '.join(second)}\n  {reference}\n  {losses}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainctl", required=True)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this job alone")
    parser.add_argument("--resume", action="store_true", help="save a run, and resume it under another context size")
    parser.add_argument("--keep", action="store_true", help="leave the jobs that failed in the current folder")
    options = parser.parse_args()
    trainctl, env, failed, runs = os.path.abspath(options.trainctl), dict(os.environ), 0, 0
    for number in range(options.jobs) if options.only is None else [options.only]:
        rng = random.Random(f"{options.seed} {number}")
        job, facts = draw_job(rng)
        with tempfile.TemporaryDirectory(prefix="trainctl-context-") as folder:
            path = os.path.join(folder, "job.yaml")
            with open(path, "w") as file:
                json.dump(job, file)
            try:
                references = {}
                for method in ("gather", "ring", "ulysses"):
                    drawn = draw_plan(rng, facts, method)
                    if drawn is None:
                        continue
                    plan, same = drawn
                    if same[0] not in references:
                        references[same[0]] = run_losses(trainctl, path, same, env)
                    runs += 1
                    check(trainctl, path, references[same[0]], plan + same, env)
                    if options.resume:
                        other = ["parallel.mode=semi_auto_parallel", "parallel.context=2", "launch.ranks=2", "parallel.context_method=ring"]
                        check_resume(trainctl, path, references[same[0]], plan + same, other + same, env)
            except Failure as failure:
                failed += 1
                print(f"job {number} of seed {options.seed}: {failure}", flush=True)
                if options.keep:
                    with open(f"context_job_{number}.yaml", "w") as file:
                        json.dump(job, file)
    print(f"{runs} runs of random networks whose sequences are shared by ranks; {failed} jobs failed")
    sys.exit(1 if failed or runs == 0 else 0)


if __name__ == "__main__":
    main()
