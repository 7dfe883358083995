#!/usr/bin/env python3
"""finetune_test.py TRAINCTL [FAMILY ...]: `init --from DIR --finetune` for each family of model folders.

transformers writes a small random model. The job that init writes for chat and for text (or, for encoders, for a classifier) is valid, can be
planned, and trains as it is on two ranks, from the weights of the folder.

Exits with 77 (Skipped) without PyTorch or transformers."""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import zlib

SKIPPED = 77

try:
    import torch
    import transformers
except ImportError as error:
    for environment in ("build/peers/bin/python3",):
        python = pathlib.Path(__file__).resolve().parents[2] / environment
        if python.exists() and pathlib.Path(sys.executable) != python:
            sys.exit(subprocess.run([python, *sys.argv], check=False).returncode)
    print(f"SKIPPED: {sys.executable} has no {error.name}; ./bootstrap peers installs it")
    sys.exit(SKIPPED)

TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
TALKS, VOCAB = 24, 320
CPU = ["precision=fp32", "launch.device=cpu", "launch.ranks=2", "parallel.mode=data_parallel"]
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
SIZES = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
             max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0)
WINDOWS = dict(head_dim=16, query_pre_attn_scalar=24, sliding_window=8)
ENCODER = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6)
t = transformers
DECODERS = {
    "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(vocab_size=VOCAB, n_positions=128, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0,
                                                   attn_pdrop=0)),
    "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**SIZES)),
    "smollm": lambda: t.LlamaForCausalLM(t.LlamaConfig(**SIZES, tie_word_embeddings=True, head_dim=16)),
    "mistral": lambda: t.MistralForCausalLM(t.MistralConfig(**SIZES, sliding_window=8)),
    "qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**SIZES)),
    "qwen3": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**SIZES, head_dim=16)),
    "mixtral": lambda: t.MixtralForCausalLM(t.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)),
    "qwen3_moe": lambda: t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(**SIZES, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)),
    "olmoe": lambda: t.OlmoeForCausalLM(t.OlmoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2)),
    "gemma2": lambda: t.Gemma2ForCausalLM(t.Gemma2Config(**SIZES, **WINDOWS)),
    "gemma3": lambda: t.Gemma3ForCausalLM(t.Gemma3TextConfig(**SIZES, **WINDOWS, layer_types=["sliding_attention", "full_attention"])),
    "phi3": lambda: t.Phi3ForCausalLM(t.Phi3Config(**SIZES)),
}
BERT = dict(vocab_size=VOCAB, max_position_embeddings=128, **ENCODER)
VIT = dict(image_size=16, patch_size=8, **ENCODER)
ENCODERS = {
    "bert": lambda: t.BertModel(t.BertConfig(**BERT)),
    "bert_masked": lambda: t.BertForMaskedLM(t.BertConfig(**BERT)),
    "bert_classifier": lambda: t.BertForSequenceClassification(t.BertConfig(**BERT, num_labels=3)),
    "bert_other_classes": lambda: t.BertForSequenceClassification(t.BertConfig(**BERT, num_labels=5)),
    "vit": lambda: t.ViTModel(t.ViTConfig(**VIT)),
    "vit_classifier": lambda: t.ViTForImageClassification(t.ViTConfig(**VIT, num_labels=3)),
    "vit_other_classes": lambda: t.ViTForImageClassification(t.ViTConfig(**VIT, num_labels=5)),
}


def run(folder, *words, code=0):
    done = subprocess.run([TRAINCTL, *map(str, words)], cwd=folder, capture_output=True, text=True, timeout=600)
    said = done.stdout + done.stderr
    assert done.returncode == code, f"{' '.join(map(str, words))}\nexit code {done.returncode}\n{said}"
    return said


def metrics(folder, log_dir):
    return [json.loads(line) for line in (folder / log_dir / "1" / "metrics.jsonl").read_text().splitlines()]


def trains(folder, job, *more):
    """The job is valid, can be planned, and trains all of its epochs."""
    run(folder, "check", job, *CPU, *more)
    run(folder, "plan", job, *CPU, *more)
    run(folder, "run", job, *CPU, f"launch.log_dir=runs_{job}", "train.log_every=1", *more)
    losses = [row["loss"] for row in metrics(folder, f"runs_{job}") if "run_step" in row and "loss" in row and "kind" not in row]
    assert len(losses) >= 3 and all(loss == loss and loss < 50 for loss in losses), losses
    return losses


def make_folder(folder, model):
    model().save_pretrained(folder / "hf")
    (folder / "corpus.txt").write_text("".join(f"What follows {i}? It is {i + 1}.\n" for i in range(200)))
    run(folder, "data", "train-tokenizer", "corpus.txt", "--vocab", VOCAB, "--special", "<|im_start|>", "<|im_end|>", "-o", "hf")
    (folder / "hf" / "chat_template.jinja").write_text(TEMPLATE)


def decoder(folder, name):
    make_folder(folder, DECODERS[name])
    for file, first in (("talks.jsonl", 0), ("held_out.jsonl", TALKS)):
        rows = [dict(messages=[dict(role="user", content=f"What follows {i}?"), dict(role="assistant", content=f"It is {i + 1}.")])
                for i in range(first, first + TALKS)]
        (folder / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "texts.jsonl").write_text("".join(json.dumps(dict(text=f"What follows {i}? It is {i + 1}.")) + "\n" for i in range(TALKS)))
    run(folder, "init", "--from", "hf", "--finetune", "chat", "--data", "talks.jsonl", "--validation", "held_out.jsonl", "-o", "tune.yaml")
    losses = trains(folder, "tune.yaml", "dataset.batch=2", "optimizer.learning_rate=0.01", "vars.length=64")
    assert losses[-1] < losses[0], losses
    assert any(row.get("kind") == "validation" for row in metrics(folder, "runs_tune.yaml"))
    assert "pack: true" in (folder / "tune.yaml").read_text()
    said = run(folder, "checkpoint", "export", "best", "--log-dir", "runs_tune.yaml", "--map", "auto", "-o", "tuned/")
    best = min((row for row in metrics(folder, "runs_tune.yaml") if row.get("kind") == "validation"), key=lambda row: row["loss"])
    assert f"of step {best['run_step']}," in said and (folder / "tuned" / "config.json").exists(), (said, best)
    run(folder, "init", "--from", "hf", "--finetune", "text", "--data", "texts.jsonl", "-o", "text.yaml")
    trains(folder, "text.yaml", "dataset.batch=2", "vars.length=32")
    said = run(folder, "init", "--from", "hf", "--finetune", "classifier", "--data", "texts.jsonl", code=3)
    assert "has no class in the field 'label'" in said, said


def write_png(path, value):
    """An image of 16 x 16 pixels of one color."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes([value, 255 - value, value // 2]) * 16 for _ in range(16))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def encoder(folder, name):
    make_folder(folder, ENCODERS[name])
    data = "texts.jsonl"
    if name.startswith("vit"):
        data = "photos"
        for i in range(60):
            write_png(folder / "photos" / f"class{i % 3}" / f"{i}.png", 4 * i)
    else:
        rows = [dict(text=" ".join(["What", "follows", "It"][i % 3:]) + f" {i}", label=i % 3) for i in range(48)]
        (folder / data).write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(folder, "init", "--from", "hf", "--finetune", "classifier", "--data", data, "-o", "tune.yaml")
    text = (folder / "tune.yaml").read_text()
    assert "classes: 3" in text and ("partial: true" in text) == (name not in ("bert_classifier", "vit_classifier")), text
    trains(folder, "tune.yaml", "dataset.batch=8", "optimizer.learning_rate=0.001")
    run(folder, "checkpoint", "export", "runs_tune.yaml/1", "--map", "auto", "-o", "tuned/")
    kept = json.loads((folder / "tuned" / "config.json").read_text())
    labels = transformers.AutoConfig.from_pretrained(str(folder / "tuned")).id2label
    assert labels == {i: f"LABEL_{i}" for i in range(3)} and len(kept["label2id"]) == 3 and "num_labels" not in kept, kept
    said = run(folder, "init", "--from", "hf", "--finetune", "chat", "--data", data, code=2)
    assert "use --finetune classifier" in said, said


def main():
    torch.manual_seed(1)
    transformers.logging.set_verbosity_error()
    for name in sys.argv[2:] or [*DECODERS, *ENCODERS]:
        with tempfile.TemporaryDirectory() as scratch:
            (decoder if name in DECODERS else encoder)(pathlib.Path(scratch), name)
        print(f"{name}: fine-tuned by the job of init", flush=True)


main()
