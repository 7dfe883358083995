#!/usr/bin/env python3
"""document_adapters_test.py TRAINCTL: documents that name their adapter in a field train as rows with its number do.

The same tokens are texts in JSON Lines, with the adapter's name or number in each, and arrays with a number per row, or for packed
documents per position. Losses are equal, bit by bit, on one rank and under plans of several."""
import array
import json
import pathlib
import random
import subprocess
import sys
import tempfile

TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
LENGTH, VOCAB, ROWS, NAMES = 8, 40, 24, ["law", "news", "code"]
JOB = """name: rows_of_adapters
dataset: {{{dataset}, batch: 8, shuffle: false}}
network:
  - {{name: words, type: embedding, vocab: 40, units: 16}}
{attention}  - {{name: inner, type: dense, units: 16}}
  - {{name: act, type: gelu}}
  - {{name: out, type: dense, units: 40}}
loss: {{type: softmax_cross_entropy, ignore_index: -100}}
optimizer: {{type: adamw, learning_rate: 0.01}}
adapters: {{names: [law, news, code], field: topic, lora: {{layers: [inner, out], rank: 2, alpha: 4}}}}
train: {{epochs: 3, checkpoint: {{every: none}}}}
launch: {{device: cpu}}
"""
ATTENTION = """  - {name: qkv, type: dense, units: 48}
  - {name: attn, type: attention, heads: 2, causal: true, inputs: [qkv, documents]}
"""
PLANS = {"one rank": [], "two ranks": ["launch.ranks=2", "parallel.mode=data_parallel"],
         "two stages": ["launch.ranks=2", "parallel={mode: data_parallel, stages: 2, micro_batches: 2}"],
         "features cut": ["launch.ranks=2", "parallel={mode: semi_auto_parallel, strategies: {inner: [[1, 1, 1], [2, 1]], out: [[1, 1, 2], [1, 2]]}}"]}


def write_tokenizer(folder):
    folder.mkdir()
    vocab = {"[UNK]": 0, **{f"w{i}": i for i in range(1, VOCAB)}}
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocab}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}, "model": model}))


def write_arrays(path, arrays):
    """Each of `arrays` is {name: list of rows of numbers, or list of numbers}."""
    header, data = {}, b""
    for name, rows in arrays.items():
        flat = [number for row in rows for number in row] if isinstance(rows[0], list) else rows
        shape = [len(rows), len(rows[0])] if isinstance(rows[0], list) else [len(rows)]
        text = array.array("i", flat).tobytes()
        header[name] = {"dtype": "I32", "shape": shape, "data_offsets": [len(data), len(data) + len(text)]}
        data += text
    words = json.dumps(header).encode()
    path.write_bytes(len(words).to_bytes(8, "little") + words + data)


def losses(folder, dataset, *fields, expect=0):
    folder.mkdir(exist_ok=True)
    (folder / "job.yaml").write_text(JOB.format(dataset=dataset, attention=ATTENTION if "pack: true" in dataset or "documents: d" in dataset else ""))
    done = subprocess.run([TRAINCTL, "run", "job.yaml", *fields], cwd=folder, capture_output=True, text=True)
    assert done.returncode == expect, done.stdout + done.stderr
    if expect:
        return done.stderr
    run = max((folder / "log_output").iterdir(), key=lambda one: int(one.name))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [line["loss"] for line in lines if "loss" in line and "kind" not in line]
    assert len(found) == 3 * ROWS // 8, found
    return found


def documents(random_numbers, length):
    """[tokens, adapter], of length + 1 tokens each."""
    count = ROWS * LENGTH // length
    return [([random_numbers.randrange(1, VOCAB) for _ in range(length + 1)], random_numbers.randrange(len(NAMES))) for _ in range(count)]


def write_texts(path, all_of_them, topic=lambda n, adapter: NAMES[adapter] if n % 2 else adapter):
    path.write_text("".join(json.dumps({"text": " ".join(f"w{t}" for t in tokens), "topic": topic(n, adapter)}) + "\n"
                            for n, (tokens, adapter) in enumerate(all_of_them)))


def compare(folder, name, texts, arrays):
    one = losses(folder, arrays)
    for plan, fields in PLANS.items():
        ours, expected = losses(folder, texts, *fields), losses(folder, arrays, *fields)
        assert ours == expected, (name, plan, ours, expected)
        assert max(abs(a - b) for a, b in zip(ours, one)) < 1e-5, (name, plan)
    print(f"{name}: the losses of arrays, bit by bit, under {len(PLANS)} plans: {ours[0]:.4f} to {ours[-1]:.4f}")


def main():
    with tempfile.TemporaryDirectory(prefix="trainctl-adapters-") as scratch:
        folder, numbers = pathlib.Path(scratch), random.Random(7)
        write_tokenizer(folder / "tokenizer")
        rows = documents(numbers, LENGTH)
        write_texts(folder / "rows.jsonl", rows)
        write_arrays(folder / "rows.safetensors", {"x": [t[:-1] for t, _ in rows], "y": [t[1:] for t, _ in rows], "a": [a for _, a in rows]})
        fields = "fields: {data: x, label: y, topic: a}"
        text = f"type: text, path: {folder}/rows.jsonl, tokenizer: {folder}/tokenizer, length: {LENGTH}"
        compare(folder, "a document per row", text, f"type: safetensors, path: {folder}/rows.safetensors, {fields}")

        halves = documents(numbers, LENGTH // 2)  # two per row, in their order
        write_texts(folder / "halves.jsonl", halves)
        pairs = list(zip(halves[::2], halves[1::2]))
        write_arrays(folder / "halves.safetensors", {"x": [a[0][:-1] + b[0][:-1] for a, b in pairs], "y": [a[0][1:] + b[0][1:] for a, b in pairs],
                                                     "a": [[one[1] for one in pair for _ in range(LENGTH // 2)] for pair in pairs],
                                                     "d": [[0] * (LENGTH // 2) + [LENGTH // 2] * (LENGTH // 2) for _ in pairs]})
        fields = "fields: {data: x, label: y, documents: d, topic: a}"
        packed = f"type: text, path: {folder}/halves.jsonl, tokenizer: {folder}/tokenizer, length: {LENGTH}, pack: true, packing: in_order"
        compare(folder, "packed documents", packed, f"type: safetensors, path: {folder}/halves.safetensors, {fields}")

        for topic, said in [("lwa", "rows.jsonl:1: adapters.names has no 'lwa'"), (3, "topic is 3, but adapters.names has 3 names"),
                            (None, "topic is neither a number nor a name")]:
            write_texts(folder / "rows.jsonl", rows, lambda n, adapter: topic)
            error = losses(folder, text, expect=2)
            assert said in error and "adapters.field" in error, error
        (folder / "rows.jsonl").write_text('{"text": "w1 w2 w3", "kind": "law"}\n')
        error = losses(folder, text, expect=2)
        assert "has no field 'topic'" in error and "the document has text, kind" in error.replace("kind, text", "text, kind"), error
        print("a document without an adapter of the job is an error that names it")


if __name__ == "__main__":
    main()
