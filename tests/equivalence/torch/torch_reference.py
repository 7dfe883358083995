#!/usr/bin/env python3
"""torch_reference.py DUMP_RUN [JOB.yaml ...]: trains jobs with trainctl on one rank and with PyTorch on the CPU from the
same initial weights and batches, and compares the loss of every step. Exit code 77: there is no torch.

Of jobs of files, which random_jobs.py --write makes, one that amplifies rounding may differ by some 1e-4 after many steps."""

import json
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77

try:
    import numpy as np
    import torch
    from torch.nn import functional as F
except ImportError as error:
    print(f"SKIPPED: python3 has no {error.name}; install torch and numpy to compare with PyTorch")
    sys.exit(SKIPPED)

SGD, ADAM = 1e-5, 1e-4  # relative; adam's division magnifies rounding

MLP = """
dataset: {type: random, shape: [4, 6], label_dtype: f32, batch: 24, samples: 96}
network:
  - {type: flatten}
  - {name: layer1, type: dense, units: 48}
  - {name: relu1, type: relu}
  - {name: layer2, type: dense, units: 48}
  - {name: relu2, type: relu}
  - {name: layer3, type: dense, units: 1}
loss: mae
"""
CLASSIFIER = """
dataset: {type: random, shape: [20], classes: 12, batch: 24, samples: 96}
network:
  - {name: fc1, type: dense, units: 24}
  - {name: norm1, type: layer_norm}
  - {name: act1, type: gelu}
  - {name: fc2, type: dense, units: 24}
  - {name: skip, type: add, inputs: [fc2, act1]}
  - {name: act2, type: gelu, approximate: tanh}
  - {name: head, type: dense, units: 12}
loss: softmax_cross_entropy
"""
BATCH_NORM = """
dataset: {type: random, shape: [10], label_dtype: f32, label_shape: [4], batch: 24, samples: 96}
network:
  - {name: fc1, type: dense, units: 16}
  - {name: bn1, type: batch_norm}
  - {name: act1, type: tanh}
  - {name: fc2, type: matmul, units: 16}
  - {name: bn2, type: batch_norm, affine: false}
  - {name: act2, type: sigmoid}
  - {name: fc3, type: dense, units: 4, bias: false}
loss: mse
"""
LANGUAGE = """
dataset: {type: random, shape: [6], dtype: i32, label_shape: [6], classes: 24, batch: 12, samples: 48}
network:
  - {name: embed, type: embedding, vocab: 24, units: 12, init_std: 0.1}
  - {name: norm1, type: layer_norm}
  - {name: fc1, type: dense, units: 24}
  - {name: act1, type: gelu}
  - {name: fc2, type: dense, units: 12}
  - {name: skip, type: add, inputs: [fc2, norm1]}
  - {name: head, type: dense, units: 24, share: embed, bias: false}
loss: softmax_cross_entropy
"""
ATTENTION = """
dataset: {type: random, shape: [4, 12], label_dtype: f32, label_shape: [8], batch: 24, samples: 96}
network:
  - {name: q, type: dense, units: 12, inputs: [data]}
  - {name: k, type: dense, units: 12, inputs: [data]}
  - {name: v, type: dense, units: 12, inputs: [data]}
  - {name: scores, type: matmul, inputs: [q, k], transpose_b: true}
  - {name: weights, type: softmax}
  - {name: mixed, type: matmul, inputs: [weights, v]}
  - {name: turned, type: transpose, perm: [0, 2, 1]}
  - {name: mean, type: reduce_mean, dims: [2]}
  - {name: gate, type: sigmoid}
  - {name: gated, type: mul, inputs: [mean, gate]}
  - {name: out, type: dense, units: 8}
loss: mse
"""

PLAIN = "{type: sgd, learning_rate: 0.01}"
NESTEROV = "{type: sgd, learning_rate: 0.02, momentum: 0.9, nesterov: true, weight_decay: 0.001}"
CLIPPED = "{type: sgd, learning_rate: 0.05, momentum: 0.9, clip_norm: 0.3}"
ADAM_JOB = "{type: adam, learning_rate: 0.001, weight_decay: 0.01}"
ADAMW_JOB = "{type: adamw, learning_rate: 0.001, weight_decay: 0.05, clip_norm: 0.5}"

CASES = [
    ("mlp, mae, sgd", MLP, PLAIN, SGD),
    ("mlp, mae, nesterov and weight decay", MLP, NESTEROV, SGD),
    ("mlp, mae, adam", MLP, ADAM_JOB, ADAM),
    ("classifier, layer_norm, gelu, sgd", CLASSIFIER, PLAIN, SGD),
    ("classifier, layer_norm, gelu, clipped", CLASSIFIER, CLIPPED, SGD),
    ("classifier, layer_norm, gelu, adamw", CLASSIFIER, ADAMW_JOB, ADAM),
    ("batch_norm, nesterov and weight decay", BATCH_NORM, NESTEROV, SGD),
    ("batch_norm, adam", BATCH_NORM, ADAM_JOB, ADAM),
    ("tied embeddings, sgd", LANGUAGE, CLIPPED, SGD),
    ("tied embeddings, adamw", LANGUAGE, ADAMW_JOB, ADAM),
    ("attention by hand, sgd", ATTENTION, CLIPPED, SGD),
]


class Network:
    """The layers of a job file, in PyTorch's own functions."""

    def __init__(self, job, folder):
        self.job = job
        self.weights = {file.stem: torch.tensor(np.load(file), requires_grad=True)
                        for file in sorted(folder.glob("*.weight.npy")) + sorted(folder.glob("*.bias.npy"))}

    def forward(self, data, label):
        values = {"data": data, "label": label}
        for layer in self.job["network"]:
            inputs = [values[name] for name in layer["inputs"]]
            values[layer["name"]] = self.apply(layer, inputs)
        return values[self.job["loss_input"] or self.job["network"][-1]["name"]]

    def apply(self, layer, inputs):
        kind, attrs, name = layer["type"], layer["attrs"], layer["name"]
        weight = lambda part: self.weights.get(f"{name}.{part}")
        x = inputs[0]
        if kind == "flatten":
            return x.reshape(len(x), -1)
        if kind == "reshape":
            return x.reshape([len(x)] + attrs["shape"])
        if kind == "dropout":
            return x
        if kind == "dense":
            shared = attrs.get("share")
            return F.linear(x, self.weights[f"{shared}.weight"] if shared else weight("weight"), weight("bias"))
        if kind == "matmul":
            a = x.mT if attrs.get("transpose_a") else x
            b = inputs[1] if len(inputs) > 1 else weight("weight")
            return a @ (b.mT if attrs.get("transpose_b") else b)
        if kind == "layer_norm":
            return F.layer_norm(x, x.shape[-1:], weight("weight"), weight("bias"), attrs["eps"])
        if kind == "batch_norm":
            return F.batch_norm(x, None, None, weight("weight"), weight("bias"), True, 0.1, attrs["eps"])
        if kind == "embedding":
            shared = attrs.get("share")
            return F.embedding(x.long(), self.weights[f"{shared or name}.weight"])
        if kind == "gelu":
            return F.gelu(x, approximate=attrs["approximate"])
        if kind == "softmax":
            return torch.softmax(x, attrs["dim"])
        if kind == "transpose":
            return x.permute(attrs["perm"])
        if kind in ("reduce_mean", "reduce_sum"):
            reduce = torch.mean if kind == "reduce_mean" else torch.sum
            return torch.atleast_1d(reduce(x, attrs["dims"], keepdim=attrs["keep_dims"]))
        simple = {"relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}
        if kind in simple:
            return simple[kind](x)
        pairs = {"add": torch.add, "mul": torch.mul}
        return pairs[kind](*inputs)

    def loss(self, prediction, label):
        if self.job["loss"] == "softmax_cross_entropy":
            return F.cross_entropy(prediction.flatten(0, -2), label.long().flatten())
        function = {"mae": F.l1_loss, "mse": F.mse_loss}[self.job["loss"]]
        return function(prediction, label.reshape(prediction.shape))


def make_optimizer(options, parameters):
    rate, decay = options["learning_rate"], options["weight_decay"]
    if options["type"] == "sgd":
        return torch.optim.SGD(parameters, rate, options["momentum"], 0, decay, options["nesterov"])
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[options["type"]]
    return kind(parameters, rate, options["betas"], options["eps"], decay)


def torch_losses(folder):
    job = json.loads((folder / "job.json").read_text())
    network = Network(job, folder)
    parameters = list(network.weights.values())
    optimizer = make_optimizer(job["optimizer"], parameters)
    data, label = (torch.tensor(np.load(folder / f"{name}.npy")) for name in ("data", "label"))
    losses = []
    for step in range(len(data)):
        optimizer.zero_grad()
        loss = network.loss(network.forward(data[step], label[step]), label[step])
        loss.backward()
        if job["optimizer"]["clip_norm"] > 0:
            torch.nn.utils.clip_grad_norm_(parameters, job["optimizer"]["clip_norm"])
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def compare(dump_run, job_text):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        job = folder / "job.yaml"
        job.write_text(job_text)
        subprocess.run([dump_run, str(job), name], check=True)
        ours = np.load(folder / "losses.npy").astype(np.float64)
        theirs = torch_losses(folder)
    assert len(ours) == len(theirs) > 0, (len(ours), len(theirs))
    return np.max(np.abs(ours - theirs) / np.maximum.accumulate(np.abs(theirs))), ours


def cases():
    if sys.argv[2:]:
        return [(file, pathlib.Path(file).read_text(), ADAM) for file in sys.argv[2:]]
    return [(name, f"name: torch\nseed: 3\n{job}optimizer: {optimizer}\ntrain: {{epochs: 25}}\nlaunch: {{ranks: 1, device: cpu}}\n",
             tolerance) for name, job, optimizer, tolerance in CASES]


def main():
    torch.set_num_threads(1)
    failed, jobs = 0, cases()
    for name, job, tolerance in jobs:
        worst, losses = compare(sys.argv[1], job)
        good = worst < tolerance
        failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {name}: loss {losses[0]:.5f} to {losses[-1]:.5f}, largest relative "
              f"difference {worst:.2e}, allowed {tolerance:.0e}")
    print(f"torch {torch.__version__}: {len(jobs) - failed} of {len(jobs)} jobs follow PyTorch")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
