"""train.audit_every on two GPUs of one host: sound runs pass, a wrong bit is named within one audit, and what an audit costs.

    audits.py TRAINCTL [sound] [fault] [cost]          about 4 minutes, run where configs/ and templates/ are

The cost is measured in one run: the time by which steps took longer while an audit ran, relative to all steps, for an audit of
every 500th step. The run audits more often, which costs the same per audit.
"""
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

TRAINCTL = sys.argv[1]
PARTS = sys.argv[2:] or ["sound", "fault", "cost"]
TEXT = ["configs/gpt_text.yaml", "launch.ranks=2", "train.checkpoint=none"]
PLANS = {
    "data": ["parallel.mode=data_parallel"],
    "data, micro-batches, level 1": ["parallel.mode=data_parallel", "parallel.micro_batches=2", "parallel.optimizer_shard=1"],
    "data, level 2": ["parallel.mode=data_parallel", "parallel.optimizer_shard=2"],
    "data, level 3, bf16": ["parallel.mode=data_parallel", "parallel.optimizer_shard=3", "precision=bf16"],
    "tensor, bf16": ["parallel.mode=semi_auto_parallel", "parallel.tensor=2", "precision=bf16"],
    "stages": ["parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.micro_batches=4"],
    "stages, bf16": ["parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.micro_batches=4", "precision=bf16"],
    "one rank": ["launch.ranks=1", "parallel.mode=stand_alone"],
}
GPT2 = ["templates/gpt2.yaml", "parallel.mode=data_parallel", "launch.ranks=2", "parallel.recompute=[]", "gradient_precision=bf16",
        "train.checkpoint=none", "train.log_every=1"]
EVERY, AUDITS = 60, 5


def run(*words, code=0, **environment):
    """Runs `trainctl run` on GPUs; returns its output and its log folder, or None twice if it exits with another code."""
    logs = tempfile.mkdtemp()
    done = subprocess.run([TRAINCTL, "run", *words, "launch.device=cuda", f"launch.log_dir={logs}"], capture_output=True, text=True,
                          env={**os.environ, **environment}, check=False)
    said = done.stdout + done.stderr
    if done.returncode != code:
        print(f"FAILED: {' '.join(words)}: exit {done.returncode}, expected {code}\n{said[-3000:]}", flush=True)
        return None, None
    return said, pathlib.Path(logs) / "1"


def sound():
    good = 0
    for name, plan in PLANS.items():
        said, folder = run(*TEXT, *plan, "train.steps=60", "train.audit_every=10")
        if said is None:
            continue
        audits = json.loads((folder / "outcome.json").read_text())["audits"]
        good += audits["steps"] == 6
        print(f"{name}: {audits['steps']} of 6 audits passed", flush=True)
    return good == len(PLANS)


def fault():
    good = 0
    for name, plan in PLANS.items():
        rank = 0 if name == "one rank" else 1
        said, folder = run(*TEXT, *plan, "train.steps=60", "train.audit_every=10", code=5, TRAINCTL_TEST_FAULT=f"{rank}:13:flip")
        if said is None:
            continue
        line = next((line.strip() for line in said.splitlines() if "audit: step" in line), "")
        named = re.search(r"step 20 produced different bits on GPU \d+ .*: \w+/", line) and f"rank {rank}" in said
        saved = len(list((folder / "audits").iterdir())) if (folder / "audits").exists() else 0
        good += bool(named) and saved == 2 and "computed incorrectly" in line
        print(f"{name}: {'named' if named else 'NOT NAMED'}, {saved} results saved: {line}", flush=True)
    return good == len(PLANS)


def cost_at(batch):
    steps = EVERY * AUDITS + EVERY // 2
    said, folder = run(*GPT2, f"dataset.batch={batch}", f"train.steps={steps}", f"dataset.samples={batch * steps}", f"train.audit_every={EVERY}")
    if said is None:
        return False
    outcome = json.loads((folder / "outcome.json").read_text())["audits"]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seconds = [row["seconds"] for row in rows if "step" in row and "seconds" in row]
    usual = statistics.median(seconds)
    # The first audit is left out. Sums what the steps from 3 before an audited one to 8 after it took beyond the median step.
    beyond = statistics.mean(sum(seconds[at - 4:at + 8]) - 12 * usual for at in range(2 * EVERY, steps, EVERY))
    reported = outcome["overhead"] * EVERY / 500
    print(f"GPT-2 124M, batch {batch}, two GPUs, {usual * 1e3:.1f} ms per step: {outcome['steps']} audits; reported {100 * outcome['overhead']:.3f} % at every "
          f"{EVERY}, so {100 * reported:.3f} % at every 500; from the lines {beyond / usual:.2f} steps per audit, {100 * beyond / usual / 500:.3f} %", flush=True)
    return reported < 0.003 and beyond / usual / 500 < 0.003


def cost():
    return all([cost_at(64), cost_at(128)])


failed = [part for part in PARTS if not {"sound": sound, "fault": fault, "cost": cost}[part]()]
sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
