"""The training of a job in JAX, on one device and in float64: layers as formulas, gradients by jax.grad, optimizers as
PyTorch defines them. It shares no code with the engine; from dump_job it takes initial weights and batches."""

import fnmatch
import functools
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
# Each job is compiled for a hundred small steps, which takes longer than they do.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
except ImportError as error:
    environment = pathlib.Path(__file__).resolve().parents[3] / "build/jax/bin/python3"
    if environment.exists() and pathlib.Path(sys.executable) != environment:
        sys.exit(subprocess.run([environment, *sys.argv], check=False).returncode)
    print(f"SKIPPED: python3 has no {error.name}; ./bootstrap jax installs it")
    sys.exit(SKIPPED)

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")


# Random numbers: Philox 4x32-10 (Salmon et al. 2011), on Python's integers or on arrays of uint64.


def philox(key, low, high):
    mask = 0xFFFFFFFF
    c = [low & mask, low >> 32, high & mask, high >> 32]
    for number in range(10):
        keys = [((key & mask) + number * 0x9E3779B9) & mask, ((key >> 32) + number * 0xBB67AE85) & mask]
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ keys[0], b & mask, (a >> 32) ^ c[3] ^ keys[1], a & mask]
    return c


def hash_of(name):
    """FNV-1a."""
    return functools.reduce(lambda hash, byte: (hash ^ byte) * 0x100000001B3 % 2**64, name.encode(), 0xCBF29CE484222325)


def dropout(x, whole, p, seed, name, step, micro_batch):
    """`whole`: the shape of x for the whole batch, whose numbers are drawn. A micro-batch has the part of one of its dims, or its own
    numbers if no dim, or more than one, depends on the batch."""
    grown = [dim for dim in range(x.ndim) if whole[dim] != x.shape[dim]]
    grown = grown if len(grown) == 1 else []
    words = philox(seed, hash_of(name), 0x7472616963746C)
    size = math.prod(whole) if grown else (micro_batch + 1) * x.size
    random = philox(words[1] << 32 | words[0], jnp.arange((size + 3) // 4, dtype=jnp.uint64), step.astype(jnp.uint64))
    uniform = (jnp.stack(jnp.broadcast_arrays(*random), 1).reshape(-1)[:size] >> 8).astype(jnp.float64) * 2.0**-24
    if grown:
        count = whole[grown[0]] // x.shape[grown[0]]
        uniform = jnp.split(uniform.reshape(whole), count, grown[0])[micro_batch]
    kept = uniform.reshape(-1)[-x.size:].reshape(x.shape) >= float(np.float32(p))
    return jnp.where(kept, x / (1 - p) if p < 1 else 0, 0)


# The network.


def normalized(x, dims, eps, scale, bias, channel):
    x = (x - x.mean(dims, keepdims=True)) / jnp.sqrt(x.var(dims, keepdims=True) + eps)
    shape = [-1 if dim == channel else 1 for dim in range(x.ndim)]
    return x if scale is None else x * scale.reshape(shape) + bias.reshape(shape)


def per_side(values):
    return tuple(values) if len(values) == 2 else (values[0], values[0])


def padding_of(attrs, stride, reach):
    """[(top, bottom), (left, right)]"""
    padding = attrs["padding"]
    if padding == "same":
        return [((r - 1) // 2, r // 2) for r in reach]
    if len(padding) == 4:
        return [tuple(padding[:2]), tuple(padding[2:])]
    return [(p, p) for p in per_side(padding)]


def conv2d(x, weight, bias, attrs):
    stride, dilation = per_side(attrs["stride"]), per_side(attrs["dilation"])
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:])]
    y = jax.lax.conv_general_dilated(x, weight, stride, padding_of(attrs, stride, reach), rhs_dilation=dilation,
                                     dimension_numbers=("NCHW", "OIHW", "NCHW"), feature_group_count=attrs["groups"])
    return y if bias is None else y + bias.reshape(-1, 1, 1)


def pool2d(x, attrs, mean):
    kernel = per_side(attrs["kernel"])
    stride = per_side(attrs.get("stride") or kernel)
    pads = padding_of(attrs, stride, kernel)
    more = [0, 0]  # that the last windows of ceil_mode have beyond the padding
    if attrs["ceil_mode"]:
        for d in range(2):
            room = x.shape[2 + d] + sum(pads[d]) - kernel[d]
            count = -(-room // stride[d]) + 1
            count -= (count - 1) * stride[d] >= x.shape[2 + d] + pads[d][0]
            more[d] = max(0, (count - 1) * stride[d] - room)
    window, strides = (1, 1, *kernel), (1, 1, *stride)
    around = [(0, 0), (0, 0)] + [(before, after + extra) for (before, after), extra in zip(pads, more)]
    if not mean:
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, around)
    ones = jnp.ones((1, 1, *x.shape[2:]))
    outside = [(0, 0), (0, 0)] + [(0, extra) for extra in more]
    if attrs["count_include_pad"]:
        ones, counted = jnp.pad(ones, [(0, 0), (0, 0), *pads], constant_values=1), outside
    else:
        counted = around
    add = functools.partial(jax.lax.reduce_window, init_value=0.0, computation=jax.lax.add, window_dimensions=window, window_strides=strides)
    return add(x, padding=around) / add(ones, padding=counted)


def split_heads(x, attrs):
    """q [b, t, heads, d], k and v [b, t, kv heads, d] of a packed input."""
    heads, kv_heads = attrs["heads"], attrs.get("kv_heads") or attrs["heads"]
    rows = x.reshape(*x.shape[:2], heads + 2 * kv_heads, -1)
    if attrs["packing"] == "qkv":
        return jnp.split(rows, [heads, heads + kv_heads], 2)
    units = rows.reshape(*x.shape[:2], kv_heads, heads // kv_heads + 2, -1)
    return units[:, :, :, :-2].reshape(*x.shape[:2], heads, -1), units[:, :, :, -2], units[:, :, :, -1]


def same_document(first_rows):
    """[b, 1, t, t]: whether a row sees a key, from the first row of each row's document."""
    rows = first_rows[:, :, None]
    return ((rows == first_rows[:, None, :]) & (jnp.arange(first_rows.shape[1]) >= rows))[:, None]


def attention(inputs, attrs):
    heads, kv_heads = attrs["heads"], attrs.get("kv_heads") or attrs["heads"]
    if len(inputs) <= 2:
        q, k, v = split_heads(inputs[0], attrs)
    else:
        q, k, v = (x.reshape(*x.shape[:2], count, -1) for x, count in zip(inputs, (heads, kv_heads, kv_heads)))
    k, v = (jnp.repeat(x, heads // kv_heads, 2) for x in (k, v))
    score = jnp.einsum("bthd,bshd->bhts", q, k) * attrs.get("scale", q.shape[-1] ** -0.5)
    if attrs["softcap"] > 0:
        score = attrs["softcap"] * jnp.tanh(score / attrs["softcap"])
    seen = jnp.tril(jnp.ones(score.shape[-2:], bool)) if attrs["causal"] else jnp.ones(score.shape[-2:], bool)
    if attrs["window"] > 0:
        seen = seen & ~jnp.tril(jnp.ones(score.shape[-2:], bool), -attrs["window"])
    if len(inputs) % 2 == 0:
        seen = seen & (same_document(inputs[-1]) if attrs["mask"] == "documents" else (inputs[-1] != 0)[:, None, None])
    p = jax.nn.softmax(jnp.where(seen, score, -1e30)) * seen.any(-1, keepdims=True)
    return jnp.einsum("bhts,bshd->bthd", p, v).reshape(*inputs[0].shape[:2], -1)


def rotary_frequencies(attrs, features, rows):
    """By pair, and the factor of the rotated features: the formulas of transformers (modeling_rope_utils.py)."""
    pairs, scaling, factor = np.arange(features // 2), attrs["scaling"], attrs.get("factor", 1)
    frequency, length = attrs["base"] ** (-2 * pairs / features), attrs.get("original_max_position_embeddings")
    if scaling == "none":
        return frequency, 1
    if scaling == "linear":
        return frequency / factor, 1
    if scaling == "llama3":
        low, high = attrs["low_freq_factor"], attrs["high_freq_factor"]
        smooth = np.clip((length * frequency / (2 * math.pi) - low) / (high - low), 0, 1)
        return (1 - smooth) * frequency / factor + smooth * frequency, 1
    if scaling == "yarn":
        ends = [features * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(attrs["base"]))
                for turns in (attrs.get("beta_fast", 32), attrs.get("beta_slow", 1))]
        low, high = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), features - 1)
        ramp = np.clip((pairs - low) / (high - low or 0.001), 0, 1)
        of = [0.1 * attrs.get(name, 1) * math.log(factor) + 1 if factor > 1 else 1 for name in ("mscale", "mscale_all_dim")]
        magnitude = of[0] / of[1] if attrs.get("mscale") and attrs.get("mscale_all_dim") else 0.1 * math.log(max(factor, 1)) + 1
        return frequency / factor * ramp + frequency * (1 - ramp), attrs.get("attention_factor", magnitude)
    divisors = np.array(attrs["long_factor" if rows > length else "short_factor"])
    return frequency / divisors, attrs.get("attention_factor", math.sqrt(1 + math.log(max(factor, 1)) / math.log(length)))


def turned(x, attrs, documents):
    """Rotary positions of x [b, t, heads, d]; `documents`: None, or the first row of each row's document."""
    features = attrs.get("rotary_dim") or x.shape[-1]
    half, rows = features // 2, jnp.arange(x.shape[1])[None]
    if documents is not None:
        rows = rows - jnp.minimum(rows, documents)
    frequencies, magnitude = rotary_frequencies(attrs, features, x.shape[1])
    angle = rows[:, :, None, None] * frequencies
    cosine, sine = magnitude * jnp.cos(angle), magnitude * jnp.sin(angle)
    if features < x.shape[-1]:
        begin = attrs.get("rotary_offset", 0)
        end = begin + features
        part = turned(x[..., begin:end], {**attrs, "rotary_dim": features}, documents)
        return jnp.concatenate([x[..., :begin], part, x[..., end:]], -1)
    if attrs["pairs"] == "half":
        a, b = x[..., :half], x[..., half:]
        return jnp.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)
    a, b = x[..., ::2], x[..., 1::2]
    return jnp.stack([a * cosine - b * sine, b * cosine + a * sine], -1).reshape(x.shape)


def rotary(x, attrs, documents=None):
    if attrs["packing"] == "none":
        return turned(x.reshape(*x.shape[:2], attrs["heads"], -1), attrs, documents).reshape(x.shape)
    q, k, v = split_heads(x, attrs)
    q, k = turned(q, attrs, documents), turned(k, attrs, documents)
    if attrs["packing"] == "qkv":
        return jnp.concatenate([q, k, v], 2).reshape(x.shape)
    units = q.reshape(*k.shape[:3], -1, q.shape[-1])
    return jnp.concatenate([units, k[:, :, :, None], v[:, :, :, None]], 3).reshape(x.shape)


def routed(logits, attrs, bias):
    """Weights and ids of the chosen experts of each row."""
    sigmoid, groups = attrs["router.score"] == "sigmoid", attrs["router.groups"]
    scores = jax.nn.sigmoid(logits) if sigmoid else jax.nn.softmax(logits)
    parts = (scores + bias).reshape(*scores.shape[:-1], groups, -1)
    best = jnp.sort(parts)[..., -2:].sum(-1) if sigmoid else parts.max(-1)
    allowed = jax.nn.one_hot(jax.lax.top_k(best, attrs.get("router.top_groups", groups))[1], groups).sum(-2) > 0
    candidates = jnp.where(allowed[..., None], parts, -jnp.inf).reshape(scores.shape)
    ids = jax.lax.top_k(candidates, attrs["top_k"])[1]
    weights = jnp.take_along_axis(scores, ids, -1)
    return attrs["router.scale"] * (weights / weights.sum(-1, keepdims=True) if attrs["router.normalize"] else weights), ids


def balance_losses(logits, chosen, attrs):
    """Auxiliary loss and z-loss of a micro-batch. `chosen`: 1 for each chosen expert of each row."""
    scores = jax.nn.sigmoid(logits) if attrs["router.score"] == "sigmoid" else jax.nn.softmax(logits)
    p, experts = scores / scores.sum(-1, keepdims=True), logits.shape[-1]
    coefficient = attrs.get("router.aux_loss", {"aux_loss": 0.01}.get(attrs["router.balance"], 0))
    if attrs["router.aux_over"] == "sequence":  # DeepSeek-V2
        f = experts / attrs["top_k"] * chosen.reshape(len(chosen), -1, experts).mean(1)
        aux = (f * p.reshape(len(p), -1, experts).mean(1)).sum(-1).mean()
    else:  # Hugging Face
        aux = experts * (chosen.reshape(-1, experts).mean(0) * p.reshape(-1, experts).mean(0)).sum()
    return coefficient * aux + attrs["router.z_loss"] * jnp.square(jax.nn.logsumexp(logits, -1)).mean()


def without_dropped(ids, experts, attrs):
    """1 for each pair that is kept, else 0: each expert keeps the first pairs of a sequence."""
    pairs = jax.nn.one_hot(ids, experts).reshape(len(ids), -1, experts)
    before = ((jnp.cumsum(pairs, 1) - pairs) * pairs).sum(-1)
    most = math.floor(attrs["capacity"] * pairs.shape[1] / experts)
    return (before < most).reshape(ids.shape)


def mixture_of_experts(x, router, up, down, attrs, bias):
    """Every expert computes every row; rows that did not choose it have weight 0. Returns the result, the losses for balance and the
    number of rows that chose each expert."""
    logits, act = x @ router.T, activation_of(attrs)
    weights, ids = routed(logits, attrs, bias)
    chosen = jax.nn.one_hot(ids, len(up)).sum(-2)
    if attrs["drop"]:
        weights = weights * without_dropped(ids, len(up), attrs)
    of_expert = (weights[..., None] * jax.nn.one_hot(ids, len(up))).sum(-2)
    parts = jnp.einsum("ephd,...d->...eph", up, x)
    hidden = act(parts[..., 0, :]) * (parts[..., 1, :] if up.shape[1] == 2 else 1)
    return jnp.einsum("...e,edh,...eh->...d", of_expert, down, hidden), balance_losses(logits, chosen, attrs), chosen.reshape(-1, len(up)).sum(0)


def activation_of(attrs):
    return {"swiglu": jax.nn.silu, "silu": jax.nn.silu, "relu": jax.nn.relu}.get(attrs["activation"], jax.nn.gelu)


def shared_expert(x, weights, name, attrs):
    if not attrs["shared_hidden"]:
        return 0
    up = x @ weights[f"{name}.shared_up.weight"].T
    gate = weights.get(f"{name}.shared_gate.weight")
    act = activation_of(attrs)
    return (act(up) if gate is None else act(x @ gate.T) * up) @ weights[f"{name}.shared_down.weight"].T


class Network:
    def __init__(self, job):
        self.job = job
        self.whole = {}  # layer -> the shape of its output for the whole batch
        self.extra, self.counts = 0, {}  # of layers with experts: losses besides the job's, and the load of a step

    def find_shapes(self, *whole_batch):
        """Fills self.whole from the arguments of `loss` without a micro-batch, up to a layer that computes over the rows and so does
        not take another number of them."""
        try:
            jax.eval_shape(functools.partial(self.loss, micro_batch=None), *whole_batch)
        except (TypeError, ValueError):
            pass

    def loss(self, weights, data, label, step, micro_batch, label_weight=1):
        """`label_weight`: all labels of the batch divided by those that count."""
        values = {"data": data, "label": label}
        for layer in self.job["network"]:
            made = self.apply(layer, weights, [values[name] for name in layer["inputs"]], step, micro_batch)
            if layer["outputs"]:
                values.update((f"{layer['name']}.{output}", part) for output, part in zip(layer["outputs"], made))
                continue
            values[layer["name"]] = made
            if micro_batch is None:
                self.whole[layer["name"]] = values[layer["name"]].shape
        prediction = values[self.job["loss_input"] or self.job["network"][-1]["name"]]
        kind, attrs = self.job["loss"], self.job["loss_attrs"]
        if kind == "softmax_cross_entropy":
            log, e = jax.nn.log_softmax(prediction), attrs["label_smoothing"]
            counts = label.reshape(log.shape[:-1]) != attrs.get("ignore_index", math.nan)
            at_label = jnp.take_along_axis(log, jnp.where(counts, label.reshape(counts.shape), 0).astype(int)[..., None], -1)[..., 0]
            return -jnp.where(counts, (1 - e) * at_label + e * log.mean(-1), 0).mean() * label_weight
        label = label.reshape(prediction.shape)
        if kind == "binary_cross_entropy":
            return -(label * jax.nn.log_sigmoid(prediction) + (1 - label) * jax.nn.log_sigmoid(-prediction)).mean()
        off = prediction - label
        if kind == "smooth_l1":
            beta = attrs["beta"]
            return jnp.where(jnp.abs(off) < beta, off * off / (2 * beta), jnp.abs(off) - beta / 2).mean()
        return {"mae": jnp.abs, "mse": jnp.square}[kind](off).mean()

    def adapter(self, name, weights, x, step, micro_batch):
        """The low-rank product beside dense layer `name`; 0 without one."""
        if f"{name}.lora_a.weight" not in weights:
            return 0
        lora, dropped = self.job["lora"], f"{name}.lora_dropout"
        if micro_batch is None:
            self.whole[dropped] = x.shape
        elif lora["dropout"] > 0:
            x = dropout(x, self.whole.get(dropped, x.shape), lora["dropout"], self.job["seed"], dropped, step, micro_batch)
        return lora["factor"] * (x @ weights[f"{name}.lora_a.weight"].T) @ weights[f"{name}.lora_b.weight"].T

    def apply(self, layer, weights, inputs, step, micro_batch):
        kind, attrs, name, x = layer["type"], layer["attrs"], layer["name"], inputs[0]
        owner = attrs.get("share") or name
        weight, bias = weights.get(f"{owner}.weight"), weights.get(f"{name}.bias")
        if kind == "flatten":
            return x.reshape(len(x), -1)
        if kind == "reshape":
            return x.reshape([len(x)] + attrs["shape"])
        if kind == "dropout":
            return x if micro_batch is None else dropout(x, self.whole.get(name, x.shape), attrs["p"], self.job["seed"], name, step, micro_batch)
        if kind == "dense":
            return x @ weight.T + (0 if bias is None else bias) + self.adapter(name, weights, x, step, micro_batch)
        if kind == "matmul":
            a, b = x, inputs[1] if len(inputs) > 1 else weight
            return (a.mT if attrs.get("transpose_a") else a) @ (b.mT if attrs.get("transpose_b") else b)
        if kind in ("squeeze", "unsqueeze"):
            return x.squeeze(attrs["dim"]) if kind == "squeeze" else jnp.expand_dims(x, attrs["dim"])
        if kind == "slice":
            return jax.lax.slice_in_dim(x, *slice(attrs["begin"], attrs.get("end")).indices(x.shape[attrs["dim"]])[:2], axis=attrs["dim"])
        if kind == "pad":
            around = [[0, 0] for _ in x.shape]
            for side, counts in enumerate([attrs.get("before"), attrs.get("after")]):
                for dim, count in zip(attrs["dims"], counts or []):
                    around[dim][side] += count
            return jnp.pad(x, around, constant_values=attrs["value"])
        if kind == "one_hot":
            return jax.nn.one_hot(x.astype(int), attrs["classes"], dtype=jnp.float64)
        if kind == "position_embedding" and len(inputs) > 1:  # with the first row of each row's document
            rows = jnp.arange(x.shape[1])[None]
            return x + weight[rows - jnp.minimum(rows, inputs[1].astype(int))]
        if kind == "position_embedding":
            return x + weight[:x.shape[-2]]
        if kind == "rms_norm":
            parts = x.reshape(*x.shape[:-1], attrs["heads"], -1)
            scale = 1 if weight is None else attrs["offset"] + weight
            return (parts / jnp.sqrt((parts * parts).mean(-1, keepdims=True) + attrs["eps"]) * scale).reshape(x.shape)
        if kind == "group_norm":
            grouped = x.reshape(len(x), attrs["groups"], -1)
            centred = normalized(grouped, (2,), attrs["eps"], None, None, None).reshape(x.shape)
            of_channel = (-1,) + (1,) * (x.ndim - 2)
            return centred if weight is None else centred * weight.reshape(of_channel) + bias.reshape(of_channel)
        if kind == "conv2d":
            return conv2d(x, weight, bias, attrs)
        if kind in ("max_pool2d", "avg_pool2d"):
            return pool2d(x, attrs, kind == "avg_pool2d")
        if kind == "global_avg_pool":
            return x.mean(tuple(range(2, x.ndim)), keepdims=attrs["keep_dims"])
        if kind == "layer_norm":
            return normalized(x, (-1,), attrs["eps"], weight, bias, x.ndim - 1)
        if kind == "batch_norm":
            channel = attrs["dim"] % x.ndim
            return normalized(x, tuple(dim for dim in range(x.ndim) if dim != channel), attrs["eps"], weight, bias, channel)
        if kind == "attention":
            return attention(inputs, attrs)
        if kind == "moe":
            of_layer = (weights[f"{name}.{of}"] for of in ("router", "up", "down"))
            made, extra, counts = mixture_of_experts(x, *of_layer, attrs, weights.get(f"{name}.balance_bias", 0))
            self.extra = self.extra + extra - jax.lax.stop_gradient(extra)  # only the gradient counts
            self.counts[name] = self.counts.get(name, 0) + counts
            return made + shared_expert(x, weights, name, attrs)
        if kind == "rotary":
            return rotary(*inputs[:1], attrs, *inputs[1:])
        if kind == "embedding":
            return weight[x.astype(int)]
        if kind == "gelu":
            return jax.nn.gelu(x, approximate=attrs["approximate"] == "tanh")
        if kind == "softmax":
            return jax.nn.softmax(x, attrs["dim"])
        if kind == "transpose":
            return x.transpose(attrs["perm"])
        if kind == "split":
            sizes = attrs.get("sizes") or [x.shape[attrs["dim"]] // attrs["parts"]] * attrs["parts"]
            return jnp.split(x, np.cumsum(sizes)[:-1].tolist(), attrs["dim"])
        if kind == "concat":
            return jnp.concatenate(inputs, attrs["dim"])
        if kind in ("reduce_mean", "reduce_sum", "reduce_max"):
            return jnp.atleast_1d(getattr(x, kind[7:])(tuple(attrs["dims"]), keepdims=attrs["keep_dims"]))
        if kind in ("add", "sub", "mul", "div"):
            return {"add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": jnp.divide}[kind](*inputs)
        if kind == "where":
            return jnp.where(inputs[0] != 0, inputs[1], inputs[2])
        if kind == "masked_fill":
            return jnp.where((inputs[1] != 0) != attrs["invert"], attrs["value"], x)
        if kind == "leaky_relu":
            return jax.nn.leaky_relu(x, attrs["negative_slope"])
        if kind == "softplus":
            t = attrs["beta"] * x
            return jnp.where(t > attrs["threshold"], x, jax.nn.softplus(t) / attrs["beta"])
        if kind == "clip":
            return jnp.clip(x, attrs.get("min"), attrs.get("max"))
        if kind == "pow":
            return x ** int(attrs["exponent"]) if attrs["exponent"] == int(attrs["exponent"]) else x ** attrs["exponent"]
        if kind == "scale":
            return attrs["factor"] * x + attrs["shift"]
        if kind == "softcap":
            return attrs["cap"] * jnp.tanh(x / attrs["cap"])
        if kind == "quick_gelu":
            return x * jax.nn.sigmoid(1.702 * x)
        if kind == "elu":
            return jax.nn.elu(x, attrs["alpha"])
        if kind in ("maximum", "minimum"):
            return getattr(jnp, kind)(*inputs)
        more = {"selu": jax.nn.selu, "mish": lambda x: x * jnp.tanh(jax.nn.softplus(x)), "hardswish": lambda x: x * jnp.clip(x + 3, 0, 6) / 6,
                "hardsigmoid": lambda x: jnp.clip(x / 6 + 0.5, 0, 1), "softsign": jax.nn.soft_sign, "log_sigmoid": jax.nn.log_sigmoid,
                "sin": jnp.sin, "cos": jnp.cos}
        if kind in more:
            return more[kind](x)
        return {"relu": jax.nn.relu, "sigmoid": jax.nn.sigmoid, "tanh": jnp.tanh, "silu": jax.nn.silu, "abs": jnp.abs, "exp": jnp.exp,
                "log": jnp.log, "sqrt": jnp.sqrt}[kind](x)


# Its training.


def learning_rate(rate, step, steps):
    warmup, since = rate["warmup_steps"], step - rate["warmup_steps"]
    if since < 0:
        return rate["base"] * (step + 1) / warmup
    if rate["type"] == "step":
        return rate["base"] * rate["gamma"] ** (since // rate["step_size"])
    if rate["type"] == "cosine":
        whole = (rate["total_steps"] or steps) - warmup
        done = min(1, since / whole) if whole > 0 else 1
        return rate["min"] + (rate["base"] - rate["min"]) * (1 + math.cos(math.pi * done)) / 2
    return rate["base"]


def settings_of(o, name):
    """The optimizer's settings of a parameter, and the factor of its learning rate: those of the first group that names it."""
    for group in o["groups"]:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in group["patterns"]):
            return {**o, **group["settings"]}, group["learning_rate_scale"]
    return o, 1


def updated(o, name, w, g, slots, rate, step):
    """A parameter after a step, and the optimizer's state of it."""
    o, scale = settings_of(o, name)
    rate = rate * scale
    decoupled = o["type"] == "adamw"
    if not decoupled:
        g = g + o["weight_decay"] * w
    if o["type"] == "sgd":
        momentum = o["momentum"] * slots[0] + g
        return w - rate * (g + o["momentum"] * momentum if o["nesterov"] else momentum), (momentum, slots[1])
    if o["type"] == "rmsprop":  # without momentum, not centered
        square = o["alpha"] * slots[0] + (1 - o["alpha"]) * g * g
        return w - rate * g / (jnp.sqrt(square) + o["eps"]), (square, slots[1])
    m = o["betas"][0] * slots[0] + (1 - o["betas"][0]) * g
    v = o["betas"][1] * slots[1] + (1 - o["betas"][1]) * g * g
    m_hat, v_hat = m / (1 - o["betas"][0] ** (step + 1.0)), v / (1 - o["betas"][1] ** (step + 1.0))
    kept = w * (1 - rate * o["weight_decay"]) if decoupled else w
    return kept - rate * m_hat / (jnp.sqrt(v_hat) + o["eps"]), (m, v)


def make_step(job):
    network, o, count = Network(job), job["optimizer"], job["micro_batches"]

    def mean_loss(weights, data, label, step):
        network.find_shapes(weights, data, label, step)
        network.extra, network.counts = 0, {}
        parts = zip(jnp.split(data, count), jnp.split(label, count))
        counted = (label != job["loss_attrs"].get("ignore_index", math.nan)).sum()
        label_weight = jnp.where(counted > 0, label.size / jnp.maximum(counted, 1), 0)
        loss = sum(network.loss(weights, *part, step, m, label_weight) for m, part in enumerate(parts))
        return (loss + network.extra) / count, network.counts

    def moved_bias(weights, counts):
        """DeepSeek-V3: the bias of each expert after a step."""
        moved = {}
        for layer in job["network"]:
            name = f"{layer['name']}.balance_bias"
            if name in weights:
                load, speed = counts[layer["name"]], layer["attrs"].get("router.bias_speed", 0.001)
                moved[name] = weights[name] + speed * jnp.sign(load.mean() - load)
        return moved

    @jax.jit
    def run(weights, slots, data, label, rate, step):
        frozen = {name: w for name, w in weights.items() if name in job["frozen"] or name.endswith(".balance_bias")}
        trained = {name: w for name, w in weights.items() if name not in frozen}
        (loss, counts), gradients = jax.value_and_grad(lambda trained: mean_loss({**frozen, **trained}, data, label, step), has_aux=True)(trained)
        if o["clip_norm"] > 0:
            norm = jnp.sqrt(sum(jnp.sum(g * g) for g in gradients.values()))
            gradients = {name: g * jnp.minimum(1, o["clip_norm"] / (norm + 1e-6)) for name, g in gradients.items()}
        after = {name: updated(o, name, w, gradients[name], slots[name], rate, step) for name, w in trained.items()}
        return loss, {**frozen, **moved_bias(weights, counts), **{name: w for name, (w, _) in after.items()}}, {name: state for name, (_, state) in after.items()}

    return run


def read_array(file):
    array = np.load(file)
    return jnp.asarray(array if array.dtype.kind == "i" else array.astype(np.float64))


def reference_losses(dump_job, job_file, overrides=()):
    """{step of the run, from 1: loss} of the job on one rank."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([dump_job, str(job_file), name, *overrides], check=True)
        job = json.loads((folder / "job.json").read_text())
        files = [file for kind in ("weight", "bias", "router", "up", "down", "balance_bias") for file in sorted(folder.glob(f"*.{kind}.npy"))]
        weights = {file.stem: read_array(file) for file in files}
        data, label = read_array(folder / "data.npy"), read_array(folder / "label.npy")
    slots = {name: (jnp.zeros_like(w), jnp.zeros_like(w)) for name, w in weights.items() if name not in job["frozen"] and not name.endswith(".balance_bias")}
    run, losses = make_step(job), {}
    for step in range(job["steps"]):
        rate = learning_rate(job["optimizer"]["learning_rate"], step, job["steps"])
        loss, weights, slots = run(weights, slots, data[step], label[step], rate, jnp.asarray(step))
        losses[step + 1] = float(loss)
    return losses
