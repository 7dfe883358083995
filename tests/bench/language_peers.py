#!/usr/bin/env python3
"""Peers in PyTorch of text generation and of mixtures of experts, on one GPU.

  language_peers.py folder DIR           a model folder of Llama 8B's shape with random weights, 16 GB; add a tokenizer.json
  language_peers.py generate --batch 32  transformers, static cache, compiled: 64 tokens of prompt, 128 new ones
  language_peers.py experts --batch 2    4 layers of Qwen3-30B-A3B's widths: grouped_mm, compiled blocks, fused AdamW on f32 weights

Trainctl's side: `trainctl init --from DIR`, then `trainctl generate JOB --prompts FILE --json dataset.batch=32` with four batches of prompts, timed
between the ends of batches; and `trainctl run tests/bench/jobs/qwen_moe.yaml`."""

import argparse
import json
import pathlib
import statistics
import struct
import time

import torch
from torch import nn
from torch.nn import functional as F

LLAMA = dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
             max_position_embeddings=8192, bos_token_id=1)


def timed(run, times):
    seconds = []
    for _ in range(times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds


def report(seconds, tokens):
    middle = statistics.median(seconds)
    print(f"{middle * 1e3:.1f} ms [{min(seconds) * 1e3:.1f} .. {max(seconds) * 1e3:.1f}], {tokens / middle:.0f} tokens/s, "
          f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


def make_folder(folder):
    d, hidden, kv, vocab = LLAMA["hidden_size"], LLAMA["intermediate_size"], LLAMA["num_key_value_heads"] * 128, LLAMA["vocab_size"]
    folder.mkdir(parents=True, exist_ok=True)
    config = dict(LLAMA, architectures=["LlamaForCausalLM"], model_type="llama", head_dim=128, rms_norm_eps=1e-5, rope_theta=500000.0,
                  hidden_act="silu", tie_word_embeddings=False, torch_dtype="bfloat16", attention_bias=False, mlp_bias=False, eos_token_id=2)
    (folder / "config.json").write_text(json.dumps(config))
    block = {"input_layernorm": [d], "post_attention_layernorm": [d], "self_attn.q_proj": [d, d], "self_attn.k_proj": [kv, d],
             "self_attn.v_proj": [kv, d], "self_attn.o_proj": [d, d], "mlp.gate_proj": [hidden, d], "mlp.up_proj": [hidden, d],
             "mlp.down_proj": [d, hidden]}
    shapes = {"model.embed_tokens.weight": [vocab, d], "model.norm.weight": [d], "lm_head.weight": [vocab, d]}
    for layer in range(LLAMA["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in block.items()}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * torch.Size(shape).numel()
        header[name] = dict(dtype="BF16", shape=shape, data_offsets=[at, at + size])
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            values = torch.randn(shape, device="cuda", dtype=torch.bfloat16) * 0.02 if len(shape) > 1 else torch.ones(shape, dtype=torch.bfloat16)
            file.write(memoryview(values.view(torch.uint8).cpu().numpy().reshape(-1)))


def generate(batch):
    import transformers
    config = transformers.LlamaConfig(**LLAMA, rope_theta=500000.0, eos_token_id=None, pad_token_id=0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model = model.to_empty(device="cuda").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02) if parameter.ndim > 1 else parameter.fill_(1)
        model.model.rotary_emb.__init__(config=config, device="cuda")
    model.generation_config.eos_token_id = None
    ids = torch.randint(5, 250, (batch, 64), device="cuda")

    def run():
        with torch.no_grad():
            model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=128, min_new_tokens=128, do_sample=False,
                           cache_implementation="static", pad_token_id=0)

    timed(run, 2)
    report(timed(run, 4), batch * 128)


T, D, HEADS, KV_HEADS, HEAD, EXPERTS, TOP, HIDDEN, VOCAB, LAYERS = 4096, 2048, 32, 4, 128, 128, 8, 768, 151936, 4
HALF = torch.bfloat16


def parameter(*shape):
    return nn.Parameter(torch.randn(*shape, device="cuda") * 0.02)


def ones():
    return nn.Parameter(torch.ones(D, device="cuda"))


def norm(x, weight):
    return F.rms_norm(x, (D,), weight.to(HALF), 1e-6)


class Block(nn.Module):
    def __init__(self, cos, sin):
        super().__init__()
        self.cos, self.sin = cos, sin
        self.norm1, self.norm2 = ones(), ones()
        self.qkv, self.proj = parameter(HEAD * (HEADS + 2 * KV_HEADS), D), parameter(D, HEADS * HEAD)
        self.router, self.up, self.down = parameter(EXPERTS, D), parameter(EXPERTS, 2 * HIDDEN, D), parameter(EXPERTS, D, HIDDEN)

    def turned(self, x):
        u, v = x.chunk(2, -1)
        return torch.cat((u * self.cos - v * self.sin, v * self.cos + u * self.sin), -1).transpose(1, 2)

    def attention(self, x):
        y = F.linear(norm(x, self.norm1), self.qkv.to(HALF))
        q, k, v = (part.unflatten(-1, (-1, HEAD)) for part in y.split([HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD], -1))
        out = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v.transpose(1, 2), is_causal=True, enable_gqa=True)
        return F.linear(out.transpose(1, 2).flatten(2), self.proj.to(HALF))

    def forward(self, x):
        x = x + self.attention(x)
        y = norm(x, self.norm2).flatten(0, 1)
        p = F.linear(y, self.router.to(HALF)).float().softmax(-1)
        weights, ids = p.topk(TOP, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        order = ids.flatten().argsort(stable=True)
        counts = (ids.unsqueeze(-1) == torch.arange(EXPERTS, device="cuda")).sum((0, 1))
        ends = counts.cumsum(0).to(torch.int32)
        gate, up = F.grouped_mm(y[order // TOP], self.up.to(HALF).transpose(-2, -1), offs=ends).chunk(2, -1)
        z = F.grouped_mm(F.silu(gate) * up, self.down.to(HALF).transpose(-2, -1), offs=ends)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel(), device="cuda")
        z = (z[back].view(-1, TOP, D) * weights.to(HALF).unsqueeze(-1)).sum(1)
        balance = EXPERTS * ((counts / y.shape[0]).detach() * p.mean(0)).sum()
        return x + z.view_as(x), balance


def experts(batch):
    torch.manual_seed(1)
    angles = torch.outer(torch.arange(T, device="cuda").float(), 1e6 ** (-torch.arange(0, HEAD, 2, device="cuda").float() / HEAD))
    cos, sin = angles.cos().to(HALF)[None, :, None], angles.sin().to(HALF)[None, :, None]
    table, head, last_norm = parameter(VOCAB, D), parameter(VOCAB, D), ones()
    blocks = nn.ModuleList(Block(cos, sin) for _ in range(LAYERS))
    compiled = [torch.compile(block, fullgraph=True) for block in blocks]
    parameters = [table, head, last_norm, *blocks.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    x, labels = torch.randint(0, VOCAB, (batch, T), device="cuda"), torch.randint(0, VOCAB, (batch, T), device="cuda")

    @torch.compile
    def loss_of(y):
        return F.cross_entropy(F.linear(norm(y, last_norm), head.to(HALF)).float().flatten(0, 1), labels.flatten())

    def step():
        y, balance = F.embedding(x, table).to(HALF), 0
        for block in compiled:
            y, of_block = block(y)
            balance = balance + of_block
        (loss_of(y) + 0.001 * balance).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    timed(step, 7)
    report(timed(step, 10), batch * T)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["folder", "generate", "experts"])
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()
    if options.what == "folder":
        make_folder(options.folder)
    else:
        {"generate": generate, "experts": experts}[options.what](options.batch)


main()
