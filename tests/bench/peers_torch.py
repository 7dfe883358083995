#!/usr/bin/env python3
"""Training steps in PyTorch that beside_torch.py measures trainctl against: compiled, bf16, SDPA, fused AdamW.

  peers_torch.py lora      PEFT adapters of rank 16 on all products of a Llama of transformers; blocks and loss compiled. The adapters are
                           f32 under autocast, as PEFT makes them, or with BF16_ADAPTERS=1 bf16, which is faster and rounds their updates
  peers_torch.py vit       the network of configs/cookbook/vit.yaml, as ViT-B/16
  peers_torch.py unet      the network of configs/cookbook/unet.yaml, channels last
  torchrun --nproc-per-node 2 peers_torch.py context    a Llama under FSDP2 and torch's context_parallel; halves of blocks compiled;
                           with BACKEND=cudnn by cuDNN's attention, otherwise by flash attention
  torchrun --nproc-per-node 2 peers_torch.py experts    a mixture of experts as in torchtitan: grouped_mm, all_to_all of rows, one all_reduce; with
                           BALANCED=SPEED each expert has a bias that balances its load, as in DeepSeek-V3

--NAME VALUE sets a size. Rank 0 prints one line of JSON: the median of the steps in ms, the fastest, the slowest, and GiB of memory."""

import argparse
import json
import os
import statistics
import time

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F

SIZES = {
    "lora": dict(layers=32, heads=32, kv_heads=8, features=4096, hidden=14336, length=4096, vocab=128256, batch=2),
    "vit": dict(layers=12, heads=12, features=768, size=224, patch=16, classes=1000, batch=128),
    "unet": dict(width=64, size=256, batch=16),
    "context": dict(layers=4, heads=32, kv_heads=8, features=4096, hidden=14336, length=32768, vocab=32000, batch=1),
    "experts": dict(layers=16, heads=32, kv_heads=4, head=128, features=2048, hidden=768, experts=128, top_k=8, length=4096, vocab=151936, batch=4),
}
CUDA = torch.cuda.is_available()
RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
DEVICE = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if CUDA else torch.device("cpu")
HALF = torch.bfloat16


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


def measure(step, warm, steps, more=dict):
    """Steps run without a wait between them on the host's side; their times are those between events on the GPU. more() is printed too."""
    for _ in range(warm):
        step()
    synchronize()
    if CUDA:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        marks[0].record()
        for mark in marks[1:]:
            step()
            mark.record()
        synchronize()
        ms = [begin.elapsed_time(end) for begin, end in zip(marks, marks[1:])]
    else:
        ms = []
        for _ in range(steps):
            began = time.perf_counter()
            step()
            ms.append(1e3 * (time.perf_counter() - began))
    memory = torch.cuda.max_memory_allocated() / 2**30 if CUDA else 0
    if RANK == 0:
        print(json.dumps(dict(ms=statistics.median(ms), low=min(ms), high=max(ms), memory=memory, **more())), flush=True)


def tokens(c, batch=None):
    ids = torch.randint(0, c.vocab, (batch or c.batch, c.length + 1), device=DEVICE)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


@torch.compile
def head_loss(x, weight, labels):
    return F.cross_entropy(F.linear(x, weight).float().flatten(0, -2), labels.flatten())


def lora(c, warm, steps):
    import peft
    import transformers
    config = transformers.LlamaConfig(vocab_size=c.vocab, hidden_size=c.features, intermediate_size=c.hidden, num_hidden_layers=c.layers,
                                      num_attention_heads=c.heads, num_key_value_heads=c.kv_heads, max_position_embeddings=c.length,
                                      attn_implementation="sdpa", use_cache=False)
    torch.set_default_dtype(HALF)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model = model.to_empty(device=DEVICE)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.02) if weight.ndim > 1 else weight.fill_(1)
        model.model.rotary_emb = type(model.model.rotary_emb)(config).to(DEVICE)
    rounded = bool(os.environ.get("BF16_ADAPTERS"))
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=32, target_modules=targets), autocast_adapter_dtype=not rounded)
    torch.set_default_dtype(torch.float32)
    llama = adapted.get_base_model()
    for block in llama.model.layers:
        block.compile()
    trained = [weight for weight in adapted.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=CUDA)
    ids, labels = tokens(c)

    def step():
        with torch.autocast(DEVICE.type, HALF, enabled=not rounded):
            loss = head_loss(llama.model(input_ids=ids).last_hidden_state, llama.lm_head.weight, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    measure(step, warm, steps)


class VitBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.qkv, self.proj = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ln2, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        q, k, v = self.qkv(self.ln1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Vit(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.patches = nn.Conv2d(3, c.features, c.patch, c.patch)
        self.positions = nn.Parameter(0.02 * torch.randn((c.size // c.patch) ** 2, c.features))
        self.blocks = nn.Sequential(*(VitBlock(c.features, c.heads) for _ in range(c.layers)))
        self.ln, self.head = nn.LayerNorm(c.features), nn.Linear(c.features, c.classes)

    def forward(self, x):
        return self.head(self.ln(self.blocks(self.patches(x).flatten(2).transpose(1, 2) + self.positions)).mean(1))


def convs(before, channels):
    layers = []
    for inputs in (before, channels):
        layers += [nn.Conv2d(inputs, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*layers)


class Unet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down1, self.down2, self.middle = convs(1, width), convs(width, 2 * width), convs(2 * width, 4 * width)
        self.twice2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up2, self.up1, self.classes = convs(4 * width, 2 * width), convs(3 * width, width), nn.Conv2d(width, 4, 1)

    def forward(self, x):
        down1 = self.down1(x)
        down2 = self.down2(F.max_pool2d(down1, 2))
        up2 = self.up2(torch.cat([down2, self.twice2(self.middle(F.max_pool2d(down2, 2)))], 1))
        return self.classes(self.up1(torch.cat([down1, F.interpolate(up2, scale_factor=2, mode="bilinear")], 1)))


def unet_loss(y, labels):
    y = y.float()
    p, g = y.softmax(1), F.one_hot(labels, 4).permute(0, 3, 1, 2)
    dice = (1 - (2 * (p * g).sum((2, 3)) + 1) / ((p + g).sum((2, 3)) + 1)).mean()
    return F.cross_entropy(y, labels) + 0.5 * dice


def train_images(net, loss, x, labels, optimizer, warm, steps):
    torch.backends.cudnn.benchmark = True

    @torch.compile
    def forward(x, labels):
        return loss(net(x), labels)

    def step():
        with torch.autocast(DEVICE.type, HALF):
            value = forward(x, labels)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    measure(step, warm, steps)


def vit(c, warm, steps):
    net = Vit(c).to(DEVICE)
    x, labels = torch.randn(c.batch, 3, c.size, c.size, device=DEVICE), torch.randint(0, c.classes, (c.batch,), device=DEVICE)
    train_images(net, F.cross_entropy, x, labels, torch.optim.AdamW(net.parameters(), lr=1e-3, fused=CUDA), warm, steps)


def unet(c, warm, steps):
    net = Unet(c.width).to(DEVICE, memory_format=torch.channels_last)
    x = torch.randn(c.batch, 1, c.size, c.size, device=DEVICE).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 4, (c.batch, c.size, c.size), device=DEVICE)
    train_images(net, unet_loss, x, labels, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=CUDA), warm, steps)


def angles(length, head, base):
    rates = base ** (-torch.arange(0, head, 2, device=DEVICE).float() / head)
    turns = torch.outer(torch.arange(length, device=DEVICE).float(), rates)
    return turns.cos().to(HALF), turns.sin().to(HALF)


def turned(x, cos, sin):
    """x [batch, rows, heads, features] -> [batch, heads, rows, features]; pairs are features i and i + half."""
    u, v = x.chunk(2, -1)
    cos, sin = cos[None, :, None], sin[None, :, None]
    return torch.cat((u * cos - v * sin, v * cos + u * sin), -1).transpose(1, 2)


class Before(nn.Module):
    """The part of a block before attention. Keys and values are repeated for each query head, as context_parallel needs it."""

    def __init__(self, c, head, repeat):
        super().__init__()
        self.parts, self.head, self.repeat = [c.heads * head, c.kv_heads * head, c.kv_heads * head], head, c.heads // c.kv_heads if repeat else 1
        self.norm, self.qkv = nn.RMSNorm(c.features, 1e-5), nn.Linear(c.features, sum(self.parts), bias=False)

    def forward(self, x, cos, sin):
        q, k, v = (part.unflatten(-1, (-1, self.head)) for part in self.qkv(self.norm(x)).split(self.parts, -1))
        q, k, v = turned(q, cos, sin), turned(k, cos, sin), v.transpose(1, 2)
        return q, k.repeat_interleave(self.repeat, 1), v.repeat_interleave(self.repeat, 1)


class After(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.proj, self.norm = nn.Linear(c.features, c.features, bias=False), nn.RMSNorm(c.features, 1e-5)
        self.gate, self.up = nn.Linear(c.features, c.hidden, bias=False), nn.Linear(c.features, c.hidden, bias=False)
        self.down = nn.Linear(c.hidden, c.features, bias=False)

    def forward(self, x, y):
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class LlamaBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.before, self.after = Before(c, c.features // c.heads, repeat=True), After(c)

    def forward(self, x, cos, sin):
        return self.after(x, F.scaled_dot_product_attention(*self.before(x, cos, sin), is_causal=True))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.table, self.blocks = nn.Embedding(c.vocab, c.features), nn.ModuleList(LlamaBlock(c) for _ in range(c.layers))
        self.norm, self.head = nn.RMSNorm(c.features, 1e-5), nn.Linear(c.features, c.vocab, bias=False)

    def forward(self, ids, cos, sin):
        x = self.table(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def context(c, warm, steps):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel
    mesh = init_device_mesh(DEVICE.type, (RANKS,))
    with DEVICE:
        net = Llama(c)
    how = dict(mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=HALF, reduce_dtype=torch.float32), reshard_after_forward=False)
    for block in net.blocks:
        block.before.compile()
        block.after.compile()
        fully_shard(block, **how)
    fully_shard(net, **how)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=CUDA)
    loss_of = torch.compile(lambda y, labels: F.cross_entropy(y.float().flatten(0, 1), labels.flatten()))
    ids, labels = tokens(c)
    cos, sin = angles(c.length, c.features // c.heads, 500000.0)

    def step():
        loss_of(net(ids, cos, sin), labels).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    buffers = [ids, labels, cos, sin]
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1, 1, 0, 0], no_restore_buffers=set(buffers)):
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION if os.environ.get("BACKEND") == "cudnn" else SDPBackend.FLASH_ATTENTION]):
            measure(step, warm, steps)


class MixedBlock(nn.Module):
    """Attention and router are compiled; experts are those of this rank, and rows travel by all_to_all."""

    def __init__(self, c):
        super().__init__()
        self.c, self.here = c, c.experts // RANKS
        self.before, self.proj = Before(c, c.head, repeat=False), nn.Linear(c.heads * c.head, c.features, bias=False)
        self.norm, self.router = nn.RMSNorm(c.features, 1e-6), nn.Linear(c.features, c.experts, bias=False)
        self.register_buffer("bias", torch.zeros(c.experts))
        self.up = nn.Parameter(0.02 * torch.randn(self.here, 2 * c.hidden, c.features))
        self.down = nn.Parameter(0.02 * torch.randn(self.here, c.features, c.hidden))
        self.attend, self.fused = torch.compile(self.attend), torch.compile(self.fused, dynamic=True)

    def attend(self, x, cos, sin):
        c = self.c
        q, k, v = self.before(x, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        y = self.norm(x).to(HALF).flatten(0, 1)
        p = self.router(y).float().softmax(-1)
        ids = (p + self.bias).topk(c.top_k, -1).indices
        weights = p.gather(-1, ids)
        weights = weights / weights.sum(-1, keepdim=True)
        order = ids.flatten().argsort(stable=True)
        counts = (ids.unsqueeze(-1) == torch.arange(c.experts, device=ids.device)).sum((0, 1))
        balance = c.experts * ((counts / y.shape[0]).detach() * p.mean(0)).sum()
        return x, y[order // c.top_k], weights.flatten()[order].to(HALF), order, counts, balance

    def fused(self, z):
        gate, up = z.chunk(2, -1)
        return F.silu(gate) * up

    def experts(self, rows, ends):
        up, down = (weight.to(HALF).transpose(-2, -1) for weight in (self.up, self.down))
        return F.grouped_mm(self.fused(F.grouped_mm(rows, up, offs=ends)), down, offs=ends)

    def forward(self, x, cos, sin):
        x, rows, weights, order, counts, balance = self.attend(x, cos, sin)
        self.load = counts
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)
        sent, by_rank = torch.stack([counts.view(RANKS, -1).sum(1), received.view(RANKS, -1).sum(1)]).tolist()
        exchange = torch.distributed._functional_collectives.all_to_all_single_autograd
        there = exchange(rows, by_rank, sent, dist.group.WORLD)
        owner = torch.arange(self.here, device=x.device).repeat(RANKS).repeat_interleave(received, output_size=sum(by_rank))
        sort = owner.argsort(stable=True)
        ends = received.view(RANKS, -1).sum(0).cumsum(0).to(torch.int32)
        back = torch.empty_like(sort)
        back[sort] = torch.arange(sort.numel(), device=x.device)
        y = exchange(self.experts(there[sort], ends)[back], sent, by_rank, dist.group.WORLD)
        return x + torch.zeros_like(x).flatten(0, 1).index_add_(0, order // self.c.top_k, y * weights[:, None]).view_as(x), balance


def experts(c, warm, steps):
    torch.manual_seed(1)
    with DEVICE:
        blocks = nn.ModuleList(MixedBlock(c) for _ in range(c.layers))
        table, norm, head = nn.Embedding(c.vocab, c.features), nn.RMSNorm(c.features, 1e-6), nn.Linear(c.features, c.vocab, bias=False)
    parameters = [*table.parameters(), *norm.parameters(), *head.parameters(), *blocks.parameters()]
    own = {id(weight) for block in blocks for weight in (block.up, block.down)}
    shared = [weight for weight in parameters if id(weight) not in own]
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=CUDA)
    cos, sin = angles(c.length, c.head, 1e6)
    ids, labels = tokens(c, c.batch // RANKS)
    speed, loads = float(os.environ.get("BALANCED", 0)), torch.ones(c.layers, c.experts, device=DEVICE)

    def step():
        with torch.autocast(DEVICE.type, HALF):
            x, balance = table(ids).to(HALF), 0
            for block in blocks:
                x, of_block = block(x, cos, sin)
                balance = balance + of_block
            loss = head_loss(norm(x), head.weight, labels) + 0.001 * balance
        (loss / RANKS).backward()
        flat = torch._utils._flatten_dense_tensors([weight.grad for weight in shared])
        dist.all_reduce(flat)
        torch._foreach_copy_([weight.grad for weight in shared], list(torch._utils._unflatten_dense_tensors(flat, shared)))
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loads.copy_(torch.stack([block.load for block in blocks]))
        if speed:
            dist.all_reduce(loads)
            for block, sign in zip(blocks, (loads.mean(-1, keepdim=True) - loads).sign()):
                block.bias.add_(sign, alpha=speed)

    measure(step, warm, steps, lambda: dict(max_load=(loads.amax(-1) / loads.mean(-1)).mean().item()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=SIZES)
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    for name in sorted({name for sizes in SIZES.values() for name in sizes}):
        parser.add_argument(f"--{name}", type=int)
    a = parser.parse_args()
    sizes = {name: getattr(a, name) or value for name, value in SIZES[a.what].items()}
    torch.set_float32_matmul_precision("high")
    if RANKS > 1:
        if CUDA:
            torch.cuda.set_device(DEVICE)
        dist.init_process_group("nccl" if CUDA else "gloo", **(dict(device_id=DEVICE) if CUDA else {}))
    {"lora": lora, "vit": vit, "unet": unet, "context": context, "experts": experts}[a.what](argparse.Namespace(**sizes), a.warm, a.steps)
    if RANKS > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
