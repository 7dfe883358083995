"""Text to tokens to packed batches: trainctl against `datasets` with a DataLoader of PyTorch, on two cores.

    text_pipeline.py TRAINCTL [--megabytes 20] [--rounds 5] [--format parquet|jsonl]

Both read the same file, tokenize with the same tokenizer.json, pack rows of 1,024 tokens (datasets: concatenated and cut, as in its
examples; trainctl: best fit), and deliver every batch of 8 rows once. The times are from cold caches, and include opening the files.
Prints the median and the range of the ratios of the single rounds, in which both take turns. Needs the packages datasets, tokenizers and torch; otherwise it is skipped.
"""
import argparse
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

LENGTH, BATCH = 1024, 8


def write_texts(path, megabytes):
    """Words of a Zipf-like vocabulary, in documents of 0.2 to 6 KB, as JSON Lines."""
    draw = random.Random(7)
    words = ["".join(draw.choice("etaoinshrdlucmfwypvbgkjqxz") for _ in range(draw.randrange(2, 11))) for _ in range(20000)]
    size = 0
    with open(path, "w", encoding="utf-8") as out:
        while size < megabytes * 1e6:
            text = " ".join(words[int(20000 ** draw.random()) - 1] for _ in range(draw.randrange(40, 1200)))
            line = json.dumps({"text": text}) + "\n"
            out.write(line)
            size += len(line)


PIPELINE = """
import sys, time
import datasets, torch
from tokenizers import Tokenizer
texts, tokenizer_file, cache, length, batch = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
datasets.disable_progress_bars()
start = time.perf_counter()
tokenizer = Tokenizer.from_file(tokenizer_file)
def encode(rows):
    return {"ids": [e.ids for e in tokenizer.encode_batch(rows["text"])]}
def pack(rows):
    flat = [i for ids in rows["ids"] for i in ids]
    end = len(flat) // length * length
    return {"ids": [flat[i:i + length] for i in range(0, end, length)]}
data = datasets.load_dataset("parquet" if texts.endswith("parquet") else "json", data_files=texts, split="train", cache_dir=cache)
data = data.map(encode, batched=True, remove_columns=["text"], num_proc=2).map(pack, batched=True, num_proc=2).with_format("torch")
tokens = 0
for rows in torch.utils.data.DataLoader(data, batch_size=batch, shuffle=True, num_workers=2):
    tokens += rows["ids"].numel()
print("RESULT", tokens, time.perf_counter() - start)
"""


def run_datasets(folder, texts):
    cache = tempfile.mkdtemp(dir=folder)
    environment = dict(os.environ, TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", HF_HOME=cache)
    out = subprocess.run([sys.executable, "-c", PIPELINE, str(folder / texts), str(folder / "tok" / "tokenizer.json"), cache, str(LENGTH), str(BATCH)],
                         env=environment, capture_output=True, text=True)
    found = re.search(r"RESULT (\d+) ([\d.]+)", out.stdout)
    if not found:
        raise SystemExit(out.stdout + out.stderr)
    return int(found[1]) / float(found[2])


def run_trainctl(program, folder):
    """Tokens per second from the text to batches that a network reads: a network of one small embedding, so that data take the time."""
    environment = dict(os.environ, XDG_CACHE_HOME=tempfile.mkdtemp(dir=folder), XDG_RUNTIME_DIR=str(folder))
    start = time.perf_counter()
    checked = subprocess.run([program, "data", "check", "job.yaml"], cwd=folder, env=environment, capture_output=True, text=True)
    opened = time.perf_counter() - start
    rows = int(re.search(r"in ([\d,]+) rows", checked.stdout)[1].replace(",", ""))
    bench = subprocess.run([program, "bench", "data", "job.yaml", "--seconds", "1", "--json"], cwd=folder, env=environment, capture_output=True, text=True)
    rates = [row["samples_per_second"] for row in json.loads(bench.stdout)["rows"] if row["workers"] <= 2]
    used = int(re.search(r"([\d,]+) of [\d,]+ positions", checked.stdout)[1].replace(",", ""))
    return used / (opened + rows / max(rates)), opened, max(rates) * used / rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trainctl")
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--format", choices=["parquet", "jsonl"], default="parquet")
    options = parser.parse_args()
    try:
        import datasets, tokenizers, torch  # noqa: F401, E401
    except ImportError as missing:
        print(f"SKIPPED: {sys.executable} has no {missing.name}")
        sys.exit(77)
    program = str(pathlib.Path(options.trainctl).resolve())
    os.sched_setaffinity(0, set(list(os.sched_getaffinity(0))[:2]))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_texts(folder / "texts.jsonl", options.megabytes)
        sample = (folder / "sample.txt")
        with open(folder / "texts.jsonl", encoding="utf-8") as lines:
            sample.write_text("\n".join(json.loads(line)["text"] for _, line in zip(range(500), lines)))
        subprocess.run([program, "data", "train-tokenizer", "sample.txt", "--vocab", "8000", "-o", "tok"], cwd=folder, check=True, capture_output=True)
        texts = f"texts.{options.format}"
        if options.format == "parquet":
            subprocess.run([program, "data", "convert", "texts.jsonl", "-o", texts], cwd=folder, check=True, capture_output=True)
        (folder / "job.yaml").write_text(
            f"dataset: {{type: text, path: {texts}, tokenizer: tok, length: {LENGTH}, batch: {BATCH}, pack: true}}\n"
            "network: [{type: embedding, vocab: 8000, units: 8, inputs: [data]}, {name: qkv, type: dense, units: 24}, "
            "{name: attn, type: attention, heads: 2, causal: true, mask: documents, inputs: [qkv, documents]}, {name: out, type: dense, units: 8000}]\n"
            "loss: {type: softmax_cross_entropy, ignore_index: -100}\nlaunch: {device: cpu}\n")
        theirs, ours = [], []
        for _ in range(options.rounds):
            ours.append(run_trainctl(program, folder))
            theirs.append(run_datasets(folder, texts))
            print(f"trainctl {ours[-1][0] / 1e6:.2f} M tokens/s (opening {ours[-1][1]:.2f} s, then {ours[-1][2] / 1e6:.1f} M/s), "
                  f"datasets and DataLoader {theirs[-1] / 1e6:.2f} M tokens/s", flush=True)
        ratios = [own[0] / other for own, other in zip(ours, theirs)]
        print(f"{options.format}, {options.rounds} rounds: median {statistics.median(own[0] for own in ours) / 1e6:.2f} against "
              f"{statistics.median(theirs) / 1e6:.2f} M tokens/s; ratios of the rounds: median {statistics.median(ratios):.1f} [{min(ratios):.1f} .. {max(ratios):.1f}]")


if __name__ == "__main__":
    main()
