"""The training of a job in JAX, on one device and in float64: layers as formulas, gradients by jax.grad, optimizers as
PyTorch defines them. It shares no code with the engine; from dump_job it takes initial weights and batches."""

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
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

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

from reference_layers import attention, conv2d, dropout, mixture_of_experts, normalized, pool2d, rotary, shared_expert
from reference_updates import learning_rate, updated


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
    """An array of NumPy: JAX compiles a program for each shape that it copies, fills or indexes."""
    array = np.load(file)
    return array if array.dtype.kind == "i" else array.astype(np.float64)


def reference_losses(dump_job, job_file, overrides=()):
    """{step of the run, from 1: loss} of the job on one rank."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([dump_job, str(job_file), name, *overrides], check=True)
        job = json.loads((folder / "job.json").read_text())
        files = [file for kind in ("weight", "bias", "router", "up", "down", "balance_bias") for file in sorted(folder.glob(f"*.{kind}.npy"))]
        weights = {file.stem: read_array(file) for file in files}
        data, label = read_array(folder / "data.npy"), read_array(folder / "label.npy")
    slots = {name: (np.zeros_like(w), np.zeros_like(w)) for name, w in weights.items() if name not in job["frozen"] and not name.endswith(".balance_bias")}
    run, losses = make_step(job), {}
    for step in range(job["steps"]):
        rate = learning_rate(job["optimizer"]["learning_rate"], step, job["steps"])
        loss, weights, slots = run(weights, slots, data[step], label[step], rate, np.int64(step))
        losses[step + 1] = float(loss)
    return losses
