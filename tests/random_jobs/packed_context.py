#!/usr/bin/env python3
"""Random networks over rows of packed documents, whose sequences are shared by ranks: every plan has the losses of one rank.

  python3 tests/random_jobs/packed_context.py --trainctl build/release/bin/trainctl --jobs 10

Documents come from texts (`pack: true`) and have very unequal lengths: one of almost the whole row, many of one or two tokens, or all in between. Lengths
of rows, numbers of heads and of key heads, windows, softcaps, sinks and the packing of heads are random. Each job is validated every two steps and runs
on one rank, then under random products of data, tensor and context, methods, recomputation and levels of optimizer_shard; and a run that is
saved resumes under another plan. Of one seed, job N is always the same: --only N.
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

TOLERANCE = limit(3e-5)
VOCAB, STEPS, WIDTH = 60, 4, 16


def write_tokenizer(folder):
    vocab = {"[UNK]": 0, **{f"w{i}": i for i in range(1, VOCAB)}}
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocab}
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}, "model": model}))


def write_texts(path, rng, lengths, count):
    path.write_text("".join(json.dumps({"text": " ".join(f"w{rng.randrange(1, VOCAB)}" for _ in range(rng.choice(lengths)))}) + "\n" for _ in range(count)))


def draw_job(rng, folder):
    length, kv_heads, head_dim = rng.choice([40, 48, 60, 72, 96, 100, 120, 128]), rng.choice([1, 2, 3, 4]), rng.choice([4, 8])
    heads, packing = kv_heads * rng.choice([1, 2, 3]), rng.choice(["heads", "heads", "qkv", "separate"])
    lengths = rng.choice([[1, 2, length - 1], [3, 5, 8, 13, 30, 60, 90], [length - 2], [1, 1, 1, 2, length // 2], [length // 3]])
    write_texts(folder / "texts.jsonl", rng, lengths, 120)
    write_texts(folder / "validation.jsonl", rng, lengths, 30)
    attention = {"name": "attn", "type": "attention", "heads": heads, "kv_heads": kv_heads, "causal": True, "mask": "documents"}
    if rng.random() < 0.5:
        attention["window"] = rng.choice([1, 4, 17, length, length + 9])
    if rng.random() < 0.2:
        attention["sinks"] = True
    if rng.random() < 0.2:
        attention["softcap"] = 3.0
    network = [{"name": "words", "type": "embedding", "vocab": VOCAB, "units": WIDTH, "inputs": ["data"]}, {"name": "norm", "type": "rms_norm"}]
    if packing == "separate":
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            network.append({"name": name, "type": "dense", "units": count * head_dim, "inputs": "norm"})
        for name, count in (("q", heads), ("k", kv_heads)):
            network.append({"name": name + "_turn", "type": "rotary", "heads": count, "inputs": [name, "documents"]})
        attention["inputs"] = ["q_turn", "k_turn", "v", "documents"]
    else:
        network += [{"name": "qkv", "type": "dense", "units": (heads + 2 * kv_heads) * head_dim},
                    {"name": "turn", "type": "rotary", "heads": heads, "kv_heads": kv_heads, "packing": packing, "inputs": ["qkv", "documents"]}]
        attention |= {"packing": packing, "inputs": ["turn", "documents"]}
    network += [attention, {"name": "proj", "type": "dense", "units": WIDTH}, {"name": "sum", "type": "add", "inputs": ["proj", "words"]},
                {"name": "out", "type": "dense", "units": VOCAB}]
    batch = rng.choice([2, 4])
    job = {"name": "packed_context", "seed": rng.randrange(1000),
           "dataset": {"type": "text", "path": str(folder / "texts.jsonl"), "tokenizer": str(folder / "model"), "length": length, "pack": True, "batch": batch},
           "validation": {"dataset": {"path": str(folder / "validation.jsonl")}, "every_steps": 2},
           "network": network, "loss": {"type": "softmax_cross_entropy", "ignore_index": -100},
           "optimizer": {"type": "sgd", "learning_rate": 0.3, "momentum": 0.9}, "train": {"steps": STEPS}, "launch": {"device": "cpu"}}
    recomputed = [layer["name"] for layer in network if layer["name"] not in ("words", "out")]
    return job, {"length": length, "kv_heads": kv_heads, "batch": batch, "by_heads": packing in ("heads", "separate"), "recomputed": recomputed}


def draw_plan(rng, facts):
    while True:
        method, ways, tensor, data = rng.choice(["gather", "ring", "ulysses", "auto"]), rng.choice([2, 3, 4, 5, 6, 8]), rng.choice([1, 1, 2]), rng.choice([1, 1, 2])
        fits = facts["length"] % ways == 0 and facts["batch"] % data == 0 and ways * tensor * data <= 8
        fits = fits and (tensor == 1 or (facts["by_heads"] and facts["kv_heads"] % tensor == 0))
        fits = fits and (method != "ulysses" or (facts["by_heads"] and facts["kv_heads"] % (ways * tensor) == 0))
        if fits:
            break
    plan = [f"launch.ranks={ways * tensor * data}", "parallel.mode=semi_auto_parallel", f"parallel.context={ways}", f"parallel.tensor={tensor}",
            f"parallel.context_method={method}", f"parallel.optimizer_shard={{level: {rng.choice([0, 0, 1, 2, 3])}, min_kb: 0}}"]
    if rng.random() < 0.4:
        plan.append(f"parallel.recompute={json.dumps(rng.sample(facts['recomputed'], rng.randrange(1, len(facts['recomputed']))))}")
    return plan


def check(what, losses, reference, plan):
    steps = [step for step in comparable(reference) if step in losses]
    apart, step = difference(losses, reference, steps)
    if apart > TOLERANCE or not steps:
        raise Failure(f"{what} differs by {apart:.1e} at step {step}: {' '.join(plan)}\n  {reference}\n  {losses}")


def check_resume(trainctl, path, reference, first, second, logs):
    for plan, more in ((first, [f"train.checkpoint={{every_steps: {STEPS // 2}, keep: 9, dir: {logs}/saved}}", f"launch.log_dir={logs}/a"]),
                       (second, ["--resume-from", f"{logs}/saved/step_{STEPS // 2:08}", f"launch.log_dir={logs}/b"])):
        code, output = call([trainctl, "run", str(path), *plan, *more])
        if code != 0:
            raise Failure(f"exit code {code} of run {' '.join(plan + more)}\n{output[-3000:]}")
    check("the resumed run", of_steps(read_losses(f"{logs}/b/1/metrics.jsonl")), reference, first + ["then"] + second)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainctl", required=True)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this job alone")
    options = parser.parse_args()
    trainctl, failed, runs = os.path.abspath(options.trainctl), 0, 0
    for number in range(options.jobs) if options.only is None else [options.only]:
        rng = random.Random(f"{options.seed} {number}")
        with tempfile.TemporaryDirectory(prefix="trainctl-packed-") as name:
            folder = pathlib.Path(name)
            write_tokenizer(folder / "model")
            job, facts = draw_job(rng, folder)
            (folder / "job.yaml").write_text(json.dumps(job))
            try:
                reference = run_losses(trainctl, folder / "job.yaml", [])
                plans = [draw_plan(rng, facts) for _ in range(3)]
                for plan in plans:
                    runs += 1
                    check("a plan", run_losses(trainctl, folder / "job.yaml", plan), reference, plan)
                check_resume(trainctl, folder / "job.yaml", reference, plans[0], plans[1], folder)
            except Failure as failure:
                failed += 1
                print(f"job {number} of seed {options.seed}: {failure}\n{json.dumps(job)}", flush=True)
    print(f"{runs} runs of random networks over packed documents; {failed} jobs failed")
    sys.exit(1 if failed or runs == 0 else 0)


if __name__ == "__main__":
    main()
