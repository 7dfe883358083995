#!/usr/bin/env python3
"""packed_context_test.py TRAINCTL: packed documents whose rows ranks share (parallel.context) train as on one rank.

Documents have from 3 to 90 tokens, so each row has another number of them, and the ranks' order of documents differs from row to row.
Every method, and a run that is resumed under another context size, has the losses of one rank."""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
VOCAB, LENGTH, STEPS, TOLERANCE = 60, 96, 6, 2e-5
JOB = f"""name: packed_context
dataset: {{type: text, path: ../texts.jsonl, tokenizer: ../model, length: {LENGTH}, pack: true, batch: 4}}
network:
  - {{name: words, type: embedding, vocab: {VOCAB}, units: 16, inputs: [data]}}
  - {{name: norm, type: rms_norm}}
  - {{name: qkv, type: dense, units: 48}}
  - {{name: turn, type: rotary, heads: 4, kv_heads: 4, packing: heads, inputs: [qkv, documents]}}
  - {{name: attn, type: attention, heads: 4, kv_heads: 4, causal: true, mask: documents, inputs: [turn, documents]}}
  - {{name: proj, type: dense, units: 16}}
  - {{name: sum, type: add, inputs: [proj, words]}}
  - {{name: out, type: dense, units: {VOCAB}}}
loss: {{type: softmax_cross_entropy, ignore_index: -100}}
optimizer: {{type: sgd, learning_rate: 0.5, momentum: 0.9}}
train: {{steps: {STEPS}, checkpoint: {{every_steps: {STEPS // 2}, keep: 9, dir: saved}}}}
launch: {{device: cpu}}
"""


def context(ranks, method, *more):
    return [f"launch.ranks={ranks}", "parallel.mode=semi_auto_parallel", f"parallel.context={ranks}", f"parallel.context_method={method}", *more]


PLANS = {
    "gather 2": context(2, "gather"),
    "gather 4, level 2": context(4, "gather", "parallel.optimizer_shard={level: 2, min_kb: 0}"),
    "ring 2, activations offloaded": context(2, "ring", "parallel.offload={activations: ['*']}"),
    "ring 3": context(3, "ring"),
    "ring 4, recompute": context(4, "ring", "parallel.recompute=[norm, attn, turn]"),
    "ulysses 4": context(4, "ulysses"),
}


def write_data(folder):
    (folder / "model").mkdir()
    vocab = {"[UNK]": 0, **{f"w{i}": i for i in range(1, VOCAB)}}
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocab}
    (folder / "model" / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}, "model": model}))
    rng = random.Random(5)
    lengths = [rng.choice([3, 5, 8, 13, 30, 60, 90]) for _ in range(150)]
    (folder / "texts.jsonl").write_text("".join(
        json.dumps({"text": " ".join(f"w{rng.randrange(1, VOCAB)}" for _ in range(length))}) + "\n" for length in lengths))


def losses(folder, plan):
    folder.mkdir(exist_ok=True)
    (folder / "job.yaml").write_text(JOB)
    done = subprocess.run([TRAINCTL, "run", "job.yaml", *plan], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    run = max((folder / "log_output").iterdir(), key=lambda one: int(one.name))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["run_step"]: line["loss"] for line in lines if "run_step" in line and "loss" in line and "kind" not in line}


def check(name, found, expected):
    apart = max(abs(found[step] - expected[step]) / abs(expected[step]) for step in found)
    assert found and apart < TOLERANCE, f"{name}: the losses differ by {apart:.1e}\n  {found}\n  {expected}"
    print(f"{name}: {len(found)} steps within {apart:.1e} of one rank")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_data(folder)
        expected = losses(folder / "one", [])
        assert len(expected) == STEPS, expected
        for number, (name, plan) in enumerate(PLANS.items()):
            check(name, losses(folder / f"plan{number}", plan), expected)
        saved = f"../one/saved/step_{STEPS // 2:08}"
        check("one rank, resumed as ring 3", losses(folder / "resumed", [*PLANS["ring 3"], "--resume-from", saved]), expected)
        saved = f"../plan1/saved/step_{STEPS // 2:08}"
        check("gather 4, resumed as ulysses 2", losses(folder / "again", [*context(2, "ulysses"), "--resume-from", saved]), expected)


if __name__ == "__main__":
    main()
