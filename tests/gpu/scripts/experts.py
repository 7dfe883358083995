#!/usr/bin/env python3
"""Plans of experts on two GPUs follow one GPU (f32), and count the bytes that they exchange.

    experts.py TRAINCTL

Tokens are gathered, or exchanged: as whole blocks by copy engines and by NCCL, and, on a machine whose links are so slow that its plans count rows
(slow_links.json), as rows by both. Then a rank ends or hangs, and at last all tokens choose the same experts. Each run prints its line at once.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

TWO = ["launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.expert=2"]
EXCHANGE = [*TWO, "parallel.expert_method=all_to_all"]
NO_COPIES = {"NCCL_P2P_DISABLE": "1"}
STEPS = 12


class Runs:
    def __init__(self, trainctl, folder):
        self.trainctl, self.folder, self.started, self.failed = trainctl, folder, 0, 0

    def losses(self, name, job, words, more=None):
        self.started += 1
        logs, began = self.folder / str(self.started), time.monotonic()
        done = subprocess.run([self.trainctl, "run", str(job), "launch.device=cuda", f"train.steps={STEPS}", "train.log_every=1", "train.checkpoint=none",
                               f"launch.log_dir={logs}", *words], capture_output=True, text=True, env={**os.environ, **(more or {})}, timeout=60)
        said = done.stdout + done.stderr
        print(f"{name}: exit {done.returncode}, {time.monotonic() - began:.1f} s{'' if done.returncode == 0 else said[-2000:]}", flush=True)
        if done.returncode != 0:
            return []
        tokens = json.loads((logs / "1/outcome.json").read_text()).get("token_exchange")
        if tokens:
            print(f"    {tokens['bytes']:,} bytes of tokens, {tokens['expected_bytes']:,} expected, {tokens['most_bytes']:,} at most", flush=True)
        lines = map(json.loads, (logs / "1/metrics.jsonl").read_text().splitlines())
        return [line["loss"] for line in lines if "step" in line and line.get("loss") is not None]

    def compare(self, name, job, words, expected, more=None):
        found = self.losses(name, job, words, more)
        is_whole = len(found) == len(expected) == STEPS
        worst = max(abs(a - b) for a, b in zip(found, expected)) / max(expected) if is_whole else 1
        self.failed += not worst < 1e-5
        print(f"{'ok  ' if worst < 1e-5 else 'FAIL'} {name}: largest difference {worst:.1e}", flush=True)

    def ends(self, job, words, fault):
        """The run ends with an error while hosts wait for the counts of a rank that does not go on."""
        self.started += 1
        began = time.monotonic()
        done = subprocess.run([self.trainctl, "run", str(job), "launch.device=cuda", "train.steps=100000", f"launch.log_dir={self.folder / str(self.started)}", *words],
                              capture_output=True, text=True, env={**os.environ, "TRAINCTL_TEST_FAULT": fault}, timeout=60)
        last = (done.stdout + done.stderr).strip().splitlines()[-3:]
        self.failed += done.returncode != 5
        print(f"{'ok  ' if done.returncode == 5 else 'FAIL'} fault {fault}: exit {done.returncode} after {time.monotonic() - began:.1f} s: {last}", flush=True)


def main():
    tests = pathlib.Path("tests")
    job, slow = tests / "jobs/moe.yaml", [f"launch.machine={tests / 'random_jobs/slow_links.json'}"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        runs = Runs(sys.argv[1], folder)
        one = runs.losses("one", job, ["launch.ranks=1"])
        runs.compare("gathered", job, [*TWO, "parallel.expert_method=gather"], one)
        runs.compare("blocks", job, EXCHANGE, one)
        runs.compare("rows", job, [*EXCHANGE, *slow], one)
        runs.compare("rows by NCCL", job, [*EXCHANGE, *slow], one, NO_COPIES)
        runs.compare("rows, recomputed", job, [*EXCHANGE, *slow, "parallel.recompute=['moe_?']"], one)
        runs.compare("blocks by NCCL", job, EXCHANGE, one, NO_COPIES)
        runs.ends(job, [*EXCHANGE, *slow], "1:6:exit3")
        runs.ends(job, [*EXCHANGE, *slow, "launch.timeout=5"], "1:6:hang")
        alike = folder / "alike.yaml"
        alike.write_text(job.read_text().replace('classes: "${vocab}"', "classes: 1").replace("capacity: 4", "capacity: 8"))
        runs.compare("all tokens to the same experts", alike, [*EXCHANGE, *slow], runs.losses("alike", alike, ["launch.ranks=1"]))
    print(f"{runs.failed} failed", flush=True)
    return 1 if runs.failed else 0


if __name__ == "__main__":
    sys.exit(main())
