"""Layers of random networks (torch_layers.py) for sequences: embeddings, rotary positions and attention."""

import math

import torch

f = torch.nn.functional


def rotated(x, base, dims, offset, interleaved):
    """Rotary positions of x [n, rows, heads, features]: of `dims` features of each head, from `offset` on."""
    rows = x.shape[1]
    angles = torch.arange(rows, dtype=x.dtype)[:, None] * base ** (-torch.arange(0, dims, 2, dtype=x.dtype) / dims)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    part = x[..., offset:offset + dims]
    a, b = (part[..., 0::2], part[..., 1::2]) if interleaved else part.chunk(2, -1)
    turned = [a * cos - b * sin, b * cos + a * sin]
    turned = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat([x[..., :offset], turned, x[..., offset + dims:]], -1)


def unpacked(x, packing, kv_heads, group, width):
    """q, k and v as [n, rows, heads, width]."""
    if packing == "qkv":
        return [t.unflatten(-1, (-1, width)) for t in x.split([kv_heads * group * width, kv_heads * width, kv_heads * width], -1)]
    x = x.unflatten(-1, (kv_heads, group + 2, width))
    return x[..., :group, :].flatten(2, 3), x[..., group, :], x[..., group + 1, :]


def packed(q, k, v, packing, kv_heads, group):
    if packing == "qkv":
        return torch.cat([t.flatten(2) for t in (q, k, v)], -1)
    return torch.cat([q.unflatten(2, (kv_heads, group)), k[..., None, :], v[..., None, :]], 3).flatten(2)


class Sequences:
    def rotary_attention(self, x):
        """Attention of a packed input, whose q and k may be rotated before."""
        if len(self.shapes[x]) != 2:
            return None
        rng, rows = self.rng, self.shapes[x][0]
        kv_heads, group, width = rng.choice([1, 2]), rng.choice([1, 2]), rng.choice([4, 6])
        packing, causal, interleaved = rng.choice(["heads", "qkv"]), rng.random() < 0.5, rng.random() < 0.5
        dims = rng.choice([n for n in (2, 4, width) if n <= width and n % 2 == 0])
        offset = rng.choice(range(width - dims + 1))
        x = self.dense(x, (group + 2) * kv_heads * width)
        shape = self.shapes[x]

        def turn(w, v):
            q, k, rest = unpacked(v, packing, kv_heads, group, width)
            return packed(*[rotated(t, 100.0, dims, offset, interleaved) for t in (q, k)], rest, packing, kv_heads, group)

        if rng.random() < 0.7:
            fields = {"rotary_dim": dims, "rotary_offset": offset} if dims < width else {}
            x = self.add("rotary", turn, [x], shape, heads=kv_heads * group, kv_heads=kv_heads, packing=packing, base=100.0,
                         pairs="interleaved" if interleaved else "half", **fields)

        def attend(w, v):
            q, k, v = (t.transpose(1, 2) for t in unpacked(v, packing, kv_heads, group, width))
            k, v = (t.repeat_interleave(group, 1) for t in (k, v))
            return f.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)

        return self.add("attention", attend, [x], (rows, kv_heads * group * width), heads=kv_heads * group, kv_heads=kv_heads, packing=packing, causal=causal)

    def cross_attention(self, x):
        """Rows of one sequence attend to those of another, of another length; a bias or a mask changes the scores."""
        if len(self.shapes[x]) != 2:
            return None
        rng, rows, keys, heads = self.rng, self.shapes[x][0], self.rng.choice([2, 5]), 2
        other = self.branch(x, (keys, 4))
        q, k, v = self.dense(x, 2 * heads), self.dense(other, 2 * heads), self.dense(other, 3 * heads)
        inputs, fields, name = [q, k, v], {}, f"attention{len(self.layers)}"
        kind = rng.choice(["plain", "mask", "bias", "trained"])
        if kind == "mask":
            mask = self.integers(2, self.samples, keys)
            mask[:, 0] = 1
            inputs.append(self.field(f"mask{len(self.layers)}", mask))
        if kind == "bias":
            inputs.append(self.field(f"bias{len(self.layers)}", self.numbers(self.samples, rows, keys)))
            fields["score_bias"] = "input"
        if kind == "trained":
            self.weight(f"{name}.weight", heads, rows, keys, scale=0.3)
            fields["score_bias"] = "trained"

        def run(w, q, k, v, *more):
            q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            if kind == "trained":
                scores = scores + w[f"{name}.weight"]
            if kind == "bias":
                scores = scores + more[0][:, None]
            if kind == "mask":
                scores = scores.masked_fill(more[0][:, None, None] == 0, -math.inf)
            return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

        return self.add("attention", run, inputs, (rows, 3 * heads), name=name, heads=heads, **fields)

    def embedding(self, x):
        """Adds a row of a table to each row of x, and to all a vector of their position."""
        if len(self.shapes[x]) != 2:
            return None
        rows, width = self.shapes[x]
        name, ids = f"embedding{len(self.layers)}", self.field(f"ids{len(self.layers)}", self.integers(5, self.samples, rows))
        self.weight(f"{name}.weight", 5, width)
        table = self.add("embedding", lambda w, i: w[f"{name}.weight"][i], [ids], (rows, width), name=name, vocab=5, units=width)
        total = self.add("add", lambda w, a, b: a + b, [table, x], (rows, width))
        places = f"position_embedding{len(self.layers)}"
        self.weight(f"{places}.weight", rows + 2, width)
        return self.add("position_embedding", lambda w, v: v + w[f"{places}.weight"][:rows], [total], (rows, width), name=places, max_length=rows + 2)
