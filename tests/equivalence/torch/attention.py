#!/usr/bin/env python3
"""attention.py TRAINCTL [--jobs N] [--seed S] [--only J]: random networks with attention whose scores have additional terms (ALiBi, biases as
inputs or trained, additive masks) and whose weights are dropped, of one sequence or two (cross-attention), train as a plain loop in PyTorch does
in float64, under several plans. Without dropout, softcaps and sinks the loop is compared with scaled_dot_product_attention, and slopes of ALiBi
with those of BLOOM and MPT in transformers, if it is installed.

Exits with 77 if PyTorch is missing."""

import itertools
import json
import random as draws
import sys

from composed import BATCH, ONE, SAMPLES, compare, dense, dense_start, f, np, random, torch

FEATURES, OUT = 6, 3
SEED = 3  # of the jobs
WORD = np.uint64(0xFFFFFFFF)


def philox(key, low, high):
    """The four words of each block (Philox 4x32-10); `low` is an array of counters."""
    c = [low & WORD, low >> np.uint64(32), np.full_like(low, high & 0xFFFFFFFF), np.full_like(low, high >> 32)]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for i in range(10):
        r0, r1 = np.uint64((k0 + i * 0x9E3779B9) & 0xFFFFFFFF), np.uint64((k1 + i * 0xBB67AE85) & 0xFFFFFFFF)
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> np.uint64(32)) ^ c[1] ^ r0, b & WORD, (a >> np.uint64(32)) ^ c[3] ^ r1, a & WORD]
    return np.stack(c, -1)


def stable_hash(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def kept(layer, p, step, samples, rows, heads, keys):
    """Factors [samples, heads, rows, keys] of the weights: blocks of four keys are numbered by sample, row, head, and key."""
    words = philox(SEED, np.array([stable_hash(layer)], np.uint64), 0x7472616963746C)[0]
    blocks = (keys + 3) // 4
    numbers = philox(int(words[1]) << 32 | int(words[0]), np.arange(samples * rows * heads * blocks, dtype=np.uint64), step)
    uniform = (numbers.reshape(samples, rows, heads, 4 * blocks)[..., :keys] >> np.uint64(8)) * 2.0**-24
    return torch.tensor((uniform >= np.float32(p)) / (1 - p)).transpose(1, 2)


def slopes(heads):
    power = 2 ** (heads.bit_length() - 1)
    return torch.tensor([2 ** (-8 * (h + 1) / power) if h < power else 2 ** (-8 * (h - power + 0.5) / power) for h in range(heads)])


def check_slopes():
    try:
        from transformers.models.bloom.modeling_bloom import build_alibi_tensor
        from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
    except ImportError:
        return print("slopes of ALiBi: not compared, because transformers is not installed")
    for heads in range(1, 50):
        bloom = build_alibi_tensor(torch.ones(1, 4), heads, torch.float64).reshape(heads, 4)[:, 1]
        mpt = build_mpt_alibi_tensor(heads, 4).reshape(heads, 4).double()
        assert torch.allclose(bloom, slopes(heads), rtol=1e-6), (heads, bloom)
        assert torch.allclose(mpt[:, 1] - mpt[:, 0], slopes(heads), rtol=1e-6), (heads, mpt)
    print("slopes of ALiBi: those of BLOOM and MPT for 1 to 49 heads")


class Case:
    """One network: data [rows, 6] and, with cross-attention, memory [keys, 6] -> q, k, v -> attn -> out -> mse."""

    def __init__(self, rng):
        self.kv_heads = rng.choice([1, 2, 2, 3, 4])
        self.heads, self.width = self.kv_heads * rng.choice([1, 1, 2, 3]), rng.choice([2, 3, 4])
        self.rows = rng.choice([4, 8, 12])
        self.is_cross = rng.random() < 0.3
        self.keys = rng.choice([3, 5, 10, 18]) if self.is_cross else self.rows
        self.causal = rng.random() < (0.2 if self.is_cross else 0.5)
        self.window = rng.choice([2, 3, 5]) if self.causal and rng.random() < 0.25 else 0
        self.softcap = rng.choice([0, 0, 0, 2.0])
        self.sinks = rng.random() < 0.2
        self.alibi = not self.is_cross and rng.random() < 0.4
        self.dropout = rng.choice([0, 0.2, 0.5])
        self.mask = rng.random() < 0.3
        self.bias = rng.choice(["none", "trained", "shared", "samples", "heads", "keys", "computed"])
        self.packed = not self.is_cross and rng.random() < 0.5
        self.packing = rng.choice(["heads", "qkv"]) if self.packed else ""
        self.seed = rng.randrange(1000)

    def fields(self):
        made = {"data": random(self.seed, SAMPLES, self.rows, FEATURES), "label": random(self.seed + 1, SAMPLES, self.rows, OUT)}
        if self.is_cross:
            made["memory"] = random(self.seed + 2, SAMPLES, self.keys, FEATURES)
        numbers = np.random.default_rng(self.seed + 3)
        if self.mask:
            made["mask"] = torch.tensor(numbers.integers(0, 3, (SAMPLES, self.keys)) > 0).int()
            made["mask"][:, 0] = 1
        if self.bias in ("samples", "heads", "keys"):
            shape = {"samples": (self.rows, self.keys), "heads": (self.heads, self.rows, self.keys), "keys": (1, 1, self.keys)}[self.bias]
            bias = random(self.seed + 4, SAMPLES, *shape)
            hidden = torch.tensor(numbers.random(bias.shape) < 0.2)
            hidden[..., 0] = False
            made["bias"] = torch.where(hidden, float("-inf"), bias)
        return made

    def network(self):
        units = {"q": self.heads * self.width, "k": self.kv_heads * self.width, "v": self.kv_heads * self.width}
        other = "memory" if self.is_cross else "data"
        if self.packed:
            layers, inputs = [{"name": "qkv", "type": "dense", "units": sum(units.values()), "inputs": "data"}], ["qkv"]
        else:
            layers = [{"name": n, "type": "dense", "units": units[n], "inputs": "data" if n == "q" else other} for n in "qkv"]
            inputs = ["q", "k", "v"]
        attn = {"name": "attn", "type": "attention", "heads": self.heads, "kv_heads": self.kv_heads, "causal": self.causal, "alibi": self.alibi,
                "window": self.window, "softcap": self.softcap, "sinks": self.sinks, "dropout": self.dropout, "score_bias": "none"}
        if self.packed:
            attn["packing"] = self.packing
        if self.mask:
            inputs.append("mask")
        if self.bias in ("trained", "shared"):
            attn["score_bias"] = "trained"
        elif self.bias != "none":
            attn["score_bias"] = "input"
            inputs.append("bias")
        if self.bias == "computed":
            layers.append({"name": "bias", "type": "dense", "units": self.keys, "inputs": "data"})  # [batch, rows, keys]
        layers.append({**attn, "inputs": inputs})
        if self.bias == "shared" and self.can_share():
            layers += [{"name": "again", "type": "dense", "units": sum(units.values())},
                       {**attn, "name": "attn2", "share": "attn", "inputs": ["again"], "packing": "qkv"}]
        return [*layers, {"name": "out", "type": "dense", "units": OUT}]

    def can_share(self):
        return not self.is_cross and not self.mask

    def start(self):
        units = {"q": self.heads * self.width, "k": self.kv_heads * self.width, "v": self.kv_heads * self.width}
        seed, made = self.seed + 10, {}
        if self.packed:
            made |= dense_start(seed, "qkv", sum(units.values()), FEATURES)
        else:
            for i, (name, size) in enumerate(units.items()):
                made |= dense_start(seed + 2 * i, name, size, FEATURES)
        if self.bias in ("trained", "shared"):
            made["attn.weight"] = random(seed + 7, self.heads, self.rows, self.keys)
        if self.bias == "computed":
            made |= dense_start(seed + 8, "bias", self.keys, FEATURES)
        if self.sinks:
            made["attn.sinks"] = random(seed + 9, self.heads)
        if self.bias == "shared" and self.can_share():
            made |= dense_start(seed + 11, "again", sum(units.values()), self.heads * self.width)
            if self.sinks:
                made["attn2.sinks"] = random(seed + 12, self.heads)
        return {**made, **dense_start(seed + 13, "out", OUT, self.heads * self.width)}

    def parts(self, packed, packing):
        """q, k and v [batch, rows, heads, width] of a packed input."""
        group, shape = self.heads // self.kv_heads, (*packed.shape[:2], -1, self.width)
        if packing == "qkv":
            return packed.reshape(shape).split([self.heads, self.kv_heads, self.kv_heads], 2)
        x = packed.reshape(*packed.shape[:2], self.kv_heads, group + 2, self.width)
        return x[:, :, :, :group].flatten(2, 3), x[:, :, :, group], x[:, :, :, group + 1]

    def attention(self, name, q, k, v, bias, mask, sinks, step):
        group = self.heads // self.kv_heads
        q, k, v = q.transpose(1, 2), k.transpose(1, 2).repeat_interleave(group, 1), v.transpose(1, 2).repeat_interleave(group, 1)
        rows, keys = torch.arange(self.rows)[:, None], torch.arange(self.keys)[None]
        terms = torch.zeros(q.shape[0], self.heads, self.rows, self.keys)
        if self.alibi:
            terms = terms - slopes(self.heads)[:, None, None] * (rows - keys).abs()
        if bias is not None:
            terms = terms + bias
        seen = (keys <= rows) | torch.tensor(not self.causal)
        if self.window:
            seen = seen & (keys + self.window > rows)
        terms = torch.where(seen, terms, float("-inf"))
        if mask is not None:
            terms = torch.where(mask[:, None, None] != 0, terms, float("-inf"))
        scores = q @ k.transpose(2, 3) / self.width**0.5
        if self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        scores = scores + terms
        hidden = torch.isneginf(scores)
        top = scores.detach().masked_fill(hidden, -1e30).amax(-1, keepdim=True)
        top = torch.where(hidden.all(-1, keepdim=True), 0.0, top)
        exponentials = torch.exp(scores.masked_fill(hidden, -1e30) - top).masked_fill(hidden, 0.0)
        total = exponentials.sum(-1, keepdim=True)
        if sinks is not None:
            total = total + torch.exp(sinks[:, None, None] - top)
        weights = exponentials / torch.where(total == 0, 1.0, total)
        if self.dropout:
            weights = weights * kept(name, self.dropout, step, BATCH, self.rows, self.heads, self.keys)
        out = weights @ v
        if not (self.dropout or self.softcap or self.sinks) and not hidden.all(-1).any():
            theirs = f.scaled_dot_product_attention(q, k, v, attn_mask=terms)
            assert torch.allclose(out, theirs, atol=1e-12), float((out - theirs).abs().max())
        return out.transpose(1, 2).flatten(2)

    def loss(self):
        steps = itertools.count()

        def run(w, batch):
            step = next(steps)
            if self.packed:
                q, k, v = self.parts(dense(w, "qkv", batch["data"]), self.packing)
            else:
                of = {name: batch["memory"] if self.is_cross and name != "q" else batch["data"] for name in "qkv"}
                q, k, v = (dense(w, name, of[name]).unflatten(-1, (-1, self.width)) for name in "qkv")
            bias = {"none": lambda: None, "trained": lambda: w["attn.weight"], "shared": lambda: w["attn.weight"],
                    "samples": lambda: batch["bias"][:, None], "computed": lambda: dense(w, "bias", batch["data"])[:, None]}
            bias = bias.get(self.bias, lambda: batch["bias"])()
            x = self.attention("attn", q, k, v, bias, batch.get("mask"), w.get("attn.sinks"), step)
            if self.bias == "shared" and self.can_share():
                q, k, v = self.parts(dense(w, "again", x), "qkv")
                x = self.attention("attn2", q, k, v, bias, None, w.get("attn2.sinks"), step)
            return f.mse_loss(dense(w, "out", x), batch["label"])

        return run

    def plans(self, rng):
        def planned(ranks, **fields):
            return {"launch.ranks": ranks, "parallel": {"mode": "semi_auto_parallel", **fields}}

        made = {"one rank": ONE, "2 ranks of data, 2 micro-batches": planned(2, data=2, micro_batches=2)}
        level = rng.choice([1, 2, 3])
        by_heads = "qkv" != self.packing and not (self.bias == "shared" and self.can_share()) and self.kv_heads % 2 == 0
        if by_heads:
            made["heads"] = planned(2, tensor=2, recompute=["attn"])
        methods = ["gather", "ring"] + (["ulysses"] if by_heads else [])
        if not self.is_cross:
            method = rng.choice(methods)
            made[f"context by {method}"] = planned(4, context=2, context_method=method, data=2, optimizer_shard={"level": level, "min_kb": 0})
        made["hybrid_parallel by rows"] = {"launch.ranks": 2, "parallel": {"mode": "hybrid_parallel"}}
        last = {"out": 1}
        made["2 stages, recomputed"] = planned(2, stages=2, micro_batches=2, recompute=["attn"], stage_config=last)
        chosen = ["one rank", *rng.sample(list(made)[1:], min(2, len(made) - 1))]
        return {name: made[name] for name in chosen}


def main():
    given = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    assert set(given) <= {"--jobs", "--seed", "--only"}, given
    check_slopes()
    only = given.get("--only")
    for j in [int(only)] if only else range(int(given.get("--jobs", 6))):
        rng = draws.Random(f"{given.get('--seed', 1)} {j}")
        case = Case(rng)
        named = {key: value for key, value in vars(case).items() if value}
        print(f"--only {j}: {json.dumps(named)}", flush=True)
        plans = case.plans(rng)
        compare(f"attention {j}", {"network": case.network(), "loss": "mse"}, case.fields(), case.start(), case.loss(), plans)


if __name__ == "__main__":
    main()
