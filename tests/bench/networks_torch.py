"""The PyTorch peers of lenet, gpt_text, gpt2, llama, moe, resnet50, vit and unet: a training step, data on the device.

  networks_torch.py lenet|gpt|llama|moe|resnet50|vit|unet [--device cuda] [--compile] [--threads N] [--batch B] [--steps N] [SIZES]

SIZES of gpt and llama: --layers --d --heads --length --vocab, of llama also --kv-heads --hidden, of moe also --experts --top-k; of vit --layers --d
--heads --size --patch --classes; of unet --d (its width) --size. On a GPU the forward
pass runs under bf16 autocast and images are channels last. Prints one JSON line: the median step in ms, the quartiles,
and the most memory: of the process on a CPU, of PyTorch's allocator on a GPU.
"""
import argparse, contextlib, json, resource, statistics, time

import torch
from torch import nn
from peers_torch import Unet, Vit, unet_loss
from torch.nn import functional as F


class Lenet(nn.Sequential):
    def __init__(self, a):
        super().__init__(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


class GptBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.ln1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(a.vocab, a.d), nn.Embedding(a.length, a.d)
        self.blocks = nn.ModuleList(GptBlock(a.d, a.heads) for _ in range(a.layers))
        self.ln, self.head = nn.LayerNorm(a.d), nn.Linear(a.d, a.vocab, bias=False)
        self.head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def rotated(x, cos, sin):
    """x [batch, heads, length, size]; pairs of an element of the first half and one of the second."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class LlamaBlock(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.size, self.heads, self.kv_heads = a.d // a.heads, a.heads, a.kv_heads
        self.norm1, self.norm2 = nn.RMSNorm(a.d, eps=1e-5), nn.RMSNorm(a.d, eps=1e-5)
        self.qkv = nn.Linear(a.d, self.size * (a.heads + 2 * a.kv_heads), bias=False)
        self.proj = nn.Linear(a.d, a.d, bias=False)
        self.gate, self.up = (nn.Linear(a.d, a.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(a.hidden, a.d, bias=False)

    def forward(self, x, cos, sin):
        parts = self.qkv(self.norm1(x)).unflatten(-1, (-1, self.size)).transpose(1, 2)
        q, k, v = parts.split((self.heads, self.kv_heads, self.kv_heads), 1)
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)
        y = F.scaled_dot_product_attention(rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True,
                                           enable_gqa=self.heads != self.kv_heads)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))

    def mlp(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class MixtureBlock(LlamaBlock):
    """Experts one after another, as transformers computes Mixtral; `balance` is the auxiliary loss of the last call."""

    def __init__(self, a):
        super().__init__(a)
        del self.gate, self.up, self.down
        self.top_k, self.router = a.top_k, nn.Linear(a.d, a.experts, bias=False)
        self.up = nn.Parameter(torch.empty(a.experts, 2 * a.hidden, a.d).uniform_(-a.d**-0.5, a.d**-0.5))
        self.down = nn.Parameter(torch.empty(a.experts, a.d, a.hidden).uniform_(-a.hidden**-0.5, a.hidden**-0.5))

    def mlp(self, x):
        rows = x.flatten(0, 1)
        p = self.router(rows).softmax(-1)
        weights, ids = p.topk(self.top_k, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        chosen = F.one_hot(ids, p.shape[1]).permute(2, 1, 0)
        self.balance = 0.01 * p.shape[1] * (chosen.sum((1, 2)) / len(rows) * p.mean(0)).sum()
        y = torch.zeros_like(rows)
        for e, of_expert in enumerate(chosen):
            slot, token = torch.where(of_expert)
            gate, up = F.linear(rows[token], self.up[e]).chunk(2, -1)
            y.index_add_(0, token, F.linear(F.silu(gate) * up, self.down[e]) * weights[token, slot, None])
        return y.view_as(x)


class Llama(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.table, self.head = nn.Embedding(a.vocab, a.d), nn.Linear(a.d, a.vocab, bias=False)
        self.blocks, self.norm = nn.ModuleList((MixtureBlock if a.network == "moe" else LlamaBlock)(a) for _ in range(a.layers)), nn.RMSNorm(a.d, eps=1e-5)
        nn.init.normal_(self.table.weight, std=0.02)
        half = a.d // a.heads // 2
        angles = torch.outer(torch.arange(a.length), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids):
        x = self.table(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


def conv(channels_in, channels, kernel=1, stride=1):
    return nn.Sequential(nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(channels))


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.body = nn.Sequential(conv(channels, width), nn.ReLU(True), conv(width, width, 3, stride), nn.ReLU(True), conv(width, 4 * width))
        self.shortcut = conv(channels, 4 * width, 1, stride) if channels != 4 * width else nn.Identity()

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


class Resnet50(nn.Sequential):
    def __init__(self, a):
        layers, channels = [conv(3, 64, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)], 64
        for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(blocks):
                layers.append(Bottleneck(channels, width, stride if i == 0 else 1))
                channels = 4 * width
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def without_decay(net):
    """The parameters in two groups, as in the job: vectors (biases and norms) are not decayed."""
    parts = {True: [], False: []}
    for p in net.parameters():
        parts[p.ndim > 1].append(p)
    return [{"params": parts[True]}, {"params": parts[False], "weight_decay": 0}]


def adamw(net):
    return torch.optim.AdamW(without_decay(net), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


class Task:
    """The differences between the networks: module, optimizer, loss, shapes of a batch."""

    def __init__(self, network, a):
        a.features = a.d
        kinds = {"lenet": Lenet, "gpt": Gpt, "llama": Llama, "moe": Llama, "resnet50": Resnet50, "vit": Vit, "unet": lambda a: Unet(a.d)}
        self.network, self.net = network, kinds[network](a)
        self.tokens = self.clip = network in ("gpt", "llama", "moe")
        self.size = {"lenet": (1, 28, 28), "resnet50": (3, 224, 224), "vit": (3, a.size, a.size), "unet": (1, a.size, a.size)}.get(network)
        self.classes = a.vocab if self.tokens else {"resnet50": 1000, "vit": a.classes, "unet": 4}.get(network, 10)
        self.smoothing = 0.1 if network == "resnet50" else 0.0

    def optimizer(self, network):
        if network == "lenet":
            return torch.optim.Adam(self.net.parameters(), lr=0.003, fused=True)
        if network == "vit":
            return torch.optim.AdamW(self.net.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        if network == "unet":
            return torch.optim.SGD(self.net.parameters(), lr=0.02, momentum=0.9, fused=True)
        if network == "resnet50":
            return torch.optim.SGD(without_decay(self.net), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
        return adamw(self.net)

    def batch(self, a):
        if self.tokens:
            ids = torch.randint(0, self.classes, (a.batch, a.length + 1), device=a.device)
            return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        x = torch.randn(a.batch, *self.size, device=a.device)
        if a.device == "cuda":
            x = x.to(memory_format=torch.channels_last)
        return x, torch.randint(0, self.classes, (a.batch, *(self.size[1:] if self.network == "unet" else ())), device=a.device)

    def loss(self, y, labels):
        if self.network == "unet":
            return unet_loss(y, labels)
        balance = sum(block.balance for block in self.net.modules() if isinstance(block, MixtureBlock))
        return F.cross_entropy(y.flatten(0, -2), labels.flatten(), label_smoothing=self.smoothing) + balance


def prepare(a):
    """The step as a function of (x, labels)."""
    task = Task(a.network, a)
    task.net.to(a.device)
    if a.network == "resnet50" and a.device == "cuda":
        task.net.to(memory_format=torch.channels_last)
    optimizer = task.optimizer(a.network)
    net = torch.compile(task.net) if a.compile else task.net
    precision = torch.autocast("cuda", torch.bfloat16) if a.device == "cuda" else contextlib.nullcontext()

    def step(x, labels):
        optimizer.zero_grad(set_to_none=True)
        with precision:
            loss = task.loss(net(x), labels)
        loss.backward()
        if task.clip:
            nn.utils.clip_grad_norm_(task.net.parameters(), 1.0)
        optimizer.step()
        return loss

    return step, [task.batch(a) for _ in range(8)]


def measure(a):
    step, batches = prepare(a)
    wait = torch.cuda.synchronize if a.device == "cuda" else lambda: None
    times = []
    for i in range(a.steps + max(5, a.steps // 4)):
        begin = time.perf_counter()
        loss = step(*batches[i % len(batches)])
        wait()
        times.append((time.perf_counter() - begin) * 1e3)
    times = times[-a.steps:]
    low, middle, high = statistics.quantiles(times, n=4)
    memory = torch.cuda.max_memory_allocated() if a.device == "cuda" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return {"network": a.network, "torch": torch.__version__, "device": a.device, "compile": a.compile, "batch": a.batch,
            "ms": middle, "q1": low, "q3": high, "min": min(times), "memory": memory, "loss": loss.item()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=("lenet", "gpt", "llama", "moe", "resnet50", "vit", "unet"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--compile", action="store_true")
    for name, default in (("threads", 1), ("batch", 8), ("steps", 100), ("layers", 4), ("d", 128), ("heads", 4), ("kv-heads", 4),
                          ("hidden", 352), ("experts", 8), ("top-k", 2), ("length", 128), ("vocab", 256), ("size", 64), ("patch", 8), ("classes", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    a = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(a.threads)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    print(json.dumps(measure(a)), flush=True)


if __name__ == "__main__":
    main()
