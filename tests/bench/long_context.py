#!/usr/bin/env python3
"""Trains an 8B Llama on long sequences and prints the measurements next to the predictions of `trainctl plan`.

  long_context.py TRAINCTL TOKENS …     for example 65536 131072 262144
  --steps N      steps of each run (default: 3); the first, which also starts libraries, does not count
  --keep         keeps the outputs of attention instead of computing whole blocks again
  --profile      also prints the parts of the last step
  --set WORD     an override for all runs, for example parallel.context_method=gather; --ranks N: GPUs (default: 2)
  --machine M    the machine that plan predicts for (default: h200x8)
  --limit S      seconds for each run; what it has printed by then counts
  --tiny         one small layer on CPUs, to try the program

The job is templates/llama_long.yaml at 8B's sizes: bf16, blocks recomputed, the loss in chunks, weights and optimizer sharded. Initial weights are
random, and the text consists of random tokens that are not equally frequent, so the loss falls from the first step on.
For each length: the predicted and the measured time of a step (the mean of all but the first), tokens per second and GPU, memory per GPU (the arena and
workspace of the plan, and the most that nvidia-smi shows in use) and of the host, and the losses."""

import argparse
import array
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

root = pathlib.Path(__file__).resolve().parent.parent.parent
LLAMA = dict(layers=32, heads=32, kv_heads=8, d=4096, hidden=14336, vocab=128256)
TINY = dict(layers=2, heads=4, kv_heads=2, d=64, hidden=128, vocab=1024)


def text(path, tokens, vocab):
    """A pair of tokens repeats more often than others, and small numbers are frequent."""
    chance = random.Random(1)
    values = array.array("H", (int(vocab * chance.random() ** 3) for _ in range(tokens)))
    for i in range(1, tokens, 2):
        values[i] = (values[i - 1] * 7 + 1) % vocab
    path.write_bytes(values.tobytes())


class InUse:
    """The most memory in use on each GPU, and the most memory of the host, sampled four times per second."""

    def __init__(self):
        self.gpu, self.host, self.end = {}, 0, threading.Event()
        self.before = self.host_used()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    @staticmethod
    def host_used():
        fields = {line.split(":")[0]: int(line.split()[1]) for line in open("/proc/meminfo")}
        return fields["MemTotal"] - fields["MemAvailable"]

    def watch(self):
        query = ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"]
        while not self.end.wait(0.25):
            self.host = max(self.host, self.host_used() - self.before)
            try:
                lines = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()
            except OSError:
                continue
            for line in lines:
                index, used = line.split(",")
                self.gpu[index] = max(self.gpu.get(index, 0), int(used))

    def stop(self):
        self.end.set()
        self.thread.join()
        return max(self.gpu.values(), default=0) / 1024, self.host / 2**20


def say(line):
    print(line, flush=True)


def follow(run, metrics, began, limit):
    """Prints each step when it has ended, until the run ends or the limit is over."""
    steps, file = [], None
    while True:
        ended = run.poll() is not None
        if file is None and metrics.exists():
            file = open(metrics)
        while file is not None and (line := file.readline()).endswith("\n"):
            row = json.loads(line)
            if "step" in row and "seconds" in row:
                steps.append((row["seconds"], row.get("loss")))
                say(f"  step {len(steps)}: {row['seconds']:.2f} s, loss {row.get('loss')}, {time.monotonic() - began:.1f} s after the start")
        if ended:
            return steps
        if time.monotonic() - began > limit:
            say(f"  ended by its limit of {limit} s")
            run.terminate()
            run.wait(30)
        time.sleep(0.05)


def measure(a, tokens):
    sizes = TINY if a.tiny else LLAMA
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        text(folder / "text.bin", a.steps * tokens + 1, min(sizes["vocab"], 16384))
        words = [str(root / "templates/llama_long.yaml"), *(f"vars.{name}={value}" for name, value in sizes.items()), f"vars.length={tokens}",
                 f"dataset={{type: tokens, path: '{folder}/text.bin', length: {tokens}, batch: 1}}", f"launch.ranks={a.ranks}",
                 f"parallel.context={a.ranks}", "parallel.optimizer_shard=3", "optimizer.learning_rate=0.00002",
                 f"train={{steps: {a.steps}, log_every: 1, checkpoint: none}}", f"launch.device={'cpu' if a.tiny else 'cuda'}", "launch.timeout=300",
                 *(["parallel.recompute=['h.*', '!h.*.attn']"] if a.keep else []), *a.set]
        say(f"== {tokens} tokens{', outputs of attention kept' if a.keep else ''}")
        machine = [] if a.tiny else [f"launch.machine={a.machine}"]
        planned = subprocess.run([a.trainctl, "plan", "--json", *words, *machine], capture_output=True, text=True)
        if planned.returncode != 0:
            return say(planned.stdout[-1000:] + planned.stderr[-3000:])
        plan = json.loads(planned.stdout)
        for note in plan["notes"]:
            say(f"  {note}")
        profile = ["--profile", f"--profile-steps={a.steps}"] if a.profile else []
        in_use, began = InUse(), time.monotonic()
        try:
            run = subprocess.Popen([a.trainctl, "run", *words, f"launch.log_dir={folder}/logs", *profile], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            printed = []
            reader = threading.Thread(target=lambda: printed.extend(run.stdout))
            reader.start()
            steps = follow(run, folder / "logs/1/metrics.jsonl", began, a.limit)
            reader.join(5)
        finally:
            gpu, host = in_use.stop()
        if run.returncode != 0 or a.profile:
            say("".join(printed)[-6000:])
        say(f"  the run: exit {run.returncode}, {time.monotonic() - began:.1f} s, of which {sum(s for s, _ in steps):.1f} s are steps")
        for file in sorted(folder.glob("logs/1/rank.*/stderr")):
            if lines := file.read_text(errors="replace").strip():
                say(f"  {file.parent.name}: {lines[-800:]}")
    estimate, planned_bytes = plan.get("estimate") or {}, plan["headline"]["memory"]["bytes"]
    predicted = estimate.get("seconds", 0)
    counted = [s for s, _ in steps[1:]] or [s for s, _ in steps]
    if not counted:
        return
    mean = sum(counted) / len(counted)
    rate, flops = tokens / mean / a.ranks, plan["headline"]["flops_per_step"]
    say(f"  step: {mean:.2f} s measured, {predicted:.2f} s predicted ({estimate.get('machine')}, {estimate.get('source')}); parts predicted: "
        + ", ".join(f"{name} {s:.2f} s" for name, s in (estimate.get("parts") or {}).items()))
    say(f"  {rate:,.0f} tokens/s per GPU measured, {tokens / predicted / a.ranks if predicted else 0:,.0f} predicted; "
        f"{flops / mean / a.ranks / 1e12:.0f} TFLOP/s per GPU, MFU {flops / mean / a.ranks / 989.4e12:.1%}")
    say(f"  memory per GPU: {planned_bytes / 2**30:.1f} GiB planned, {(planned_bytes + estimate.get('memory', {}).get('reserved', 0)) / 2**30:.1f} GiB "
        f"with driver and libraries, {gpu:.1f} GiB in use; host {host:.1f} GiB")
    say(f"  losses: {', '.join(f'{loss:.4f}' for _, loss in steps if loss is not None)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl")
    parser.add_argument("tokens", type=int, nargs="+")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--machine", default="h200x8")
    parser.add_argument("--limit", type=float, default=600)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    a = parser.parse_args()
    a.trainctl = os.path.abspath(a.trainctl)
    for tokens in a.tokens:
        measure(a, tokens)


if __name__ == "__main__":
    sys.exit(main())
