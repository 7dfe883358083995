#!/usr/bin/env python3
"""dpo_test.py TRAINCTL: the losses of dpo with adapters are those of TRL's DPOTrainer, under every plan.

DPOTrainer trains new adapters of a small random Llama on pairs of answers. A job that starts from the same adapters has the same losses, on one
rank and on two and four ranks.

Exits with 77 (Skipped) without PyTorch, transformers, PEFT, TRL or datasets."""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from limits import limit  # noqa: E402

SKIPPED = 77

try:
    import datasets
    import peft
    import torch
    import transformers
    import trl
except ImportError as error:
    python = pathlib.Path(__file__).resolve().parents[2] / "build/peers/bin/python3"
    if python.exists() and pathlib.Path(sys.executable) != python:
        sys.exit(subprocess.run([python, *sys.argv], check=False).returncode)
    print(f"SKIPPED: {sys.executable} has no {error.name}")
    sys.exit(SKIPPED)

TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
TOLERANCE = limit(1e-5)
PAIRS, STEPS, VOCAB, RANK, ALPHA, BETA, RATE = 8, 5, 320, 4, 8, 0.3, 0.01
ANSWERS = [("blue", "green like grass"), ("grey and cold", "red"), ("deep", "shallow as a plate"), ("calm tonight", "made of stone")] * 2
ROWS = [{"prompt": f"The sea number {n} is", "chosen": " " + a, "rejected": " " + b} for n, (a, b) in enumerate(ANSWERS)]
PLANS = {
    "one rank": [],
    "level 3": ["launch.ranks=4", "parallel={mode: data_parallel, optimizer_shard: {level: 3, min_kb: 0}}"],
    "tensor parallel": ["launch.ranks=2", "parallel={mode: semi_auto_parallel, strategies: {'h.*.qkv': [[1, 1, 1], [2, 1]], "
                        "'h.*.proj': [[1, 1, 2], [1, 2]]}}"],
    "2 stages, 2 micro-batches": ["launch.ranks=4", "parallel={mode: semi_auto_parallel, stages: 2, micro_batches: 2}"],
}
torch.manual_seed(1)
torch.set_num_threads(2)
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
datasets.disable_progress_bars()


def run(folder, *words):
    done = subprocess.run([TRAINCTL, *map(str, words)], capture_output=True, text=True, timeout=900, cwd=folder)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"


TOKENS = dict(vocab_size=VOCAB, bos_token_id=1, eos_token_id=2, pad_token_id=0)
# By family: the model, the modules with adapters, and the layers that are those modules here.
MODELS = {
    "llama": (lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **TOKENS, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=128)),
              ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], "'h.*.qkv', 'h.*.proj', 'h.*.gate', 'h.*.up', 'h.*.down'"),
    "gpt2": (lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        **TOKENS, n_positions=128, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)),
             ["c_attn", "c_proj", "c_fc"], "'h.*.qkv', 'h.*.proj', 'h.*.up', 'h.*.down'"),
}


def make_folders(folder, family):
    """A model with a tokenizer."""
    model = MODELS[family][0]()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder / "hf")
    (folder / "lines.txt").write_text("".join(row["prompt"] + row["chosen"] + row["rejected"] + "\n" for row in ROWS))
    run(folder, "data", "train-tokenizer", "lines.txt", "--vocab", VOCAB, "--special", "<pad>", "<s>", "</s>", "-o", "hf")
    (folder / "hf" / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "pad_token": "<pad>"}))
    return model


def tie(adapted, family):
    """One layer of the job makes q, k and v of a Llama, from one A."""
    if family != "llama":
        return
    for block in adapted.base_model.model.model.layers:
        first, *others = [getattr(block.self_attn, name).lora_A["default"] for name in ("q_proj", "k_proj", "v_proj")]
        for other in others:
            other.weight = first.weight


def theirs(model, folder, family):
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "hf" / "tokenizer.json"), eos_token="</s>", pad_token="<pad>")
    arguments = trl.DPOConfig(output_dir=str(folder / "trl"), per_device_train_batch_size=PAIRS, max_steps=STEPS, learning_rate=RATE, beta=BETA,
                              lr_scheduler_type="constant", logging_steps=1, max_grad_norm=0, report_to=[], use_cpu=True, bf16=False,
                              gradient_checkpointing=False, save_strategy="no", weight_decay=0.0, disable_tqdm=True)
    modules = MODELS[family][1]
    trainer = trl.DPOTrainer(model=model, args=arguments, train_dataset=datasets.Dataset.from_list(ROWS), processing_class=tokenizer,
                             peft_config=peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=modules, lora_dropout=0.0))
    tie(trainer.model, family)
    trainer.model.save_pretrained(folder / "adapters")
    losses = []

    class Record(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            if "loss" in logs:
                losses.append(float(logs["loss"]))

    trainer.add_callback(Record())
    trainer.train()
    return losses


def ours(folder, family, number, *plan):
    data = f"{{type: preference, path: pairs.jsonl, tokenizer: hf, length: 64, batch: {PAIRS}, shuffle: false}}"
    lora = f"{{layers: [{MODELS[family][2]}], rank: {RANK}, alpha: {ALPHA}, from: adapters}}"
    run(folder, "run", "job.yaml", f"dataset={data}", f"loss={{type: dpo, beta: {BETA}}}", f"adapters={{lora: {lora}}}", "precision=fp32",
        "launch.device=cpu", f"train={{steps: {STEPS}, log_every: 1, checkpoint: none}}", f"launch.log_dir=runs_{number}",
        f"optimizer={{type: adamw, learning_rate: {RATE}, weight_decay: 0}}", *plan)
    rows = [json.loads(line) for line in (folder / f"runs_{number}/1/metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "kind" not in row and "loss" in row]


def compare(family):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        model = make_folders(folder, family)
        run(folder, "init", "--from", "hf", "--finetune", "dpo", "--data", "pairs.jsonl", "-o", "job.yaml")
        expected = theirs(model, folder, family)
        assert len(expected) == STEPS and abs(expected[-1] - expected[0]) > 1e-3, expected
        for number, (plan, words) in enumerate(PLANS.items()):
            losses = ours(folder, family, number, *words)
            assert len(losses) == STEPS, losses
            off = max(abs(a - b) for a, b in zip(losses, expected))
            print(f"{family}, {plan}: losses within {off:.1e} of TRL's {expected[0]:.4f} to {expected[-1]:.4f}")
            assert off < TOLERANCE, (losses, expected)


for chosen in sys.argv[2:] or MODELS:
    compare(chosen)
