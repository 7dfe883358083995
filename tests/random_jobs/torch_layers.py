"""Random networks of layers and losses that exist as a job and as PyTorch functions.

A Network keeps the layers of the job, the shapes of samples, and a function that computes each tensor from the weights and the fields of a batch, in
the type of the weights. Functions with kinks or steps (relu, argmax, max pools) may choose differently in f32 and float64, which is rare.
"""

import math

import numpy as np
import torch

f = torch.nn.functional


class Network:
    def __init__(self, rng):
        self.rng = rng
        self.layers, self.start, self.fields = [], {}, {}
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

    def conv1d(self, x):
        if len(self.shapes[x]) != 2 or self.shapes[x][1] < 3:
            return None
        c, n = self.shapes[x]
        groups = self.rng.choice([g for g in range(1, c + 1) if c % g == 0])
        channels, stride, mode = groups * self.rng.choice([1, 2, 3]), self.rng.choice([1, 2]), self.rng.choice(["zeros", "reflect", "replicate", "circular"])
        name = f"conv1d{len(self.layers)}"
        self.weight(f"{name}.weight", channels, c // groups, 1, 3)
        self.weight(f"{name}.bias", channels, scale=0.1)

        def run(w, v):
            v = f.pad(v, (1, 1), mode="constant" if mode == "zeros" else mode)
            return f.conv1d(v, w[f"{name}.weight"].reshape(channels, c // groups, 3), w[f"{name}.bias"], stride=stride, groups=groups)

        return self.add("conv1d", run, [x], (channels, (n - 1) // stride + 1), name=name, channels=channels, kernel=3, padding=1, stride=stride,
                        groups=groups, padding_mode=mode)

    def conv_transpose1d(self, x):
        if len(self.shapes[x]) != 2 or math.prod(self.shapes[x]) > 60:
            return None
        c, n = self.shapes[x]
        groups = self.rng.choice([g for g in range(1, c + 1) if c % g == 0])
        channels, stride, dilation = groups * self.rng.choice([1, 2]), self.rng.choice([1, 2]), self.rng.choice([1, 2])
        more = stride - 1
        name = f"conv_transpose1d{len(self.layers)}"
        self.weight(f"{name}.weight", c, channels // groups, 1, 3)
        self.weight(f"{name}.bias", channels, scale=0.1)
        return self.add("conv_transpose1d", lambda w, v: f.conv_transpose1d(v, w[f"{name}.weight"][:, :, 0], w[f"{name}.bias"], stride, 1, more, groups, dilation), [x],
                        (channels, (n - 1) * stride + 2 * dilation - 1 + more), name=name, channels=channels, kernel=3, stride=stride, padding=1, output_padding=more,
                        groups=groups, dilation=dilation)

    def pool1d(self, x):
        if len(self.shapes[x]) != 2 or self.shapes[x][1] < 4:
            return None
        ceil, padding, largest = self.rng.random() < 0.5, self.rng.choice([0, 1]), self.rng.random() < 0.5
        if self.rng.random() < 0.3:
            size = self.rng.randint(1, self.shapes[x][1] - 1)
            return self.add("adaptive_avg_pool1d", lambda w, v: f.adaptive_avg_pool1d(v, size), [x], (self.shapes[x][0], size), size=size)
        run = (lambda w, v: f.max_pool1d(v, 3, 2, padding, 1, ceil)) if largest else (lambda w, v: f.avg_pool1d(v, 3, 2, padding, ceil))
        out = run(None, torch.zeros(1, *self.shapes[x])).shape[1:]
        return self.add("max_pool1d" if largest else "avg_pool1d", run, [x], out, kernel=3, stride=2, padding=padding, ceil_mode=ceil)

    def volume(self, x):
        """A tensor [c, depth, height, width] of the elements of x; None if they do not divide."""
        size, rng = math.prod(self.shapes[x]), self.rng
        options = [(c, d, h, size // (c * d * h)) for c in (1, 2, 4) for d in (2, 3, 4) for h in (2, 3, 4) if size % (c * d * h) == 0 and 1 < size // (c * d * h) < 9]
        return self.reshape(x, rng.choice(options)) if options and size <= 120 else None

    def conv_transpose3d(self, x):
        x = self.volume(x)
        if x is None:
            return None
        c, rng = self.shapes[x][0], self.rng
        groups = rng.choice([1, c])
        fields = rng.choice([{"kernel": 2, "stride": 2}, {"kernel": 3, "padding": 1}, {"kernel": [3, 2, 3], "stride": [2, 1, 2], "padding": [1, 0, 1], "output_padding": [1, 0, 1]},
                             {"kernel": [2, 3, 1], "stride": [1, 2, 1], "dilation": [2, 1, 1]}])
        channels, kernel = groups * rng.choice([1, 2]), fields["kernel"] if isinstance(fields["kernel"], list) else [fields["kernel"]] * 3
        name = f"conv_transpose3d{len(self.layers)}"
        self.weight(f"{name}.weight", c, channels // groups * kernel[0], *kernel[1:])
        self.weight(f"{name}.bias", channels, scale=0.1)

        def run(w, v):
            weight = w[f"{name}.weight"].reshape(c, channels // groups, *kernel)
            return f.conv_transpose3d(v, weight, w[f"{name}.bias"], fields.get("stride", 1), fields.get("padding", 0), fields.get("output_padding", 0), groups, fields.get("dilation", 1))

        with torch.no_grad():
            zeros = {f"{name}.weight": self.start[f"{name}.weight"], f"{name}.bias": self.start[f"{name}.bias"]}
            out = run(zeros, torch.zeros(1, *self.shapes[x], dtype=torch.float64)).shape[1:]
        return self.add("conv_transpose3d", run, [x], out, name=name, channels=channels, groups=groups, **fields)

    def pool3d(self, x):
        x = self.volume(x)
        if x is None:
            return None
        largest, ceil, padding = self.rng.random() < 0.5, self.rng.random() < 0.5, self.rng.choice([0, [1, 0, 1]])
        if self.rng.random() < 0.3:
            size = [1, self.shapes[x][2], 1]
            g = f.adaptive_max_pool3d if largest else f.adaptive_avg_pool3d
            return self.add("adaptive_max_pool3d" if largest else "adaptive_avg_pool3d", lambda w, v: g(v, size), [x], (self.shapes[x][0], *size), size=size)
        counted = {} if largest else {"count_include_pad": self.rng.random() < 0.5}
        g = f.max_pool3d if largest else f.avg_pool3d
        run = lambda w, v: g(v, 2, [1, 2, 1], padding, ceil_mode=ceil, **counted)  # noqa: E731
        out = run(None, torch.zeros(1, *self.shapes[x])).shape[1:]
        return self.add("max_pool3d" if largest else "avg_pool3d", run, [x], out, kernel=2, stride=[1, 2, 1], padding=padding, ceil_mode=ceil, **counted)

    def conv2d(self, x):
        if len(self.shapes[x]) != 3 or min(self.shapes[x][1:]) < 3:
            return None
        c, h, width = self.shapes[x]
        channels, mode = self.rng.choice([1, 2, 4]), self.rng.choice(["zeros", "reflect", "replicate", "circular"])
        name = f"conv2d{len(self.layers)}"
        self.weight(f"{name}.weight", channels, c, 3, 3)
        self.weight(f"{name}.bias", channels, scale=0.1)

        def run(w, v):
            return f.conv2d(f.pad(v, (1, 1, 1, 1), mode="constant" if mode == "zeros" else mode), w[f"{name}.weight"], w[f"{name}.bias"])

        return self.add("conv2d", run, [x], (channels, h, width), name=name, channels=channels, kernel=3, padding=1, padding_mode=mode)

    def conv_transpose2d(self, x):
        if len(self.shapes[x]) != 3 or math.prod(self.shapes[x]) > 150:
            return None
        c, h, width = self.shapes[x]
        stride, more, channels = self.rng.choice([1, 2]), self.rng.choice([0, 1]), self.rng.choice([1, 2, 3])
        groups = 2 if c % 2 == 0 and self.rng.random() < 0.5 else 1
        more, channels = more if stride == 2 else 0, channels * groups
        name = f"conv_transpose2d{len(self.layers)}"
        self.weight(f"{name}.weight", c, channels // groups, 3, 2)
        self.weight(f"{name}.bias", channels, scale=0.1)
        out = (channels, (h - 1) * stride + 1 + more, (width - 1) * stride + 2 + more)
        return self.add("conv_transpose2d", lambda w, v: f.conv_transpose2d(v, w[f"{name}.weight"], w[f"{name}.bias"], stride, (1, 0), more, groups), [x], out,
                        name=name, channels=channels, kernel=[3, 2], stride=stride, padding=[1, 0], output_padding=more, groups=groups)

    def conv3d(self, x):
        shape = self.shapes[x]
        if len(shape) != 3 or min(shape) < 2 or shape[0] < 3:
            return None
        groups = 2 if shape[0] % 2 == 0 else 1
        depth, dilation = shape[0] // groups, self.rng.choice([1, 2])
        volume = self.reshape(x, (groups, depth, *shape[1:]))
        name, channels = f"conv3d{len(self.layers)}", groups * self.rng.choice([1, 2])
        self.weight(f"{name}.weight", channels, 3, 2, 2)
        self.weight(f"{name}.bias", channels, scale=0.1)
        out = (channels, depth, shape[1] - 1, shape[2] - 1)

        def run(w, v):
            return f.conv3d(v, w[f"{name}.weight"].reshape(channels, 1, 3, 2, 2), w[f"{name}.bias"], 1, (dilation, 0, 0), (dilation, 1, 1), groups)

        return self.add("conv3d", run, [volume], out, name=name, channels=channels, kernel=[3, 2, 2], padding=[dilation, 0, 0], dilation=[dilation, 1, 1], groups=groups)

    def pool(self, x):
        if len(self.shapes[x]) != 3 or min(self.shapes[x][1:]) < 3:
            return None
        c, h, width = self.shapes[x]
        kind = self.rng.choice(["max", "max", "avg", "adaptive_avg", "adaptive_max"])
        if kind.startswith("adaptive"):
            size = [self.rng.randint(1, h - 1), self.rng.randint(1, width)]
            g = f.adaptive_avg_pool2d if kind == "adaptive_avg" else f.adaptive_max_pool2d
            return self.add(f"{kind}_pool2d", lambda w, v: g(v, size), [x], (c, *size), size=size)
        dilation = [self.rng.choice([1, 1, 2]), 1] if kind == "max" and h >= 4 else [1, 1]
        stride, ceil = self.rng.choice([1, 2]), self.rng.random() < 0.4
        if kind == "max":
            run, fields = lambda w, v: f.max_pool2d(v, 2, stride, 1 if dilation == [1, 1] else 0, dilation, ceil), {"dilation": dilation}
        else:
            run, fields = lambda w, v: f.avg_pool2d(v, 2, stride, 1, ceil), {}
        padding = 0 if dilation != [1, 1] else 1
        with torch.no_grad():
            out = run(None, torch.zeros(1, c, h, width)).shape[1:]
        return self.add(f"{kind}_pool2d", run, [x], out, kernel=2, stride=stride, padding=padding, ceil_mode=ceil, **fields)

    def resize(self, x):
        shape = self.shapes[x]
        if len(shape) < 2 or math.prod(shape) > 150:
            return None
        mode = self.rng.choice(["nearest", *{2: ["linear"], 3: ["bilinear", "bicubic"], 4: ["trilinear"]}[len(shape)]])
        corners = {"align_corners": self.rng.random() < 0.5} if mode != "nearest" else {}
        if len(shape) == 3 and self.rng.random() < 0.2:
            return self.add("upsample", lambda w, v: f.interpolate(v, scale_factor=(2, 1)), [x], (shape[0], 2 * shape[1], shape[2]), factor=[2, 1])
        if self.rng.random() < 0.5:
            out = [shape[0], *[2 * n for n in shape[1:]]]
            return self.add("interpolate", lambda w, v: f.interpolate(v, scale_factor=2.0, mode=mode, **corners), [x], out, scale=2, mode=mode, **corners)
        size = [n + self.rng.choice([1, 2, 3]) if n < 3 else n + self.rng.choice([-1, 1, 2]) for n in shape[1:]]
        return self.add("interpolate", lambda w, v: f.interpolate(v, size=size, mode=mode, **corners), [x], (shape[0], *size), size=size, mode=mode, **corners)

    KINDS = [activation, activation, prelu, two, cumsum, roll, pad, slice, split_and_join, transpose, layer_norm, channel_norm, softmax, reduce, gather, argmax, einsum,
             recurrent, attention, conv1d, conv1d, conv2d, conv2d, conv_transpose1d, conv_transpose2d, conv_transpose3d, conv3d,
             pool, pool, pool1d, pool3d, resize, resize]

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

    # Losses: the fields of the job, and a function of the weights and the batch.

    def end(self, x):
        rng, n = self.rng, self.samples
        kind = rng.choice(["values", "values", "binary", "classes", "classes", "shares", "dice", "ctc", "towers", "several"])
        flat = self.flatten(x)
        if kind == "several":
            return self.several(flat)
        return getattr(self, f"end_{kind}")(flat, rng, n)

    def end_values(self, x, rng, n, may_sum=True):
        out = self.dense(x, 3)
        label = self.field("label", self.numbers(n, 3))
        choices = [("mse", {}, f.mse_loss), ("smooth_l1", {"beta": 0.5}, lambda p, l: f.smooth_l1_loss(p, l, beta=0.5)), ("huber", {"delta": 0.7}, lambda p, l: f.huber_loss(p, l, delta=0.7)),
                   ("quantile", {"q": 0.8}, lambda p, l: torch.maximum(0.8 * (l - p), 0.2 * (p - l)).mean()), ("log_cosh", {}, lambda p, l: torch.log(torch.cosh(p - l)).mean()),
                   ("mae", {}, f.l1_loss)]
        type, fields, g = rng.choice(choices)
        if may_sum and rng.random() < 0.2:
            return {"type": type, "reduction": "sum", "weight": 0.02, **fields}, [out, label], lambda p, l: 0.02 * g(p, l) * l.numel()
        return {"type": type, **fields}, [out, label], g

    def end_binary(self, x, rng, n):
        out = self.dense(x, 2)
        label = self.field("label", self.integers(2, n, 2).to(torch.float64))

        def focal(p, l):
            s = torch.sigmoid(p)
            return (f.binary_cross_entropy_with_logits(p, l, reduction="none") * (1 - (s * l + (1 - s) * (1 - l))) ** 2 * (0.25 * l + 0.75 * (1 - l))).mean()

        choices = [("binary_cross_entropy", {}, f.binary_cross_entropy_with_logits), ("focal", {}, focal),
                   ("binary_cross_entropy", {"pos_weight": 2.0}, lambda p, l: f.binary_cross_entropy_with_logits(p, l, pos_weight=torch.tensor(2.0, dtype=p.dtype))),
                   ("poisson", {}, lambda p, l: f.poisson_nll_loss(p, l)), ("hinge", {}, None)]
        type, fields, g = rng.choice(choices)
        if type == "hinge":
            self.fields[label] = 2 * self.fields[label] - 1
            g = lambda p, l: torch.clamp(1 - l * p, min=0).mean()  # noqa: E731
        return {"type": type, **fields}, [out, label], g

    def end_classes(self, x, rng, n):
        out = self.dense(x, 5)
        label = self.field("label", self.integers(5, n))
        if rng.random() < 0.3:
            self.fields[label][::3] = -1
            return {"type": "softmax_cross_entropy", "ignore_index": -1}, [out, label], lambda p, l: f.cross_entropy(p, l, ignore_index=-1)
        if rng.random() < 0.4:
            weights = [0.5, 2.0, 1.25, 0.0, 1.0]
            return ({"type": "softmax_cross_entropy", "class_weights": weights, "label_smoothing": 0.1}, [out, label],
                    lambda p, l: f.cross_entropy(p, l, torch.tensor(weights, dtype=p.dtype), reduction="sum", label_smoothing=0.1) / len(l))
        smoothing = rng.choice([0.0, 0.2])
        return {"type": "softmax_cross_entropy", "label_smoothing": smoothing}, [out, label], lambda p, l: f.cross_entropy(p, l, label_smoothing=smoothing)

    def end_shares(self, x, rng, n):
        out = self.dense(x, 4)
        label = self.field("label", torch.softmax(self.numbers(n, 4), -1).to(torch.float32).to(torch.float64))
        if rng.random() < 0.4:
            log = self.add("softmax", lambda w, v: v.softmax(-1), [out], (4,))
            log = self.add("log", lambda w, v: v.log(), [log], (4,))
            return {"type": "kl_div"}, [log, label], f.kl_div
        return {"type": "softmax_cross_entropy"}, [out, label], f.cross_entropy

    def end_dice(self, x, rng, n):
        out = self.reshape(self.dense(x, 18), (6, 3))
        label = self.field("label", self.integers(3, n, 6))
        squared, background = rng.random() < 0.5, rng.random() < 0.6

        def dice(p, l):
            p, g = p.softmax(-1), f.one_hot(l, 3).to(p.dtype)
            total = (p * p + g * g).sum(1) if squared else (p + g).sum(1)
            each = 1 - (2 * (p * g).sum(1) + 0.5) / (total + 0.5)
            return (each if background else each[:, 1:]).mean()

        return {"type": "dice", "smooth": 0.5, "squared": squared, "background": background}, [out, label], dice

    def end_ctc(self, x, rng, n):
        steps, classes = 7, 4
        out = self.reshape(self.dense(x, steps * classes), (steps, classes))
        label = self.field("label", self.integers(classes - 1, n, 2) + 1)
        lengths = self.integers(2, n) + 1
        loss, tensors = {"type": "ctc"}, [out, label]
        if rng.random() < 0.5:
            tensors.append(self.field("label_lengths", lengths))
        else:
            self.fields[label][lengths == 1, 1] = -1
        if rng.random() < 0.5:
            tensors.append(self.field("input_lengths", self.integers(3, n) + 5))
        has_steps = tensors[-1] == "input_lengths"
        total = rng.random() < 0.3

        def ctc(p, l, *more):
            counts = more[0] if "label_lengths" in tensors else (l > 0).sum(1)
            rows = more[-1] if has_steps else torch.full((len(l),), steps)
            each = f.ctc_loss(p.log_softmax(-1).transpose(0, 1), l.clamp(min=0), rows, counts, reduction="sum" if total else "mean")
            return 0.05 * each if total else each

        return {**loss, **({"reduction": "sum", "weight": 0.05} if total else {})}, tensors, ctc

    def end_towers(self, x, rng, n):
        left, right = self.dense(x, 5), self.branch(x, (5,))
        kind = rng.choice(["cosine_embedding", "triplet", "info_nce"])
        if kind == "cosine_embedding":
            label = self.field("label", torch.sign(self.numbers(n)))
            return {"type": kind, "inputs": [left, right], "margin": 0.1}, [left, right, label], lambda a, b, l: f.cosine_embedding_loss(a, b, l, margin=0.1)
        if kind == "triplet":
            third = self.branch(x, (5,))
            return {"type": kind, "inputs": [left, right, third]}, [left, right, third], f.triplet_margin_loss
        self.mixes_rows = True

        def info_nce(q, k):
            logits = f.normalize(q, dim=-1) @ f.normalize(k, dim=-1).T / 0.5
            own = torch.arange(len(q))
            return (f.cross_entropy(logits, own) + f.cross_entropy(logits.T, own)) / 2

        return {"type": kind, "inputs": [left, right], "temperature": 0.5}, [left, right], info_nce

    def several(self, x):
        """A main loss and one or two auxiliary ones."""
        first, tensors, g = self.end_values(x, self.rng, self.samples, may_sum=False)
        first["input"] = tensors[0]
        size, kind = self.dense(x, 2), self.dense(x, 4)
        size_label, kind_label = self.field("size", self.numbers(self.samples, 2)), self.field("kind", self.integers(4, self.samples))
        first["auxiliary"] = [{"type": "huber", "name": "size", "input": size, "label": "size", "weight": 0.3},
                              {"type": "softmax_cross_entropy", "name": "kind", "input": kind, "label": "kind", "weight": 0.5}]
        return (first, [*tensors, size, size_label, kind, kind_label],
                lambda p, l, s, sl, k, kl: g(p, l) + 0.3 * f.huber_loss(s, sl) + 0.5 * f.cross_entropy(k, kl))
