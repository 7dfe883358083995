#!/usr/bin/env python3
"""distillation_test.py TRAINCTL: the loss distillation against PyTorch, which trains the same model from the same folder.

A larger random model is the teacher. `trainctl predict` writes its logits of all tokens, and they become a field of the samples: all classes, or the
largest 8 of each token with their numbers. Losses on one rank and under sharded plans are those of PyTorch.

Exits with 77 (Skipped) without PyTorch or transformers."""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from limits import limit  # noqa: E402

SKIPPED = 77

try:
    import numpy as np
    import torch
    import transformers
except ImportError as error:
    python = pathlib.Path(__file__).resolve().parents[2] / "build/peers/bin/python3"
    if python.exists() and pathlib.Path(sys.executable) != python:
        sys.exit(subprocess.run([python, *sys.argv], check=False).returncode)
    print(f"SKIPPED: {sys.executable} has no {error.name}")
    sys.exit(SKIPPED)

TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
TOLERANCE = limit(1e-5)
BATCH, LENGTH, VOCAB, STEPS, TOP = 4, 12, 104, 5, 8
LEARNING_RATE, MOMENTUM, TEMPERATURE, ALPHA, IGNORED = 0.05, 0.9, 2.5, 0.7, 7  # not Adam, which turns rounding of small gradients into whole steps
torch.manual_seed(1)
torch.set_num_threads(2)
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

PLANS = {"one rank": [], "level 3": ["launch.ranks=2", "parallel={mode: data_parallel, optimizer_shard: {level: 3, min_kb: 0}}"],
         "pipeline": ["launch.ranks=2", "parallel={mode: data_parallel, stages: 2, micro_batches: 2}"],
         "tensor parallel": ["launch.ranks=2", "parallel={mode: semi_auto_parallel, strategies: {'h.*.gate': [[1, 1, 1], [2, 1]], head: "
                             "[[1, 1, 1], [2, 1]]}}"]}


def run(*words):
    done = subprocess.run([TRAINCTL, *map(str, words)], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def model_in(folder, hidden):
    config = transformers.LlamaConfig(vocab_size=VOCAB, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
                                      bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    return model


def distilled(logits, labels, teacher, ids):
    """The mean over the labels that count, by the definitions of both terms."""
    counts = labels != IGNORED
    student, labels = logits[counts], labels[counts]
    p = torch.softmax(teacher[counts] / TEMPERATURE, -1)
    log_q = torch.log_softmax(student / TEMPERATURE, -1)
    log_q = log_q if ids is None else log_q.gather(-1, ids[counts])
    divergence = (p * (p.log() - log_q)).sum(-1).mean()
    return (1 - ALPHA) * torch.nn.functional.cross_entropy(student, labels) + ALPHA * TEMPERATURE**2 * divergence


def theirs(folder, inputs, labels, teacher, ids):
    model = transformers.LlamaForCausalLM.from_pretrained(folder / "student")
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    losses = []
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        loss = distilled(model(inputs[rows]).logits, labels[rows], teacher[rows], None if ids is None else ids[rows])
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def ours(folder, data, plan):
    run("run", folder / "student.yaml", "precision=fp32", "launch.device=cpu", f"launch.log_dir={folder / 'runs'}", f"dataset={data}",
        f"loss={{type: distillation, temperature: {TEMPERATURE}, alpha: {ALPHA}, ignore_index: {IGNORED}}}",
        f"optimizer={{type: sgd, learning_rate: {LEARNING_RATE}, momentum: {MOMENTUM}}}", f"train={{steps: {STEPS}}}", *plan)
    latest = max((folder / "runs").glob("[0-9]*"), key=lambda each: int(each.name))
    rows = [json.loads(line) for line in (latest / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "kind" not in row and "loss" in row]


def main(folder):
    samples = STEPS * BATCH
    ids = np.random.default_rng(3).integers(0, VOCAB, (samples, LENGTH + 1)).astype(np.int32)
    inputs, labels = ids[:, :-1], ids[:, 1:]
    teacher_model = model_in(folder / "teacher", 96)
    model_in(folder / "student", 48)
    for name in ("teacher", "student"):
        run("init", "--from", folder / name, "-o", folder / f"{name}.yaml")
    np.savez(folder / "tokens.npz", x=inputs, y=labels)
    data = f"{{type: npz, path: {folder / 'tokens.npz'}, fields: {{data: x, label: y}}, batch: {BATCH}, shuffle: false}}"
    run("predict", folder / "teacher.yaml", "--layer", "head", "-o", folder / "logits.npy", "precision=fp32", "launch.device=cpu",
        f"dataset={data}", f"validation={{dataset: {{path: {folder / 'tokens.npz'}}}}}")
    logits = np.load(folder / "logits.npy").reshape(samples, LENGTH, VOCAB)
    with torch.no_grad():
        off = np.abs(logits - teacher_model(torch.tensor(inputs, dtype=torch.long)).logits.numpy()).max()
    print(f"predict writes the teacher's logits within {off:.1e}")
    assert off < TOLERANCE
    top = np.argsort(-logits, axis=-1)[:, :, :TOP].astype(np.int32)
    cases = {"all classes": (logits, None), f"{TOP} largest": (np.take_along_axis(logits, top, -1), top)}
    for case, (teacher, numbers) in cases.items():
        arrays = dict(x=inputs, y=labels, teacher=teacher) | ({} if numbers is None else dict(numbers=numbers))
        np.savez(folder / "distill.npz", **arrays)
        fields = "data: x, label: y, teacher_logits: teacher" + ("" if numbers is None else ", teacher_ids: numbers")
        data = f"{{type: npz, path: {folder / 'distill.npz'}, fields: {{{fields}}}, batch: {BATCH}, shuffle: false}}"
        as_long = [torch.tensor(each, dtype=torch.long) for each in (inputs, labels)]
        expected = theirs(folder, *as_long, torch.tensor(teacher), None if numbers is None else torch.tensor(numbers, dtype=torch.long))
        for plan, words in PLANS.items():
            found = ours(folder, data, words)
            off = max(abs(a - b) for a, b in zip(found, expected))
            print(f"{case}, {plan}: losses within {off:.1e} of {expected[0]:.4f} to {expected[-1]:.4f}")
            assert len(found) == STEPS and off < TOLERANCE, (found, expected)


with tempfile.TemporaryDirectory() as temporary:
    main(pathlib.Path(temporary))
