"""Layers of the reference in JAX (reference.py) as formulas: dropout with its random numbers, convolutions, attention, rotary
positions and experts."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

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
