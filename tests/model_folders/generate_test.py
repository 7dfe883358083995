#!/usr/bin/env python3
"""generate_test.py TRAINCTL [FAMILY ...]: greedy texts equal those of transformers, token for token.

For each family, transformers writes a small random model, whose folder gets a tokenizer. `trainctl generate` and transformers' generate
then continue prompts of different lengths. The plans must give the tokens of one rank.

Exits with 77 (Skipped) without PyTorch or transformers."""

import json
import pathlib
import subprocess
import sys
import tempfile

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
VOCAB, TOKENS = 320, 24
LINES = [f"The {a} {b} sees {n} {c} of the sea." for n, (a, b, c) in enumerate(
    [("old", "man", "fish"), ("small", "boat", "waves"), ("grey", "cat", "birds"), ("quiet", "child", "stones")] * 4)]
# One token, a few, more than a window of 8, and more than a chunk of 64 tokens.
PROMPTS = ["T", "The old man", "The small boat sees 5 waves of", " ".join(LINES[:4])]
SIZES = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=4, num_attention_heads=6,
             num_key_value_heads=2, max_position_embeddings=256)
SPECIAL = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)
FIELDS = ["precision=fp32", "launch.device=cpu"]
torch.manual_seed(1)
torch.set_num_threads(2)
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

PACKED = "{'h.*.qkv': [[1, 1, 1], [2, 1]BIAS], 'h.*.proj': [[1, 1, 2], [1, 2]PROJ]}"
APART = "{'h.*.q': [[1, 1, 1], [2, 1]BIAS], 'h.*.k': [[1, 1, 1], [2, 1]BIAS], 'h.*.v': [[1, 1, 1], [2, 1]BIAS]}"


def run(folder, *words, expect=0):
    done = subprocess.run([TRAINCTL, *map(str, words)], capture_output=True, text=True, timeout=900, cwd=folder)
    assert done.returncode == expect, f"{' '.join(map(str, words))}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout if expect == 0 else done.stderr


def make_folder(model, folder):
    # With usual initial weights, or a tied table as large as the other weights, the texts repeat one token.
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            is_tied = "embed" in name and model.config.tie_word_embeddings
            torch.nn.init.normal_(parameter, std=0.03 if is_tied else 0.25)
    model = model.eval().float()
    model.save_pretrained(folder / "hf")
    (folder / "lines.txt").write_text("\n".join(LINES) + "\n")
    run(folder, "data", "train-tokenizer", "lines.txt", "--vocab", VOCAB, "--special", "<pad>", "<s>", "</s>", "-o", "hf")
    run(folder, "init", "--from", "hf", "-o", "job.yaml")
    (folder / "prompts.txt").write_text("\n".join(PROMPTS) + "\n")
    return model


def generated(folder, *words):
    lines = run(folder, "generate", "job.yaml", "--prompts", "prompts.txt", "--json", "--max-tokens", TOKENS, *words, *FIELDS)
    return [json.loads(line) for line in lines.splitlines()]


def expected(model, folder):
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "hf" / "tokenizer.json"))
    texts = []
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS)
        texts.append(out[0, ids.shape[1]:].tolist())
    return texts


def decoder(model, folder, strategies=PACKED, bias="", proj=""):
    model = make_folder(model, folder)
    theirs, ours = expected(model, folder), generated(folder)
    for prompt, a, b in zip(PROMPTS, ours, theirs):
        assert a["tokens"] == b, f"{prompt!r}\n  trainctl     {a['tokens']}\n  transformers {b}"
    assert max(len(set(text)) for text in theirs) > 5, f"the texts should not repeat one token: {theirs}"
    cuts = strategies.replace("BIAS", bias).replace("PROJ", proj)
    plans = {"data": ["launch.ranks=2", "parallel={mode: data_parallel}"],
             "tensor": ["launch.ranks=2", f"parallel={{mode: semi_auto_parallel, strategies: {cuts}}}"],
             "pipeline": ["launch.ranks=2", "parallel={mode: semi_auto_parallel, stages: 2}"],
             "tensor and pipeline": ["launch.ranks=4", f"parallel={{mode: semi_auto_parallel, stages: 2, strategies: {cuts}}}"]}
    for name, words in plans.items():
        assert [text["tokens"] for text in generated(folder, *words)] == [text["tokens"] for text in ours], name
    print(f"  {sum(map(len, theirs))} tokens, {len(plans)} plans")


def gpt2(folder):
    config = transformers.GPT2Config(vocab_size=VOCAB, n_positions=256, n_embd=48, n_layer=4, n_head=4, **SPECIAL)
    decoder(transformers.GPT2LMHeadModel(config), folder, bias=", [2]", proj=", [1]")


def llama(folder):
    decoder(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **SPECIAL)), folder)


def llama3(folder):
    scaling = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=16)
    decoder(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **SPECIAL, rope_parameters=scaling)), folder)


def mistral(folder):
    decoder(transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, **SPECIAL, sliding_window=8)), folder)


def qwen2(folder):
    decoder(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES, **SPECIAL)), folder, bias=", [2]")


def qwen3(folder):
    decoder(transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, **SPECIAL, head_dim=16)), folder, APART)


EXPERTS = ", 'h.*.moe': [[1, 1, 1], [1, 1], [2, 1, 1, 1], [2, 1, 1]]}"


def mixtral(folder):
    config = transformers.MixtralConfig(**SIZES, **SPECIAL, num_local_experts=4, num_experts_per_tok=2, sliding_window=8)
    decoder(transformers.MixtralForCausalLM(config), folder, PACKED[:-1] + EXPERTS)


def qwen3_moe(folder):
    config = transformers.Qwen3MoeConfig(**SIZES, **SPECIAL, head_dim=16, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24)
    decoder(transformers.Qwen3MoeForCausalLM(config), folder, APART[:-1] + EXPERTS)


def olmoe(folder):
    config = transformers.OlmoeConfig(**SIZES, **SPECIAL, num_experts=8, num_experts_per_tok=3)
    decoder(transformers.OlmoeForCausalLM(config), folder, APART[:-1] + EXPERTS)


def gpt_oss(folder):
    rope = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                original_max_position_embeddings=64)
    sizes = {**SIZES, "intermediate_size": 32, "head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 3, "sliding_window": 8,
             "layer_types": ["sliding_attention", "full_attention"] * 2}
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**sizes, **SPECIAL, rope_parameters=rope))
    for name, parameter in model.named_parameters():
        if name.endswith(("sinks", "bias")):
            torch.nn.init.normal_(parameter, std=0.5)
    decoder(model, folder, PACKED[:-1] + ", 'h.*.moe': [[1, 1, 1], [1, 1], [1], [2, 1, 1, 1], [2, 1, 1], [2, 1, 1], [2, 1]]}",
            bias=", [2]", proj=", [1]")


def deepseek_v2(folder):
    config = transformers.DeepseekV2Config(**{**SIZES, "num_key_value_heads": 6}, **SPECIAL, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4,
                                           v_head_dim=10, q_lora_rank=None, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=24,
                                           n_shared_experts=1, first_k_dense_replace=1)
    decoder(transformers.DeepseekV2ForCausalLM(config), folder,
            "{'h.*.q': [[1, 1, 1], [2, 1]], 'h.*.kv_up': [[1, 1, 1], [2, 1]]" + EXPERTS)


def gemma2(folder):
    config = transformers.Gemma2Config(**SIZES, **SPECIAL, head_dim=16, query_pre_attn_scalar=24, sliding_window=8)
    decoder(transformers.Gemma2ForCausalLM(config), folder)


def gemma3(folder):
    config = transformers.Gemma3TextConfig(**SIZES, **SPECIAL, head_dim=16, query_pre_attn_scalar=24, sliding_window=8,
                                           layer_types=["sliding_attention", "full_attention"] * 2)
    decoder(transformers.Gemma3ForCausalLM(config), folder, APART)


def phi3(folder):
    decoder(transformers.Phi3ForCausalLM(transformers.Phi3Config(**SIZES, **SPECIAL)), folder)


FAMILIES = {each.__name__: each for each in (gpt2, llama, llama3, mistral, qwen2, qwen3, mixtral, qwen3_moe, olmoe, gpt_oss, deepseek_v2, gemma2, gemma3,
                                              phi3)}


def main():
    for name in sys.argv[2:] or FAMILIES:
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            FAMILIES[name](pathlib.Path(scratch))
    print("the tokens of transformers, under every plan")


main()
