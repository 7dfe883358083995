#!/usr/bin/env python3
"""generate.py TRAINCTL FOLDER [--batch 1 32] [--set FIELD=VALUE …]: the time in which a batch of 128 new tokens is generated greedily after prompts of 64 tokens,
compared with transformers with a static cache, compiled (language_peers.py generate), in one run.

FOLDER is that of language_peers.py folder. Without a tokenizer.json it gets one of bytes. trainctl's times are those between the ends of batches."""

import argparse
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

here = pathlib.Path(__file__).resolve().parent
PROMPT, TOKENS, BATCHES = 64, 128, 5


def sh(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    return done.stdout


def ours(a, batch, scratch):
    if not (a.folder / "tokenizer.json").exists():
        (scratch / "text.txt").write_text("a b c d e f g h\n" * 50)
        sh(a.trainctl, "data", "train-tokenizer", scratch / "text.txt", "--vocab", 257, "-o", a.folder)
    sh(a.trainctl, "init", "--from", a.folder, "-o", scratch / "job.yaml")
    letters = "abcdefghijklmnopqrstuvwxyz"
    (scratch / "prompts.txt").write_text("".join((letters[i % 26] + letters[i // 26 % 26]) * (PROMPT // 2) + "\n" for i in range(BATCHES * batch)))
    words = [a.trainctl, "generate", scratch / "job.yaml", "--checkpoint", "weights", "--prompts", scratch / "prompts.txt", "--json", "--temperature", 0,
             "--max-tokens", TOKENS, f"dataset.batch={batch}", "launch.ranks=1", f"launch.log_dir={scratch}/logs", *a.set]
    ends, began = [], time.perf_counter()
    with subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=scratch) as run:
        for line in run.stdout:
            ends.append((time.perf_counter(), len(re.findall(r"\d+", re.search(r'"tokens":\[([^]]*)\]', line)[1]))))
        errors = run.stderr.read()
    if run.returncode != 0 or len(ends) != BATCHES * batch:
        sys.exit(f"trainctl generate: exit {run.returncode}, {len(ends)} texts\n{errors[-1500:]}")
    last = [when for when, _ in ends[batch - 1::batch]]
    seconds = [end - begin for begin, end in zip(last, last[1:])]
    new = statistics.mean(count for _, count in ends[batch:]) * batch
    middle = statistics.median(seconds)
    print(f"generate, batch {batch}: trainctl {middle * 1e3:.1f} ms [{min(seconds) * 1e3:.1f} .. {max(seconds) * 1e3:.1f}], {new / middle:.0f} tokens/s, "
          f"first batch after {last[0] - began:.1f} s", flush=True)
    return new / middle


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--set", action="append", default=[], help="a field of the job")
    parser.add_argument("--no-peer", action="store_true")
    a = parser.parse_args()
    a.trainctl, a.folder = a.trainctl.resolve(), a.folder.resolve()
    for batch in a.batch:
        with tempfile.TemporaryDirectory() as scratch:
            rate = ours(a, batch, pathlib.Path(scratch))
        if not a.no_peer:
            line = sh(sys.executable, here / "language_peers.py", "generate", "--batch", batch).strip().splitlines()[-1]
            theirs = float(re.search(r"([\d.]+) tokens/s", line)[1])
            print(f"generate, batch {batch}: transformers {line}   {rate / theirs:.2f}x", flush=True)


if __name__ == "__main__":
    main()
