"""Random networks of layers and losses that exist as a job and as PyTorch functions.

A Network keeps the layers of the job, the shapes of samples, and a function that computes each tensor from the weights and the fields of a batch, in
the type of the weights. Functions with kinks or steps (relu, argmax, max pools) may choose differently in f32 and float64, which is rare.
"""

import math

import numpy as np
import torch
from torch_losses import Losses
from torch_sequences import Sequences
from torch_windows import Windows

f = torch.nn.functional


class Network(Windows, Sequences, Losses):
    def __init__(self, rng):
        self.rng = rng
        self.layers, self.start, self.fields = [], {}, {}
        self.states = {}     # running statistics, which training does not read
        self.functions = {}  # tensor -> (weights, values of all tensors so far) -> its value
        self.shapes = {}     # of samples
        self.samples = None
        self.mixes_rows = False  # micro-batches compute other numbers

    # Values of weights and of samples.

    def numbers(self, *shape, scale=1.0):
        values = np.random.default_rng(self.rng.randrange(1 << 30)).standard_normal(shape) * scale
        return torch.tensor(values).to(torch.float32).to(torch.float64)

    def integers(self, below, *shape):
        return torch.tensor(np.random.default_rng(self.rng.randrange(1 << 30)).integers(0, below, shape))

    def field(self, name, values):
        self.fields[name] = values
        self.shapes[name] = tuple(values.shape[1:])
        return name

    def weight(self, name, *shape, scale=None, around=0.0):
        self.start[name] = around + self.numbers(*shape, scale=scale or 1 / math.sqrt(max(1, math.prod(shape[1:]) if len(shape) > 1 else 4)))

    def add(self, type, function, inputs, out, outputs=None, **fields):
        """function(weights, *values of the inputs)"""
        name = fields.pop("name", None) or f"{type}{len(self.layers)}"
        self.layers.append({"name": name, "type": type, "inputs": list(inputs), **fields})
        for output in [name] if outputs is None else outputs:
            self.functions[output] = (function, tuple(inputs))
            self.shapes[output] = tuple(out)
        return name

    def compute(self, weights, batch, wanted):
        """The values of these tensors."""
        values = dict(batch)
        for name, (function, inputs) in self.functions.items():
            values[name] = function(weights, *[values[i] for i in inputs])
        return [values[name] for name in wanted]

    # Layers that every network has.

    def dense(self, x, units, name=None):
        name = name or f"dense{len(self.layers)}"
        self.weight(f"{name}.weight", units, self.shapes[x][-1])
        self.weight(f"{name}.bias", units, scale=0.1)
        return self.add("dense", lambda w, v: v @ w[f"{name}.weight"].T + w[f"{name}.bias"], [x], (*self.shapes[x][:-1], units), name=name, units=units)

    def reshape(self, x, shape):
        return self.add("reshape", lambda w, v: v.reshape(len(v), *shape), [x], shape, shape=list(shape))

    def flatten(self, x):
        return self.add("flatten", lambda w, v: v.flatten(1), [x], (math.prod(self.shapes[x]),)) if len(self.shapes[x]) > 1 else x

    def branch(self, x, shape):
        """Another tensor of this shape, from the data."""
        return self.reshape(self.dense("data", math.prod(shape)), shape) if len(shape) > 1 else self.dense("data", shape[0])

    # One layer per function: takes the name of a tensor and returns that of its output, or None if its shape does not suit.

    def activation(self, x):
        choices = [("relu", {}, f.relu), ("elu", {"alpha": 0.7}, lambda v: f.elu(v, 0.7)), ("selu", {}, f.selu), ("mish", {}, f.mish), ("hardswish", {}, f.hardswish),
                   ("hardsigmoid", {}, f.hardsigmoid), ("softsign", {}, f.softsign), ("log_sigmoid", {}, f.logsigmoid), ("sin", {}, torch.sin),
                   ("cos", {}, torch.cos), ("gelu", {}, f.gelu), ("silu", {}, f.silu), ("tanh", {}, torch.tanh), ("softplus", {}, f.softplus),
                   ("abs", {}, torch.abs), ("clip", {"min": -1.2, "max": 1.5}, lambda v: v.clamp(-1.2, 1.5)), ("leaky_relu", {}, f.leaky_relu),
                   ("quick_gelu", {}, lambda v: v * torch.sigmoid(1.702 * v)), ("softcap", {"cap": 2.0}, lambda v: 2 * torch.tanh(v / 2))]
        type, fields, function = self.rng.choice(choices)
        return self.add(type, lambda w, v: function(v), [x], self.shapes[x], **fields)

    def prelu(self, x):
        shape, per_channel = self.shapes[x], self.rng.random() < 0.5
        name, of_weight = f"prelu{len(self.layers)}", (shape[0], *[1] * (len(shape) - 1)) if per_channel else (1,)
        self.weight(f"{name}.weight", *of_weight, scale=0.1, around=0.25)
        return self.add("prelu", lambda w, v: f.prelu(v, w[f"{name}.weight"].flatten()), [x], shape, name=name, per_channel=per_channel)

    def two(self, x):
        other = self.branch(x, self.shapes[x])
        type, function = self.rng.choice([("maximum", torch.maximum), ("minimum", torch.minimum), ("add", torch.add), ("mul", torch.mul), ("sub", torch.sub)])
        return self.add(type, lambda w, a, b: function(a, b), [x, other], self.shapes[x])

    def conditional(self, x):
        """Elements of x, or of another tensor, or a number, where a condition of the sample holds."""
        shape = self.shapes[x]
        mask = self.field(f"mask{len(self.layers)}", self.integers(2, self.samples, *shape).to(torch.float64))
        if self.rng.random() < 0.5:
            invert = self.rng.random() < 0.5
            return self.add("masked_fill", lambda w, v, m: v.masked_fill((m == 0) if invert else (m != 0), 0.3), [x, mask], shape, value=0.3, invert=invert)
        return self.add("where", lambda w, m, a, b: torch.where(m != 0, a, b), [mask, x, self.branch(x, shape)], shape)

    def positive(self, x):
        """Functions of positive numbers."""
        shape = self.shapes[x]
        x = self.add("softplus", lambda w, v: f.softplus(v), [x], shape)
        type, fields, g = self.rng.choice([("log", {}, torch.log), ("sqrt", {}, torch.sqrt), ("pow", {"exponent": 1.5}, lambda v: v**1.5), ("pow", {"exponent": -0.5}, lambda v: v**-0.5)])
        if self.rng.random() < 0.3:
            return self.add("div", lambda w, a, b: a / b, [self.branch(x, shape), x], shape)
        return self.add(type, lambda w, v: g(v), [x], shape, **fields)

    def rms_norm(self, x):
        shape, offset = self.shapes[x], self.rng.choice([0.0, 1.0])
        if shape[-1] < 3:
            return None
        name = f"rms_norm{len(self.layers)}"
        self.weight(f"{name}.weight", shape[-1], scale=0.2, around=1.0 - offset)
        return self.add("rms_norm", lambda w, v: f.rms_norm(v, (shape[-1],), w[f"{name}.weight"] + offset, 1e-5), [x], shape, name=name, offset=offset)

    def batch_norm(self, x):
        shape, name = self.shapes[x], f"batch_norm{len(self.layers)}"
        self.mixes_rows = True
        self.weight(f"{name}.weight", shape[0], scale=0.2, around=1.0)
        self.weight(f"{name}.bias", shape[0], scale=0.2)
        self.states |= {f"{name}.running_mean": torch.zeros(shape[0]), f"{name}.running_var": torch.ones(shape[0])}
        return self.add("batch_norm", lambda w, v: f.batch_norm(v, None, None, w[f"{name}.weight"], w[f"{name}.bias"], True), [x], shape, name=name)

    def dim_of(self, x):
        return self.rng.randrange(len(self.shapes[x]))

    def cumsum(self, x):
        d, reverse = self.dim_of(x), self.rng.random() < 0.5
        g = (lambda v: v.flip(d + 1).cumsum(d + 1).flip(d + 1)) if reverse else (lambda v: v.cumsum(d + 1))
        return self.add("cumsum", lambda w, v: g(v) * 1.0, [x], self.shapes[x], dim=d + 1, reverse=reverse)

    def roll(self, x):
        d = self.dim_of(x)
        if self.shapes[x][d] < 2:
            return None
        shift = self.rng.choice([1, -1, self.shapes[x][d] + 1])
        return self.add("roll", lambda w, v: v.roll(shift, d + 1), [x], self.shapes[x], dim=d + 1, shift=shift)

    def pad(self, x):
        shape, mode = list(self.shapes[x]), self.rng.choice(["constant", "reflect", "replicate", "circular"])
        if len(shape) < 2 or shape[-1] < 3:
            return None
        before, after = self.rng.randint(0, 2), self.rng.randint(1, 2)
        shape[-1] += before + after
        fields = {"value": 0.5} if mode == "constant" else {}
        return self.add("pad", lambda w, v: f.pad(v, (before, after, *[0] * (2 * len(shape) - 4)), mode=mode, **fields), [x], shape, dims=[-1], before=[before], after=[after], mode=mode, **fields)

    def slice(self, x):
        d = self.dim_of(x)
        shape = list(self.shapes[x])
        if shape[d] < 3:
            return None
        shape[d] -= 1
        return self.add("slice", lambda w, v: v.narrow(d + 1, 1, shape[d]), [x], shape, dim=d + 1, begin=1)

    def split_and_join(self, x):
        shape = self.shapes[x]
        d = next((d for d in range(len(shape)) if shape[d] % 2 == 0), None)
        if d is None:
            return None
        half = list(shape)
        half[d] //= 2
        name = f"split{len(self.layers)}"
        self.add("split", None, [x], half, outputs=[], name=name, parts=2, dim=d + 1)
        for k in range(2):
            self.functions[f"{name}.{k}"] = (lambda w, v, k=k: v.chunk(2, d + 1)[k], (x,))
            self.shapes[f"{name}.{k}"] = tuple(half)
        return self.add("concat", lambda w, a, b: torch.cat([a, b], d + 1), [f"{name}.1", f"{name}.0"], shape, dim=d + 1)

    def transpose(self, x):
        n = len(self.shapes[x])
        if n < 2:
            return None
        perm = list(range(n))
        self.rng.shuffle(perm)
        whole = [0, *[p + 1 for p in perm]]
        return self.add("transpose", lambda w, v: v.permute(whole), [x], [self.shapes[x][p] for p in perm], perm=whole)

    def layer_norm(self, x):
        shape = self.shapes[x]
        dims = self.rng.randint(1, len(shape))
        over = shape[len(shape) - dims:]
        if math.prod(over) < 3:
            return None
        name = f"layer_norm{len(self.layers)}"
        self.weight(f"{name}.weight", math.prod(over), scale=0.2, around=1.0)
        self.weight(f"{name}.bias", math.prod(over), scale=0.2)
        return self.add("layer_norm", lambda w, v: f.layer_norm(v, over, w[f"{name}.weight"].reshape(over), w[f"{name}.bias"].reshape(over)), [x], shape, name=name, dims=dims)

    def channel_norm(self, x):
        shape = self.shapes[x]
        if len(shape) < 2 or math.prod(shape[1:]) < 3:
            return None
        if self.rng.random() < 0.5:
            return self.add("instance_norm", lambda w, v: f.instance_norm(v), [x], shape)
        groups = self.rng.choice([g for g in range(1, shape[0] + 1) if shape[0] % g == 0])
        return self.add("group_norm", lambda w, v: f.group_norm(v, groups), [x], shape, groups=groups, affine=False)

    def softmax(self, x):
        d = self.dim_of(x)
        if self.shapes[x][d] == 1:
            return None
        type, g = self.rng.choice([("softmax", torch.softmax), ("log_softmax", torch.log_softmax)])
        return self.add(type, lambda w, v: g(v, d + 1), [x], self.shapes[x], dim=d + 1)

    def reduce(self, x):
        shape = self.shapes[x]
        if len(shape) < 2:
            return None
        d = self.dim_of(x)
        type, g = self.rng.choice([("reduce_min", torch.amin), ("reduce_max", torch.amax), ("reduce_mean", torch.mean), ("reduce_sum", torch.sum)])
        return self.add(type, lambda w, v: g(v, dim=d + 1), [x], [n for k, n in enumerate(shape) if k != d], dims=[d + 1])

    def gather(self, x):
        d = self.dim_of(x)
        shape, count = list(self.shapes[x]), self.rng.choice([2, 3, 4])
        rows = self.field(f"index{len(self.layers)}", self.integers(shape[d], self.samples, *shape[:d], count))
        scatters = self.rng.random() < 0.5
        if scatters:
            rows = self.field(rows, self.integers(count, self.samples, *shape[:d], shape[d]))
        out = [*shape[:d], count, *shape[d + 1:]]

        def whole(index, v):
            return index.reshape(*index.shape, *[1] * (v.ndim - index.ndim)).expand(*index.shape, *v.shape[d + 2:])

        if scatters:
            return self.add("scatter_add", lambda w, v, i: torch.zeros(len(v), *out, dtype=v.dtype).scatter_add(d + 1, whole(i, v), v), [x, rows], out,
                            dim=d + 1, size=count)
        return self.add("gather", lambda w, v, i: v.gather(d + 1, whole(i, v)), [x, rows], out, dim=d + 1)

    def argmax(self, x):
        """x where it is the largest of the last dim."""
        shape = self.shapes[x]
        chosen = self.add("argmax", lambda w, v: v.argmax(-1), [x], shape[:-1], dim=len(shape))
        hot = self.add("one_hot", lambda w, i: f.one_hot(i, shape[-1]).to(next(iter(w.values())).dtype), [chosen], shape, classes=shape[-1])
        scaled = self.add("scale", lambda w, v: 0.5 * v + 0.5, [hot], shape, factor=0.5, shift=0.5)
        return self.add("mul", lambda w, a, b: a * b, [scaled, x], shape)

    def einsum(self, x):
        shape = self.shapes[x]
        if len(shape) != 2:
            return None
        i, j = shape
        equation, other, out = self.rng.choice([("bij,bjk->bik", (j, 3), (i, 3)), ("bij,bkj->bik", (2, j), (i, 2)), ("bij,bij->bi", (i, j), (i,)),
                                                ("bij,bik->bjk", (i, 2), (j, 2)), ("bij,bk->bikj", (3,), (i, 3, j))])
        return self.add("einsum", lambda w, a, b: torch.einsum(equation, a, b), [x, self.branch(x, other)], out, equation=equation)

    def recurrent(self, x):
        """torch.lstm or torch.gru with its options: a direction, both, and several layers, whose weights the job names."""
        if len(self.shapes[x]) != 2:
            return None
        steps, features = self.shapes[x]
        kind, units, layers = self.rng.choice(["lstm", "gru"]), self.rng.choice([3, 4, 6]), self.rng.choice([1, 1, 2])
        both = self.rng.random() < 0.3
        reverse = not both and self.rng.random() < 0.4
        name, gates = f"{kind}{len(self.layers)}", 4 if kind == "lstm" else 3
        parts = [name + (f".layer{k}" if k else "") + end for k in range(layers) for end in ("", ".reverse")[:1 + both]]
        for k, part in enumerate(parts):
            self.weight(f"{part}.weight", gates * units, features if k <= both else units * (1 + both))
            self.weight(f"{part}.recurrent_weight", gates * units, units)
            self.weight(f"{part}.bias", gates * units, scale=0.1)
            if kind == "gru":
                self.weight(f"{part}.recurrent_bias", units, scale=0.1)

        def flat(w, part):
            bias = w[f"{part}.bias"]
            of_state = torch.zeros_like(bias) if kind == "lstm" else torch.cat([torch.zeros_like(bias[:2 * units]), w[f"{part}.recurrent_bias"]])
            return [w[f"{part}.weight"], w[f"{part}.recurrent_weight"], bias, of_state]

        def run(w, v):
            zero = torch.zeros(len(parts), len(v), units, dtype=v.dtype)
            v = v.flip(1) if reverse else v
            state = (zero, zero) if kind == "lstm" else zero
            weights = [value for part in parts for value in flat(w, part)]
            y = (torch.lstm if kind == "lstm" else torch.gru)(v, state, weights, True, layers, 0.0, False, both, True)[0]
            return y.flip(1) if reverse else y

        return self.add(kind, run, [x], (steps, units * (1 + both)), name=name, units=units, reverse=reverse, bidirectional=both, layers=layers)

    def attention(self, x):
        if len(self.shapes[x]) != 2:
            return None
        rows, width, causal = self.shapes[x][0], self.rng.choice([2, 3, 4]), self.rng.random() < 0.5
        q, k, v = (self.dense(x, 2 * width) for _ in range(3))

        def run(w, q, k, v):
            q, k, v = (t.reshape(len(t), rows, 2, width).transpose(1, 2) for t in (q, k, v))
            return f.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(len(q), rows, 2 * width)

        return self.add("attention", run, [q, k, v], (rows, 2 * width), heads=2, causal=causal)

    # For sequences [c, n], images [c, h, w] and volumes.

    KINDS = [activation, activation, prelu, two, conditional, positive, rms_norm, batch_norm, cumsum, roll, pad, slice, split_and_join, transpose, layer_norm, channel_norm, softmax, reduce, gather, argmax, einsum,
             recurrent, attention, Sequences.rotary_attention, Sequences.rotary_attention, Sequences.cross_attention, Sequences.embedding, Windows.conv1d, Windows.conv1d, Windows.conv2d, Windows.conv2d, Windows.conv_transpose1d, Windows.conv_transpose2d, Windows.conv_transpose3d, Windows.conv3d,
             Windows.pool, Windows.pool, Windows.pool1d, Windows.pool3d, Windows.resize, Windows.resize]

    def grow(self, x, count):
        made = 0
        while made < count:
            kind = self.rng.choice(self.KINDS)
            y = kind(self, x)
            if y is None:
                continue
            x, made = y, made + 1
            if math.prod(self.shapes[x]) > 300:
                x = self.dense(self.flatten(x), self.rng.choice([4, 6, 8, 12]))
            if len(self.shapes[x]) == 1 and self.rng.random() < 0.6:
                x = self.reshaped(x)
        return x

    def reshaped(self, x):
        shape = self.rng.choice([(3, 4), (4, 6), (2, 4, 3), (2, 4, 6), (3, 5, 4)])
        return self.reshape(self.dense(x, math.prod(shape)), shape)
