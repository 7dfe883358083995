#!/usr/bin/env python3
"""experts.py TRAINCTL DUMP_JOB: the output and all gradients of layers `moe` are those of plain PyTorch in fp32, and the auxiliary loss is that
of transformers. Runs under build/peers (./bootstrap peers), if this Python lacks PyTorch; exits with 77 if a package is missing."""

import math
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from limits import limit  # noqa: E402

SKIPPED = 77

try:
    import numpy as np
    import safetensors.torch
    import torch
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
except ImportError as error:
    environment = pathlib.Path(__file__).resolve().parents[3] / "build/peers/bin/python3"
    if environment.exists() and pathlib.Path(sys.executable) != environment:
        sys.exit(subprocess.run([environment, *sys.argv], check=False).returncode)
    print(f"SKIPPED: {sys.executable} has no {error.name}; ./bootstrap peers installs it")
    sys.exit(SKIPPED)

TOLERANCE = limit(1e-5)  # of the largest value
RATE = 1000.0  # so large that the change of a weight has all digits of the gradient
TRAINCTL, DUMP_JOB = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:])
BATCH, LENGTH, FEATURES = 6, 8, 16

JOB = """
name: experts
seed: 3
dataset: {{type: random, shape: [{length}, {features}], label_shape: [{length}, {features}], label_dtype: f32, batch: {batch}, samples: {batch}}}
network:
  - {{name: moe, type: moe, {moe}}}
loss: mse
optimizer: {{type: sgd, learning_rate: {rate}}}
train: {{steps: 1, checkpoint: {{integrated: true}}}}
print: {{tensors: [moe], format: npy}}
launch: {{ranks: 1, device: cpu}}
"""

ALONE = ["launch.ranks=1"]
EXPERTS = ["launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.expert=2"]

CASES = [  # fields of the layer, what PyTorch computes
    (dict(experts=8, top_k=2, hidden=12), {}),
    (dict(experts=8, top_k=2, hidden=12), dict(balance="aux_loss", aux_loss=3.0, z_loss=0.5)),
    (dict(experts=6, top_k=1, hidden=8, activation="geglu"), dict(normalize="false", scale=2.0)),
    (dict(experts=12, top_k=3, hidden=12, shared_hidden=20), dict(score="sigmoid", scale=2.5, groups=4, top_groups=2, balance="bias", aux_loss=2.0, aux_over="sequence")),
    (dict(experts=8, top_k=2, hidden=12, shared_hidden=4, activation="relu"), dict(balance="aux_loss", aux_loss=3.0, aux_over="sequence")),
    (dict(experts=8, top_k=2, hidden=12, activation="gelu", capacity=1.25, drop="true"), dict(balance="aux_loss", aux_loss=1.0)),
]


def text_of(fields):
    return ", ".join(f"{name}: {value}" for name, value in fields.items())


def chosen(scores, fields, router):
    experts, groups, k = fields["experts"], router.get("groups", 1), fields["top_k"]
    parts = scores.view(*scores.shape[:-1], groups, -1)
    best = parts.topk(min(2, parts.shape[-1]), -1).values.sum(-1) if router.get("score") == "sigmoid" else parts.amax(-1)
    allowed = torch.zeros_like(best).scatter_(-1, best.topk(router.get("top_groups", groups), -1).indices, 1) > 0
    return parts.masked_fill(~allowed[..., None], -math.inf).reshape(scores.shape).topk(k, -1).indices


def auxiliary_loss(logits, p, ids, fields, router):
    n, k = fields["experts"], fields["top_k"]
    coefficient = router.get("aux_loss", 0.0)
    if coefficient == 0:
        return 0.0
    if router.get("aux_over") != "sequence":
        return coefficient * load_balancing_loss_func((logits.view(-1, n),), n, k)
    losses = 0.0  # as in the modelling file of DeepSeek-V2, seq_aux
    for sequence_p, sequence_ids in zip(p, ids):
        f = torch.bincount(sequence_ids.flatten(), minlength=n).float() * n / (k * len(sequence_p))
        losses = losses + (f * sequence_p.mean(0)).sum()
    return coefficient * losses / len(p)


def without_dropped(weights, ids, fields):
    if fields.get("drop") != "true":
        return weights
    most, kept = math.floor(fields["capacity"] * LENGTH * fields["top_k"] / fields["experts"]), torch.zeros_like(weights)
    for row in range(BATCH):
        taken = [0] * fields["experts"]
        for t in range(LENGTH):
            for j in range(fields["top_k"]):
                expert = int(ids[row, t, j])
                kept[row, t, j] = taken[expert] < most
                taken[expert] += 1
    return weights * kept


def activation(name):
    return {"swiglu": torch.nn.functional.silu, "relu": torch.relu}.get(name, lambda x: torch.nn.functional.gelu(x, approximate="tanh"))


def layer(x, w, fields, router):
    """The output, and the losses for balance."""
    act = activation(fields.get("activation", "swiglu"))
    logits = x @ w["moe.router"].T
    scores = logits.sigmoid() if router.get("score") == "sigmoid" else logits.softmax(-1)
    ids = chosen(scores.detach(), fields, router)
    weights = scores.gather(-1, ids)
    if router.get("normalize", "true") == "true":
        weights = weights / weights.sum(-1, keepdim=True)
    weights = without_dropped(weights * router.get("scale", 1.0), ids, fields)
    made = torch.zeros_like(x)
    for e, (up, down) in enumerate(zip(w["moe.up"], w["moe.down"])):
        of_expert = (weights * (ids == e)).sum(-1, keepdim=True)
        hidden = act(x @ up[0].T)
        made = made + of_expert * ((hidden * (x @ up[1].T) if len(up) == 2 else hidden) @ down.T)
    losses = auxiliary_loss(logits, scores / scores.sum(-1, keepdim=True), ids, fields, router)
    losses = losses + router.get("z_loss", 0.0) * logits.logsumexp(-1).square().mean()
    if "shared_hidden" in fields:
        up = x @ w["moe.shared_up.weight"].T
        gate = w.get("moe.shared_gate.weight")
        made = made + (act(up) if gate is None else act(x @ gate.T) * up) @ w["moe.shared_down.weight"].T
    return made, losses


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}"


def apart(found, expected):
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-12))


def check(fields, router, plan, folder):
    job = folder / "job.yaml"
    moe = text_of(fields) + (f", router: {{{text_of(router)}}}" if router else "")
    job.write_text(JOB.format(moe=moe, batch=BATCH, length=LENGTH, features=FEATURES, rate=RATE))
    (folder / "dump").mkdir()
    run(DUMP_JOB, job, folder / "dump", "launch.ranks=1")
    run(TRAINCTL, "run", job, *plan, f"launch.log_dir={folder / 'runs'}")
    w = {file.stem: torch.from_numpy(np.load(file)).requires_grad_() for file in (folder / "dump").glob("moe.*.npy")}
    data, label = (torch.from_numpy(np.load(folder / "dump" / f"{name}.npy"))[0] for name in ("data", "label"))
    made, losses = layer(data, w, fields, router)
    ((made - label.view_as(made)).square().mean() + losses).backward()
    printed = "moe.shared" if "shared_hidden" in fields else "moe"
    output = torch.from_numpy(np.load(folder / f"runs/1/tensors/step.1/{printed}.npy"))
    after = safetensors.torch.load_file(next((folder / "runs/1").glob("**/model.safetensors")))
    worst = {"output": apart(output, made.detach())}
    for name, weight in w.items():
        if weight.grad is not None:
            worst[name] = apart((weight.detach() - after[f"{name}:weight"]) / RATE, weight.grad)
    assert len(worst) >= 4, worst
    return worst


def main():
    failed = 0
    for fields, router in CASES:
        for plan in (ALONE, EXPERTS):
            with tempfile.TemporaryDirectory() as name:
                worst = check(fields, router, plan, pathlib.Path(name))
            fine = max(worst.values()) < TOLERANCE
            failed += not fine
            print(f"{'ok  ' if fine else 'FAIL'} {text_of(fields)}; {text_of(router)}; {' '.join(plan)}: "
                  f"{', '.join(f'{name} {off:.1e}' for name, off in worst.items())}", flush=True)
    print(f"PyTorch {torch.__version__}: {2 * len(CASES) - failed} of {2 * len(CASES)} layers follow it")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
