#!/usr/bin/env python3
"""Random plans of mixtures of experts follow one rank.

    expert_plans.py --trainctl build/release/bin/trainctl --plans 40 --seed 1

Draws plans for small networks like Mixtral, like DeepSeek-V3 and like gpt-oss: ranks, stages, micro-batches, schedules, cuts of the experts,
of their hidden features, of the batch and of the positions, exchanges of tokens, optimizer sharding, recomputation. Each must have the losses of one rank with
the same number of micro-batches. Then all tokens choose the same experts, which gather tokens or receive them by exchange: capacity decides
whether the run ends with an error, drops tokens or continues. At last a run that is killed resumes with another number of experts per rank.

With --emulated build/release/bin/test_cuda_emulated, the plans that exchange tokens run on emulated GPUs, with links so slow that rows are counted.
"""
import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

from runs import Failure, call, comparable, difference, of_steps, read_losses, run_losses

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from limits import limit  # noqa: E402

TOLERANCE = limit(1e-5)  # of the largest loss so far; 2e-7 was seen
EMULATED_TOLERANCE = 1e-5
STEPS = 16
HERE = pathlib.Path(__file__).resolve().parent

NETWORK = """
name: {name}
seed: 41
dataset: {{type: random, shape: [8], dtype: i32, label_shape: [8], label_dtype: i32, classes: {classes}, batch: 24, samples: 96}}
modules:
  block:
    - {{name: norm1, type: rms_norm}}
    - {{name: qkv, type: dense, units: 48, bias: false}}
    - {{name: attn, type: attention, heads: 2, causal: true{attention}}}
    - {{name: proj, type: dense, units: 16, bias: false}}
    - {{name: sum1, type: add, inputs: [proj, input]}}
    - {{name: norm2, type: rms_norm}}
    - {{name: moe, type: moe, {moe}}}
    - {{name: sum2, type: add, inputs: [moe, sum1]}}
network:
  - {{name: table, type: embedding, vocab: 32, units: 16, init: {{type: normal, std: 0.5}}}}
  - {{module: block, name: h, repeat: 2}}
  - {{name: norm, type: rms_norm}}
  - {{name: head, type: dense, units: 32, bias: false}}
loss: softmax_cross_entropy
optimizer: {{type: adamw, learning_rate: 0.002, weight_decay: 0.1, clip_norm: 1.0}}
train: {{steps: {steps}}}
launch: {{ranks: 1, device: cpu, timeout: 60}}
"""
MIXTRAL = "experts: 8, top_k: 2, hidden: 12, capacity: 4, router: {balance: aux_loss, aux_loss: 0.1, z_loss: 0.01}"
DEEPSEEK = ("experts: 12, top_k: 3, hidden: 12, shared_hidden: 12, capacity: 4, router: {score: sigmoid, scale: 2.5, groups: 4, top_groups: 2, "
            "balance: bias, bias_speed: 0.01, aux_loss: 0.01, aux_over: sequence}")
GPT_OSS = "experts: 8, top_k: 3, hidden: 12, capacity: 4, activation: clamped_swiglu, bias: true, router: {bias: true}"
NETWORKS = {"mixtral": (MIXTRAL, 8), "deepseek": (DEEPSEEK, 12), "gpt_oss": (GPT_OSS, 8)}  # and their experts


def job_text(name, moe, classes=32, steps=STEPS):
    attention = ", sinks: true" if moe == GPT_OSS else ""
    return NETWORK.format(name=name, moe=moe, classes=classes, steps=steps, attention=attention)


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


def draw_plan(rng, experts, has_biases=False):
    """Overrides of the plan, and the number of micro-batches, which one rank has too."""
    ranks = rng.choice([2, 3, 4, 4, 6, 8])
    stages = rng.choice([s for s in (1, 1, 2) if ranks % s == 0])
    in_stage, micro = ranks // stages, rng.choice([1, 2, 2, 4] if stages == 1 else [2, 4])
    batch = 24 // micro
    overrides = [f"launch.ranks={ranks}", f"parallel.stages={stages}"]
    if stages > 1:
        overrides.append(f"parallel.schedule={rng.choice(['gpipe', '1f1b', 'zero_bubble'])}")
    kind = rng.choice(["data", "expert", "cuts", "cuts", "exchange", "exchange"])
    over = [d for d in divisors(in_stage) if experts % d == 0 and batch % (in_stage // d) == 0]
    if kind == "data" and batch % in_stage == 0:
        overrides.append("parallel.mode=data_parallel")
    elif kind == "expert" and over:
        overrides += ["parallel.mode=semi_auto_parallel", f"parallel.expert={rng.choice(over)}"]
        if "parallel.expert=1" not in overrides and batch * 8 % in_stage == 0:
            overrides.append(f"parallel.expert_method={rng.choice(['auto', 'gather', 'all_to_all'])}")
    else:
        sizes = {"rows": batch, "positions": 8, "experts": experts, "hidden": 4}  # hidden: 4 blocks of 3
        cuts, left = dict.fromkeys(sizes, 1), in_stage
        for name in rng.sample(sorted(sizes), len(sizes)):
            cuts[name] = rng.choice([d for d in divisors(left) if sizes[name] % d == 0])
            left //= cuts[name]
        if kind == "exchange":  # the experts over ranks that share the tokens
            left = in_stage
            for name in ("rows", "positions", "hidden"):
                cuts[name] = rng.choice([d for d in divisors(left) if sizes[name] % d == 0])
                left //= cuts[name]
            tokens = cuts["rows"] * cuts["positions"]
            cuts["experts"] = rng.choice([d for d in divisors(tokens) if experts % d == 0 and (d > 1 or tokens == 1)] or [1])
        x, up = [cuts["rows"], cuts["positions"], 1], [cuts["experts"], 1, cuts["hidden"], 1]
        down = [cuts["experts"], 1, cuts["hidden"]]
        overrides += ["parallel.mode=semi_auto_parallel", f"parallel.strategies={{'h.*.moe': {cuts_of_moe(x, up, down, has_biases)}}}"]
    if rng.random() < 0.5:
        overrides.append(f"parallel.optimizer_shard={{level: {rng.choice([1, 2, 3])}, min_kb: 0}}")
    if rng.random() < 0.4:
        overrides.append("parallel.recompute=['h.*']")
    return overrides, micro


def cuts_of_moe(x, up, down, has_biases):
    """The cuts of a strategy: biases are cut like their weights, without the features."""
    return [x, [1, 1], [1], up, down, up[:3], down[:2]] if has_biases else [x, [1, 1], up, down]


def follow_plans(trainctl, folder, name, moe, experts, plans, rng):
    path = folder / f"{name}.yaml"
    path.write_text(job_text(name, moe))
    references, failed = {}, 0
    for number in range(plans):
        overrides, micro = draw_plan(rng, experts, moe == GPT_OSS)
        same = [f"parallel.micro_batches={micro}"]
        if micro not in references:
            references[micro] = of_steps(run_losses(trainctl, path, same))
        reference = references[micro]
        try:
            found = of_steps(run_losses(trainctl, path, same + overrides))
        except Failure as failure:
            print(f"FAIL {name} {number}: {' '.join(same + overrides)}\n{failure}", flush=True)
            failed += 1
            continue
        assert sorted(found) == sorted(reference) and len(found) == STEPS
        worst, at = difference(found, reference, comparable(reference))
        failed += not worst < TOLERANCE
        print(f"{'ok  ' if worst < TOLERANCE else 'FAIL'} {name} {number}: {' '.join(same + overrides)}: largest difference {worst:.1e} at "
              f"step {at}", flush=True)
    return failed


def as_file(text, overrides):
    """The job with overrides like launch.ranks=2, on GPUs with slow links."""
    sections = {"launch": {"device": "cuda", "machine": str(HERE / "slow_links.json"), "timeout": "60"}, "parallel": {}}
    for override in overrides:
        name, _, value = override.partition("=")
        section, _, field = name.partition(".")
        sections[section][field] = value
    kept = [line for line in text.splitlines() if not line.startswith("launch:")]
    flow = {section: ", ".join(f"{field}: {value}" for field, value in fields.items()) for section, fields in sections.items()}
    return "\n".join([*kept, *(f"{section}: {{{fields}}}" for section, fields in flow.items())]) + "\n"


def follow_emulated(trainctl, emulated, folder, name, moe, experts, plans, rng):
    """Plans of at most 4 ranks that exchange tokens, on emulated GPUs."""
    path, steps, failed = folder / f"{name}.yaml", 3, 0
    path.write_text(job_text(name, moe, steps=steps))
    references = {}
    while plans > 0:
        overrides, micro = draw_plan(rng, experts, moe == GPT_OSS)
        ranks = int(overrides[0].partition("=")[2])
        shown = call([trainctl, "plan", "--json", str(path), f"parallel.micro_batches={micro}", "launch.device=cuda", f"launch.machine={HERE / 'slow_links.json'}", *overrides])[1]
        if ranks > 4 or '"expected_bytes"' not in shown:
            continue
        plans -= 1
        if micro not in references:
            references[micro] = of_steps(run_losses(trainctl, path, [f"parallel.micro_batches={micro}"]))
        job, losses = folder / "emulated.yaml", folder / "emulated.jsonl"
        job.write_text(as_file(path.read_text(), [f"parallel.micro_batches={micro}", *overrides]))
        code, output = call([emulated, "-tc=the job of the file*"], {**os.environ, "TRAINCTL_JOB": str(job), "TRAINCTL_LOSSES": str(losses)})
        found = of_steps(read_losses(losses)) if code == 0 else {}
        worst, at = difference(found, references[micro], sorted(references[micro])) if len(found) == steps else (1, 0)
        failed += not worst < EMULATED_TOLERANCE
        print(f"{'ok  ' if worst < EMULATED_TOLERANCE else 'FAIL'} {name}, emulated: {' '.join(overrides)}: largest difference {worst:.1e}"
              f"{output[-2000:] if code else ''}", flush=True)
    return failed


def require(holds, what):
    if not holds:
        raise Failure(what)
    print(f"ok   {what}", flush=True)


def metrics_of(folder, kind):
    with open(folder / "1" / "metrics.jsonl") as file:
        return [line for line in map(json.loads, file) if line.get("kind") == kind]


def all_tokens_to_one_expert(trainctl, folder):
    """All tokens are equal, so all choose the same experts."""
    path = folder / "imbalance.yaml"
    path.write_text(job_text("imbalance", MIXTRAL.replace("capacity: 4", "capacity: 8").replace("top_k: 2", "top_k: 1"), classes=1))
    alone = of_steps(run_losses(trainctl, path, []))
    over = ["launch.ranks=4", "parallel.mode=semi_auto_parallel", "parallel.expert=4"]
    for method in ("gather", "all_to_all"):
        plan = [*over, f"parallel.expert_method={method}"]
        worst, _ = difference(of_steps(run_losses(trainctl, path, plan)), alone, comparable(alone))
        require(worst < TOLERANCE, f"with capacity for all, a plan in which one rank computes all tokens ({method}) follows one rank: {worst:.1e}")

    path.write_text(path.read_text().replace("capacity: 8", "capacity: 2"))
    for method in ("gather", "all_to_all"):
        code, output = call([trainctl, "run", str(path), *over, f"parallel.expert_method={method}", f"launch.log_dir={folder / method}"])
        require(code == 5 and "increase the layer's capacity" in output,
                f"without it, the run ends with an error about the capacity ({method}), exit code {code}")

    path.write_text(path.read_text().replace("capacity: 2", "capacity: 2, drop: true"))
    code, output = call([trainctl, "run", str(path), *over, f"launch.log_dir={folder / 'drops'}"])
    require(code == 0, f"with drop: true it continues {output[-2000:] if code else ''}")
    last = metrics_of(folder / "drops", "loads")[-1]
    require(last["max_load"] == 8 and last["min_load"] == 0 and last["dropped"] == 0.75, f"and reports the load of the experts: {last}")


def wait_for_step(process, file, step):
    """Until the run has written that step."""
    while process.poll() is None:
        if file.exists() and any(line >= step for line in of_steps(read_whole_lines(file))):
            return
        time.sleep(0.01)
    raise Failure(f"the run ended before step {step}: {process.stdout.read()}")


def read_whole_lines(file):
    with tempfile.NamedTemporaryFile("w") as copy:
        copy.write(file.read_text().rpartition("\n")[0] + "\n")
        copy.flush()
        return read_losses(copy.name) if os.path.getsize(copy.name) > 1 else {}


def killed_and_resumed(trainctl, folder):
    path, steps = folder / "resumed.yaml", 60
    path.write_text(job_text("resumed", DEEPSEEK, steps=steps))
    alone = of_steps(run_losses(trainctl, path, ["parallel.micro_batches=2"]))
    saves = folder / "saves"
    same = ["parallel.micro_batches=2", f"train.checkpoint={{every_steps: 5, dir: {saves}}}", f"launch.log_dir={folder / 'killed'}"]
    plan = ["parallel.mode=semi_auto_parallel", "launch.ranks=4", "parallel.expert=4"]
    process = subprocess.Popen([trainctl, "run", str(path), *same, *plan], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for_step(process, folder / "killed/1/metrics.jsonl", 20)
    process.send_signal(signal.SIGKILL)
    process.wait()
    other = ["parallel.mode=semi_auto_parallel", "launch.ranks=4", "parallel.expert=2"]
    code, output = call([trainctl, "run", str(path), *same, *other, "--resume"])
    require(code == 0, f"a killed run resumes with 6 in place of 3 experts per rank {output[-2000:] if code else ''}")
    runs = sorted((folder / "killed").glob("*/metrics.jsonl"))
    resumed = of_steps(read_losses(runs[-1]))
    require(0 < len(resumed) < steps and max(resumed) == steps, f"after step {min(resumed) - 1}")
    worst, at = difference(resumed, alone, sorted(resumed))
    require(worst < TOLERANCE, f"and follows one rank, bias and load included: largest difference {worst:.1e} at step {at}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainctl", required=True)
    parser.add_argument("--plans", type=int, default=40, help="of each network")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--emulated", help="build/release/bin/test_cuda_emulated")
    parser.add_argument("--network", choices=NETWORKS, help="with --emulated: only this one")
    options = parser.parse_args()
    trainctl, rng = str(pathlib.Path(options.trainctl).resolve()), random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="trainctl-experts-") as name:
        folder = pathlib.Path(name)
        if options.emulated:
            failed = sum(follow_emulated(trainctl, os.path.abspath(options.emulated), folder, name, *NETWORKS[name], options.plans, rng)
                         for name in ([options.network] if options.network else NETWORKS))
            print(f"{failed} failed")
            return 1 if failed else 0
        failed = sum(follow_plans(trainctl, folder, name, *NETWORKS[name], options.plans, rng) for name in NETWORKS)
        try:
            all_tokens_to_one_expert(trainctl, folder)
            killed_and_resumed(trainctl, folder)
        except Failure as failure:
            print(f"FAIL {failure}")
            failed += 1
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
