"""The training of a job in JAX, on one device and in float64: layers as formulas, gradients by jax.grad, optimizers as
PyTorch defines them. It shares no code with the engine; from dump_job it takes initial weights and batches."""

import functools
import json
import math
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77

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


def split_heads(x, attrs):
    """q [b, t, heads, d], k and v [b, t, kv heads, d] of a packed input."""
    heads, kv_heads = attrs["heads"], attrs.get("kv_heads") or attrs["heads"]
    rows = x.reshape(*x.shape[:2], heads + 2 * kv_heads, -1)
    if attrs["packing"] == "qkv":
        return jnp.split(rows, [heads, heads + kv_heads], 2)
    units = rows.reshape(*x.shape[:2], kv_heads, heads // kv_heads + 2, -1)
    return units[:, :, :, :-2].reshape(*x.shape[:2], heads, -1), units[:, :, :, -2], units[:, :, :, -1]


def attention(inputs, attrs):
    heads, kv_heads = attrs["heads"], attrs.get("kv_heads") or attrs["heads"]
    if len(inputs) <= 2:
        q, k, v = split_heads(inputs[0], attrs)
    else:
        q, k, v = (x.reshape(*x.shape[:2], count, -1) for x, count in zip(inputs, (heads, kv_heads, kv_heads)))
    k, v = (jnp.repeat(x, heads // kv_heads, 2) for x in (k, v))
    score = jnp.einsum("bthd,bshd->bhts", q, k) * attrs.get("scale", q.shape[-1] ** -0.5)
    seen = jnp.tril(jnp.ones(score.shape[-2:], bool)) if attrs["causal"] else jnp.ones(score.shape[-2:], bool)
    if len(inputs) % 2 == 0:
        seen = seen & (inputs[-1] != 0)[:, None, None]
    p = jax.nn.softmax(jnp.where(seen, score, -1e30)) * seen.any(-1, keepdims=True)
    return jnp.einsum("bhts,bshd->bthd", p, v).reshape(*inputs[0].shape[:2], -1)


def turned(x, attrs):
    """Rotary positions of x [b, t, heads, d]."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * attrs["base"] ** (-jnp.arange(half) / half)
    cosine, sine = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    if attrs["pairs"] == "half":
        a, b = x[..., :half], x[..., half:]
        return jnp.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)
    a, b = x[..., ::2], x[..., 1::2]
    return jnp.stack([a * cosine - b * sine, b * cosine + a * sine], -1).reshape(x.shape)


def rotary(x, attrs):
    if attrs["packing"] == "none":
        return turned(x.reshape(*x.shape[:2], attrs["heads"], -1), attrs).reshape(x.shape)
    q, k, v = split_heads(x, attrs)
    q, k = turned(q, attrs), turned(k, attrs)
    if attrs["packing"] == "qkv":
        return jnp.concatenate([q, k, v], 2).reshape(x.shape)
    units = q.reshape(*k.shape[:3], -1, q.shape[-1])
    return jnp.concatenate([units, k[:, :, :, None], v[:, :, :, None]], 3).reshape(x.shape)


class Network:
    def __init__(self, job):
        self.job = job
        self.whole = {}  # layer -> the shape of its output for the whole batch

    def find_shapes(self, *whole_batch):
        """Fills self.whole from the arguments of `loss` without a micro-batch, up to a layer that computes over the rows and so does
        not take another number of them."""
        try:
            jax.eval_shape(functools.partial(self.loss, micro_batch=None), *whole_batch)
        except (TypeError, ValueError):
            pass

    def loss(self, weights, data, label, step, micro_batch):
        values = {"data": data, "label": label}
        for layer in self.job["network"]:
            values[layer["name"]] = self.apply(layer, weights, [values[name] for name in layer["inputs"]], step, micro_batch)
            if micro_batch is None:
                self.whole[layer["name"]] = values[layer["name"]].shape
        prediction = values[self.job["loss_input"] or self.job["network"][-1]["name"]]
        if self.job["loss"] == "softmax_cross_entropy":
            log = jax.nn.log_softmax(prediction)
            return -jnp.take_along_axis(log, label.astype(int).reshape(log.shape[:-1] + (1,)), -1).mean()
        off = prediction - label.reshape(prediction.shape)
        return {"mae": jnp.abs, "mse": jnp.square}[self.job["loss"]](off).mean()

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
            return x @ weight.T + (0 if bias is None else bias)
        if kind == "matmul":
            a, b = x, inputs[1] if len(inputs) > 1 else weight
            return (a.mT if attrs.get("transpose_a") else a) @ (b.mT if attrs.get("transpose_b") else b)
        if kind == "layer_norm":
            return normalized(x, (-1,), attrs["eps"], weight, bias, x.ndim - 1)
        if kind == "batch_norm":
            return normalized(x, tuple(dim for dim in range(x.ndim) if dim != 1), attrs["eps"], weight, bias, 1)
        if kind == "attention":
            return attention(inputs, attrs)
        if kind == "rotary":
            return rotary(x, attrs)
        if kind == "embedding":
            return weight[x.astype(int)]
        if kind == "gelu":
            return jax.nn.gelu(x, approximate=attrs["approximate"] == "tanh")
        if kind == "softmax":
            return jax.nn.softmax(x, attrs["dim"])
        if kind == "transpose":
            return x.transpose(attrs["perm"])
        if kind in ("reduce_mean", "reduce_sum"):
            return jnp.atleast_1d(getattr(x, kind[7:])(tuple(attrs["dims"]), keepdims=attrs["keep_dims"]))
        if kind in ("add", "mul"):
            return inputs[0] + inputs[1] if kind == "add" else inputs[0] * inputs[1]
        return {"relu": jax.nn.relu, "sigmoid": jax.nn.sigmoid, "tanh": jnp.tanh}[kind](x)


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


def updated(o, w, g, slots, rate, step):
    """A parameter after a step, and the optimizer's state of it."""
    decoupled = o["type"] == "adamw"
    if not decoupled:
        g = g + o["weight_decay"] * w
    if o["type"] == "sgd":
        momentum = o["momentum"] * slots[0] + g
        return w - rate * (g + o["momentum"] * momentum if o["nesterov"] else momentum), (momentum, slots[1])
    m = o["betas"][0] * slots[0] + (1 - o["betas"][0]) * g
    v = o["betas"][1] * slots[1] + (1 - o["betas"][1]) * g * g
    m_hat, v_hat = m / (1 - o["betas"][0] ** (step + 1.0)), v / (1 - o["betas"][1] ** (step + 1.0))
    kept = w * (1 - rate * o["weight_decay"]) if decoupled else w
    return kept - rate * m_hat / (jnp.sqrt(v_hat) + o["eps"]), (m, v)


def make_step(job):
    network, o, count = Network(job), job["optimizer"], job["micro_batches"]

    def mean_loss(weights, data, label, step):
        network.find_shapes(weights, data, label, step)
        parts = zip(jnp.split(data, count), jnp.split(label, count))
        return sum(network.loss(weights, *part, step, m) for m, part in enumerate(parts)) / count

    @jax.jit
    def run(weights, slots, data, label, rate, step):
        loss, gradients = jax.value_and_grad(mean_loss)(weights, data, label, step)
        if o["clip_norm"] > 0:
            norm = jnp.sqrt(sum(jnp.sum(g * g) for g in gradients.values()))
            gradients = {name: g * jnp.minimum(1, o["clip_norm"] / (norm + 1e-6)) for name, g in gradients.items()}
        after = {name: updated(o, w, gradients[name], slots[name], rate, step) for name, w in weights.items()}
        return loss, {name: w for name, (w, _) in after.items()}, {name: state for name, (_, state) in after.items()}

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
        files = sorted(folder.glob("*.weight.npy")) + sorted(folder.glob("*.bias.npy"))
        weights = {file.stem: read_array(file) for file in files}
        data, label = read_array(folder / "data.npy"), read_array(folder / "label.npy")
    slots = {name: (jnp.zeros_like(w), jnp.zeros_like(w)) for name, w in weights.items()}
    run, losses = make_step(job), {}
    for step in range(job["steps"]):
        rate = learning_rate(job["optimizer"]["learning_rate"], step, job["steps"])
        loss, weights, slots = run(weights, slots, data[step], label[step], rate, jnp.asarray(step))
        losses[step + 1] = float(loss)
    return losses
