#!/usr/bin/env python3
"""stability.py TRAINCTL [plateau | spikes | states | fp16]: a learning rate that falls on a plateau, steps that are skipped or rolled back after a
spike, and optimizer states in bf16 and int8, and the scale of the loss in fp16,
under several plans and after a resume.

Exits with 77 if PyTorch is missing."""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from training import BATCH, CUTS, HIDDEN, IN, MLP, OUT, PLANS, SAMPLES, Trained, compare, data_of, limit, mlp, mlp_weights, rounded  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402

TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
mse = torch.nn.functional.mse_loss


def plateau():
    """Learning rates equal those of ReduceLROnPlateau after each validation; the run that is resumed in the middle has the same rates and weights."""
    data, label = data_of(21)
    start, steps = mlp_weights(), 60
    fields = {"type": "plateau", "base": 0.3, "factor": 0.5, "patience": 1, "threshold": 0.15, "cooldown": 1, "min": 0.01}
    weights = {name: value.clone().requires_grad_() for name, value in start.items()}
    optimizer = torch.optim.SGD(list(weights.values()), 0.3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, threshold=0.15, cooldown=1, min_lr=0.01)
    rates, losses = [], []
    for step in range(steps):
        rows = slice(step * BATCH % SAMPLES, step * BATCH % SAMPLES + BATCH)
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        loss = mse(mlp(weights, torch.as_tensor(data[rows])), torch.as_tensor(label[rows]))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if (step + 1) % 4 == 0:
            with torch.no_grad():
                scheduler.step(float(mse(mlp(weights, torch.as_tensor(data)), torch.as_tensor(label))))
    assert len(set(rates)) > 2, rates
    for plan, changes in PLANS.items():
        trained = Trained(MLP, "mse", {"type": "sgd", "learning_rate": fields}, start, data, label, steps, changes, validates=4)
        ours = [row["learning_rate"] for row in trained.rows]
        assert max(abs(a - b) for a, b in zip(ours, rates, strict=True)) < 1e-8, (plan, ours, rates)
        compare(f"plateau, {plan}", trained, weights, losses, 2e-6)
    whole, resumed = runs_and_resumes({"type": "sgd", "learning_rate": fields}, {}, {"validation": 4}, 40, 22, data, label, start)
    assert whole == resumed, "a resumed run has other rates, losses or weights"
    print("plateau: a resumed run is the same")


def runs_and_resumes(optimizer, train, more, steps, middle, data, label, start, network=MLP):
    """(rates and losses from `middle` on, final weights) of a run, and of one that is resumed at step `middle`."""
    import safetensors.torch
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "data").mkdir()
        np.save(folder / "data/data.npy", data.astype(np.float32))
        np.save(folder / "data/label.npy", label.astype(np.float32))
        safetensors.torch.save_file({key: value.to(torch.float32).contiguous() for key, value in start.items()}, folder / "start.safetensors")
        job = {"name": "resumed", "seed": 3, "network": network, "loss": "mse", "optimizer": optimizer,
               "dataset": {"type": "npy", "path": str(folder / "data"), "fields": {"data": "data.npy", "label": "label.npy"}, "batch": BATCH,
                           "shuffle": False, "label_dtype": "f32"},
               "weights": {"from": str(folder / "start.safetensors"), "map": "job"},
               "train": {"steps": steps, "checkpoint": {"integrated": True, "every_steps": middle, "keep": 100}, **train}, "launch": {"device": "cpu", "ranks": 1}}
        job |= {field: value for field, value in more.items() if field != "validation"}
        if "validation" in more:
            job["validation"] = {"dataset": {"path": str(folder / "data")}, "every_steps": more["validation"]}
        for run, stops in (("whole", [steps]), ("halves", [middle, steps])):
            for at, stop in enumerate(stops):
                job["train"]["steps"] = stop
                job["launch"]["log_dir"] = str(folder / run)
                (folder / "job.yaml").write_text(json.dumps(job))
                more_arguments = ["--resume-from", str(folder / run / "1")] if at else []
                done = subprocess.run([TRAINCTL, "run", folder / "job.yaml", *more_arguments], capture_output=True, text=True, timeout=600)
                assert done.returncode == 0, done.stdout + done.stderr
            last = folder / run / str(len(stops))
            rows = [json.loads(line) for line in (last / "metrics.jsonl").read_text().splitlines()]
            rows = [row for row in rows if "step" in row and "kind" not in row]
            skipped = int(sum(row.get("skipped", 0) for row in rows))  # of the last run; stdout ends with its last line
            assert not skipped or f", {skipped} step{'s' if skipped > 1 else ''} skipped" in done.stdout, (skipped, done.stdout[-300:])
            rows = [row for row in rows if row["run_step"] > middle]
            saved = max((last / "checkpoints").glob("*/model.safetensors"))
            weights = {key: value.numpy().tobytes() for key, value in safetensors.torch.load_file(saved).items()}
            results.append(([(row["run_step"], row["loss"], row["learning_rate"], row.get("skipped"), row.get("loss_scale")) for row in rows], weights))
    return results


def spikes():
    """A batch with huge labels is skipped, and rolls back under `then: rollback`; PyTorch does the same with the same rule."""
    data, label = data_of(22)
    start, steps, spiky = mlp_weights(), 40, 27
    label = np.concatenate([label] * 10)
    data = np.concatenate([data] * 10)
    label[spiky * BATCH:spiky * BATCH + 3] *= 1000
    for then in ("skip", "rollback"):
        weights = {name: value.clone().requires_grad_() for name, value in start.items()}
        optimizer = torch.optim.SGD(list(weights.values()), 0.05, momentum=0.9)
        norms, skipped, snapshot = [], [], None
        for step in range(steps):
            if step % 10 == 0:
                snapshot = ([w.detach().clone() for w in weights.values()],
                            [optimizer.state[w]["momentum_buffer"].clone() for w in weights.values()] if step else None, list(norms))
            rows = slice(step * BATCH, step * BATCH + BATCH)
            optimizer.zero_grad()
            mse(mlp(weights, torch.as_tensor(data[rows])), torch.as_tensor(label[rows])).backward()
            norm = float(torch.cat([w.grad.flatten() for w in weights.values()]).norm())
            is_spike = len(norms) >= 8 and norm > 5 * float(np.median(norms[-16:]))
            skipped.append(float(is_spike))
            if not is_spike:
                norms.append(norm)
                optimizer.step()
            elif then == "rollback":
                with torch.no_grad():
                    for w, value in zip(weights.values(), snapshot[0], strict=True):
                        w.copy_(value)
                    for w, value in zip(weights.values(), snapshot[1], strict=True):
                        optimizer.state[w]["momentum_buffer"].copy_(value)
                norms = list(snapshot[2])
        assert sum(skipped) == 1 and skipped[spiky], skipped
        train = {"on_spike": {"norm": "5x", "window": 16, "least": 8, "then": then}, "checkpoint": {"integrated": True, "every_steps": 10}}
        for plan, changes in PLANS.items():
            trained = Trained(MLP, "mse", {"type": "sgd", "learning_rate": 0.05, "momentum": 0.9}, start, data, label, steps, changes, train=train)
            assert [row["skipped"] for row in trained.rows] == skipped, (plan, [row["skipped"] for row in trained.rows])
            trained.losses = []
            compare(f"spike, {then}, {plan}", trained, weights, [], limit(5e-6))
        whole, resumed = runs_and_resumes({"type": "sgd", "learning_rate": 0.05, "momentum": 0.9}, {"on_spike": train["on_spike"]}, {}, 40, 20, data, label, start)
        assert whole == resumed, then
        print(f"spike, {then}: a resumed run is the same")


def dynamic_map(is_signed):
    """bitsandbytes.functional.create_dynamic_map."""
    values = []
    for i in range(7):
        items = 2**i + 1 if is_signed else 2 ** (i + 1) + 1
        bounds = torch.linspace(0.1, 1, items)
        means = (bounds[:-1] + bounds[1:]) / 2 * 10.0 ** (i - 6)
        values += means.tolist() + ((-means).tolist() if is_signed else [])
    return torch.tensor(sorted([*values, 0.0, 1.0]), dtype=torch.float64)


def through_codes(state, is_signed):
    codes, flat = dynamic_map(is_signed), state.flatten()
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % 256)).reshape(-1, 256)
    most = blocks.abs().amax(1, keepdim=True)
    ratio = torch.where(most > 0, blocks / most.clamp(min=1e-300), torch.zeros_like(blocks))
    at = torch.searchsorted(codes, ratio).clamp(1, 255)
    lower = ratio - codes[at - 1] <= codes[at] - ratio
    return (codes[torch.where(lower, at - 1, at)] * most).flatten()[:len(flat)].reshape(state.shape)


def states():
    """int8 follows AdamW with states through the codes of bitsandbytes; bf16 stays near fp32; both are the same under every plan."""
    wide, steps = 512, 30
    network = [{**MLP[0], "units": wide}, MLP[1], MLP[2]]
    start = {"layer1.weight": rounded(torch.randn(wide, IN) * 0.4), "layer1.bias": rounded(torch.randn(wide) * 0.1),
             "layer2.weight": rounded(torch.randn(OUT, wide) * 0.05), "layer2.bias": rounded(torch.randn(OUT) * 0.1)}
    data, label = data_of(23)
    plain = {name: value.clone().requires_grad_() for name, value in start.items()}
    coded = {name: value.clone().requires_grad_() for name, value in start.items()}
    kept = {}
    optimizer = torch.optim.AdamW(list(plain.values()), 0.003, weight_decay=0.0)
    for step in range(steps):
        rows = slice(step * BATCH % SAMPLES, step * BATCH % SAMPLES + BATCH)
        optimizer.zero_grad()
        mse(mlp(plain, torch.as_tensor(data[rows])), torch.as_tensor(label[rows])).backward()
        optimizer.step()
        for w in coded.values():
            w.grad = None
        mse(mlp(coded, torch.as_tensor(data[rows])), torch.as_tensor(label[rows])).backward()
        with torch.no_grad():
            for name, w in coded.items():
                m, v = kept.get(name, (torch.zeros_like(w), torch.zeros_like(w)))
                m, v = 0.9 * m + 0.1 * w.grad, 0.999 * v + 0.001 * w.grad**2
                w -= 0.003 * m / (1 - 0.9 ** (step + 1)) / ((v / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8)
                kept[name] = (through_codes(m, True), through_codes(v, False)) if w.numel() >= 4096 else (m, v)
    for kind, expected, tolerance in (("int8", coded, 2e-3), ("bf16", plain, 2e-2)):
        one = None
        for plan, changes in PLANS.items():
            trained = Trained(network, "mse", {"type": "adamw", "learning_rate": 0.003, "state_type": kind}, start, data, label, steps, changes)
            trained.losses = []
            compare(f"states in {kind}, {plan}", trained, expected, [], tolerance)
            if one is None:
                one = trained.weights
            else:  # a rounding of a gradient to the other side may change a code or a random choice
                compare(f"states in {kind}, {plan} and one rank", trained, one, [], 2e-3)
        whole, resumed = runs_and_resumes({"type": "adamw", "learning_rate": 0.003, "state_type": kind}, {}, {}, 20, 10, data, label, start, network)
        assert whole == resumed, kind
        print(f"states in {kind}: a resumed run is the same")


def fp16():
    """The scales and skipped steps of GradScaler, with two batches whose gradients overflow; the weights are near those of autocast."""
    data, label = data_of(24)
    start, steps = mlp_weights(), 40
    data, label = np.concatenate([data] * 10), np.concatenate([label] * 10)
    for spiky in (11, 29):
        label[spiky * BATCH:spiky * BATCH + 2] *= 1e5
    # autocast has gradients of parameters in half precision, which overflow before ours: the scale stays small.
    rule = {"initial_scale": 65536, "growth_interval": 9, "growth_factor": 2, "backoff_factor": 0.5}
    for kind, make in (("sgd", lambda w: torch.optim.SGD(w, 0.05, momentum=0.9)), ("adamw", lambda w: torch.optim.AdamW(w, 0.003, weight_decay=0.1))):
        weights = {name: value.clone().to(torch.float32).requires_grad_() for name, value in start.items()}
        optimizer = make(list(weights.values()))
        scaler = torch.amp.GradScaler("cpu", init_scale=rule["initial_scale"], growth_interval=rule["growth_interval"])
        scales, skipped, losses = [], [], []
        for step in range(steps):
            rows = slice(step * BATCH, step * BATCH + BATCH)
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
            with torch.amp.autocast("cpu", dtype=torch.float16):
                loss = mse(mlp(weights, torch.as_tensor(data[rows]).to(torch.float32)), torch.as_tensor(label[rows]).to(torch.float32))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            skipped.append(float(scaler.get_scale() < scales[-1]))
            losses.append(float(loss.detach()))
        assert skipped[11] and skipped[29] and max(scales) > min(scales), (scales, skipped)
        fields = {"sgd": {"type": "sgd", "learning_rate": 0.05, "momentum": 0.9}, "adamw": {"type": "adamw", "learning_rate": 0.003, "weight_decay": 0.1}}[kind]
        exact = {name: value.detach().to(torch.float64) for name, value in weights.items()}
        for plan, changes in {**PLANS, **CUTS}.items():
            trained = Trained(MLP, "mse", fields, start, data, label, steps, changes, precision="fp16", fp16=rule)
            assert [row["loss_scale"] for row in trained.rows] == scales, (kind, plan, [row["loss_scale"] for row in trained.rows], scales)
            assert [row["skipped"] for row in trained.rows] == skipped, (kind, plan)
            compare(f"fp16, {kind}, {plan}", trained, exact, losses, 1e-3)
        whole, resumed = runs_and_resumes(fields, {}, {"precision": "fp16", "fp16": rule}, 40, 15, data, label, start)
        assert whole == resumed, "a resumed run has another scale, losses or weights"
        print(f"fp16, {kind}: a resumed run is the same")


if __name__ == "__main__":
    groups = {"plateau": plateau, "spikes": spikes, "states": states, "fp16": fp16}
    for group in sys.argv[2:] or groups:
        groups[group]()
