#!/usr/bin/env python3
"""tables_test.py TRAINCTL: files of tables that each format's own Python package writes are read with the values that the package reads, are
converted to the other formats, and damaged files are errors. Runs in the environment of ./bootstrap peers if there is one. Exits with 77 if a case is
left out because its package is missing, and the others pass."""
import gzip
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback

from tables_formats import arrow, arrow_versions, hdf5, hugging_face, json_lines, lmdb_package, mds, megatron, tfrecord, zstandard_package
from tables_support import ALLOWED, Missing, ROWS, SKIPPED, Trainctl, need, same


def read_with_package(name, path, columns):
    """The rows of a written file, as its own package reads them."""
    if name == "t.parquet" or name == "t.arrow":
        (pa,) = need("pyarrow.parquet" if name == "t.parquet" else "pyarrow.feather")
        return pa.read_table(path).to_pylist()
    if name == "hf/state.json":
        (datasets,) = need("datasets")
        return datasets.load_from_disk(str(path.parent)).to_list()
    if name == "t.h5":
        (h5py,) = need("h5py")
        with h5py.File(path) as file:
            sets = {key: file[key][()] for key in columns}
        plain = lambda value: value.decode() if isinstance(value, bytes) else value.tolist() if hasattr(value, "tolist") else value
        return [{key: plain(values[i]) for key, values in sets.items()} for i in range(ROWS)]
    if name == "mds/index.json":
        (streaming,) = need("streaming")
        plain = lambda value: value.tolist() if hasattr(value, "tolist") else value
        return [{key: plain(value) for key, value in row.items()} for row in streaming.LocalDataset(str(path.parent))]
    if name == "t.tfrecord":
        (loader,) = need("tfrecord.reader")
        plain = lambda value: value.decode() if isinstance(value, bytes) else value.tolist() if len(value) > 1 else value[0].item()
        return [{key: plain(value) for key, value in row.items()} for row in loader.tfrecord_loader(str(path), None)]
    if name == "lmdb/data.mdb":
        lmdb, numpy = need("lmdb", "numpy")
        import io
        with lmdb.open(str(path.parent), readonly=True) as env, env.begin() as transaction:
            assert transaction.stat()["entries"] == ROWS * len(columns) + 1 and int(transaction.get(b"num-samples")) == ROWS
            assert len(list(transaction.cursor())) == ROWS * len(columns) + 1
            entry = lambda key, i: transaction.get(f"{key}-{i + 1:09}".encode())
            rows = [{key: entry(key, i) for key in columns} for i in range(ROWS)]
        for row in rows:
            row.update(id=int(row["id"]), x=float(row["x"]), text=row["text"].decode(), grid=numpy.load(io.BytesIO(row["grid"])).tolist())
        return rows
    raise AssertionError(name)


def writers(trainctl):
    """Rows are the same after they were written in each format, for the format's own package and for trainctl."""
    (numpy,) = need("numpy")
    folder = trainctl.folder
    rows = [{"id": i - 3, "x": i / 8, "text": f"täxt \"{i}\",\n" * (1 + i % 3 * (400 if i == 7 else 1)), "grid": [[i, 1], [2, i / 4]]} for i in range(ROWS)]
    numpy.savez(folder / "n.npz", id=numpy.array([row["id"] for row in rows]), x=numpy.array([row["x"] for row in rows], "f4"), grid=numpy.array([row["grid"] for row in rows], "f4"))
    (folder / "input.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    skipped = []
    for name in ["t.h5", "mds/index.json", "t.tfrecord", "lmdb/data.mdb", "t.parquet", "t.arrow", "hf/state.json"]:
        path = folder / name
        try:
            trainctl.convert(folder / "input.jsonl", to=path)
            expected = [dict(row, grid=sum(row["grid"], [])) for row in rows] if name == "t.tfrecord" else rows
            found = read_with_package(name, path, list(rows[0]))
            same([{key: row[key] for key in rows[0]} for row in found], expected, name)
            if name != "lmdb/data.mdb":
                own = trainctl.rows(path.parent if "/" in name else path)
                same([{key: row[key] for key in rows[0]} for row in own], expected, f"{name} by trainctl")
            assert f"{ROWS} rows, 0 broken" in trainctl.run("data", "check", path.parent if "/" in name else path), name
            typed = folder / name.replace("t.", "typed.").replace("/", "_typed/")
            trainctl.convert(folder / "n.npz", to=typed)
            assert f"{ROWS} rows, 0 broken" in trainctl.run("data", "check", typed.parent if "/" in name else typed), name
        except Missing as error:
            skipped.append(str(error))
        except AssertionError as error:
            if "TRAINCTL_ARROW" not in str(error):
                raise
            skipped.append("libtrainctl_arrow.so")
    trainctl.convert(folder / "input.jsonl", to=folder / "a.jsonl.gz")
    assert [json.loads(line) for line in gzip.decompress((folder / "a.jsonl.gz").read_bytes()).splitlines()] == rows
    trainctl.convert(folder / "input.jsonl", to=folder / "a.csv", columns=["id", "x", "text"])
    import csv
    with open(folder / "a.csv", newline="") as file:
        same([{"id": int(row["id"]), "x": float(row["x"]), "text": row["text"]} for row in csv.DictReader(file)],
             [{key: row[key] for key in ("id", "x", "text")} for row in rows], "csv")
    (folder / "tokens.jsonl").write_text("".join(json.dumps({"tokens": list(range(i % 6))}) + "\n" for i in range(40)))
    trainctl.convert(folder / "tokens.jsonl", to=folder / "m.idx")
    same(trainctl.rows(folder / "m.idx"), [{"tokens": list(range(i % 6))} for i in range(40)], "megatron")
    (folder / "keys.jsonl").write_text("".join(json.dumps({"key": f"k{i:05}", "value": "v" * (i % 40 * 100)}) + "\n" for i in reversed(range(2000))))
    trainctl.convert(folder / "keys.jsonl", to=folder / "keys/data.mdb")
    same(trainctl.rows(folder / "keys"), [{"key": f"k{i:05}", "value": "v" * (i % 40 * 100)} for i in range(2000)], "2,000 keys")
    if skipped:
        raise Missing("; ".join(skipped))


def text_tables(trainctl):
    folder = trainctl.folder
    (folder / "a.csv").write_text('id,"na,me",x\n1,"a ""b""\nc",1.5\n2,d,-3e4\n')
    same(trainctl.rows(folder / "a.csv"), [{"id": 1, "na,me": 'a "b"\nc', "x": 1.5}, {"id": 2, "na,me": "d", "x": -3e4}], "csv")


def losses(trainctl, folder, job, *overrides):
    output = trainctl.run("run", folder / job, f"launch.log_dir={folder}/log_{job}", *overrides)
    return [line.split("loss is ")[1] for line in output.splitlines() if "loss is " in line]


def jobs(trainctl):
    """The same values in other formats train with the same losses, on one rank and on two."""
    folder = trainctl.folder
    rows = [{"a": i % 7 / 8, "b": i % 5 - 2, "kind": "xyz"[i % 3]} for i in range(60)]
    (folder / "t.csv").write_text("a,b,kind\n" + "".join(f"{row['a']},{row['b']},{row['kind']}\n" for row in rows))
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "l.jsonl").write_text("".join(json.dumps({"x": [row["a"], row["b"]], "kind": row["kind"]}) + "\n" for row in rows))
    names = ["t.csv", "t.jsonl", "l.jsonl"]
    try:
        need("pyarrow")
        trainctl.convert(folder / "t.jsonl", to=folder / "t.parquet")
        names.append("t.parquet")
    except Missing:
        pass
    found = {}
    for name in names:
        data = "x" if name == "l.jsonl" else "[a, b]"
        (folder / f"{name}.yaml").write_text(
            f"seed: 3\ndataset: {{type: table, path: {name}, fields: {{data: {data}, label: kind}}, batch: 12, split: {{train: 0.8, validation: 0.2}}}}\n"
            "network: [{type: dense, units: 8}, {type: relu}, {type: dense, units: 3}]\nloss: softmax_cross_entropy\n"
            "optimizer: {type: sgd, learning_rate: 0.1}\ntrain: {epochs: 2}\nvalidation: {every_epochs: 1}\nmetrics: [accuracy]\n"
            "launch: {ranks: 1, device: cpu}\n")
        assert "0 broken" in trainctl.run("data", "check", folder / f"{name}.yaml"), name
        found[name] = losses(trainctl, folder, f"{name}.yaml")
    assert len(found["t.csv"]) > 0 and all(one == found["t.csv"] for one in found.values()), found
    both = losses(trainctl, folder, f"{names[-1]}.yaml", "launch.ranks=2", "parallel.mode=data_parallel")
    assert len(both) == len(found["t.csv"]) and all(abs(float(a.split(",")[0]) - float(b.split(",")[0])) < 1e-3 for a, b in zip(both, found["t.csv"])), (both, found["t.csv"])
    (folder / "bad.jsonl").write_text('{"a": 1, "b": 2, "kind": "x"}\n{"a": "one", "b": 2, "kind": "x"}\n')
    text = (folder / "t.jsonl.yaml").read_text().replace("path: t.jsonl", "path: bad.jsonl")
    (folder / "bad.yaml").write_text(text)
    assert "bad.jsonl:2" in trainctl.run("data", "check", folder / "bad.yaml", code=3)
    (folder / "bad.yaml").write_text(text.replace("label: kind", "label: knd"))
    assert "did you mean 'kind'" in trainctl.run("check", folder / "bad.yaml", code=2)


TALKS = """dataset: {type: chat, path: %s, tokenizer: model, length: 96, pack: true, train_on: assistant, batch: 4}
network:
  - {name: words, type: embedding, vocab: 320, units: 32}
  - {name: qkv, type: dense, units: 96}
  - {name: attn, type: attention, heads: 4, causal: true, inputs: [qkv, documents]}
  - {name: out, type: dense, units: 320}
loss: {type: softmax_cross_entropy, ignore_index: -100}
optimizer: {type: adam, learning_rate: 0.01}
train: {epochs: 2}
launch: {ranks: 1, device: cpu}
"""
TEMPLATE = """{% for m in messages %}<|im_start|>{{ m['role'] }}
{{ m['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


CLASSES = """dataset: {type: text, path: %s, tokenizer: model, length: 24, label_field: kind, batch: 4}
network:
  - {name: words, type: embedding, vocab: 320, units: 16}
  - {name: flat, type: flatten}
  - {name: out, type: dense, units: 3}
loss: softmax_cross_entropy
optimizer: {type: adam, learning_rate: 0.01}
train: {epochs: 2}
launch: {ranks: 1, device: cpu}
"""
PAIRS = TALKS.replace("type: chat", "type: preference").replace("pack: true, train_on: assistant, ", "").replace(
    "loss: {type: softmax_cross_entropy, ignore_index: -100}", "adapters: {lora: {layers: [qkv, out], rank: 4, alpha: 8}}\nloss: {type: dpo, beta: 0.5}")


def documents(trainctl):
    """Conversations, texts, classes of texts and pairs of Parquet files train with the losses that the same rows of JSON Lines give."""
    pa, parquet = need("pyarrow", "pyarrow.parquet")
    folder = trainctl.folder
    rows = [{"messages": [{"role": "user", "content": f"What follows {i}?"}, {"role": "assistant", "content": f"It is {i + 1}."}],
             "text": f"What follows {i}? It is {i + 1}. " * (1 + i % 3), "prompt": f"What follows {i}? ", "chosen": f"It is {i + 1}.",
             "rejected": "No idea.", "kind": i % 3, "score": i / 40, "note": None} for i in range(40)]
    for name, chosen in [("all", rows), ("first", rows[:17]), ("rest", rows[17:])]:
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chosen))
        parquet.write_table(pa.Table.from_pylist(chosen), folder / f"{name}.parquet", row_group_size=7)
    (folder / "words.txt").write_text("\n".join(row["text"] for row in rows))
    trainctl.run("data", "train-tokenizer", folder / "words.txt", "--vocab", "300", "--special", "<|im_start|>", "<|im_end|>", "-o", folder / "model")
    (folder / "model/chat_template.jinja").write_text(TEMPLATE)
    text = TALKS.replace("type: chat", "type: text").replace(", train_on: assistant", "")
    kinds = {"chat": TALKS, "text": text, "filtered": text.replace("pack: true", "pack: true, filter: score > 0.3"),
             "whole": text.replace("pack: true, ", "").replace("[qkv, documents]", "[qkv]").replace("length: 96", "length: 16"),
             "classes": CLASSES, "pairs": PAIRS}
    for kind, job in kinds.items():
        found = {}
        for name in ["all.jsonl", "all.parquet", "[first.parquet, rest.parquet]"]:
            file = f"{kind}.{name.strip('[]').replace(', ', '.')}.yaml"
            (folder / file).write_text(job % name)
            found[name] = losses(trainctl, folder, file)
        assert len(found["all.jsonl"]) > 2 and all(one == found["all.jsonl"] for one in found.values()), (kind, found)
    lists = [{"chosen": row["messages"], "rejected": [row["messages"][0], {"role": "assistant", "content": "No idea."}]} for row in rows]  # messages, with their prompt in common
    (folder / "lists.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lists))
    parquet.write_table(pa.Table.from_pylist(lists), folder / "lists.parquet", row_group_size=9)
    for end in ("jsonl", "parquet"):
        (folder / f"lists.{end}.yaml").write_text(PAIRS % f"lists.{end}")
    found = [losses(trainctl, folder, f"lists.{end}.yaml") for end in ("jsonl", "parquet")]
    assert found[0] == found[1] and float(found[0][-1]) < float(found[0][0]), found
    both = losses(trainctl, folder, "chat.all.parquet.yaml", "launch.ranks=2", "parallel.mode=data_parallel")
    single = losses(trainctl, folder, "chat.all.jsonl.yaml")
    assert len(both) == len(single) and all(abs(float(a) - float(b)) < 1e-3 for a, b in zip(both, single)), (both, single)
    shown = [trainctl.run("data", "show", folder / f"chat.all.{end}.yaml", "--tokens", "-n", "1").split("\n", 1)[1] for end in ("jsonl", "parquet")]
    assert shown[0] == shown[1], shown
    (folder / "bad.yaml").write_text(TALKS % "all.parquet, field: talk")
    refused = trainctl.run("check", folder / "bad.yaml", code=2)
    assert "talk" in refused and "all.parquet" in refused, refused
    tokens = [trainctl.run("data", "tokens", folder / f"all.{end}", "--tokenizer", folder / "model", "-o", folder / f"{end}.bin") for end in ("jsonl", "parquet")]
    assert tokens and (folder / "jsonl.bin").read_bytes() == (folder / "parquet.bin").read_bytes()


def audio(trainctl):
    soundfile, numpy = need("soundfile", "numpy")
    folder = trainctl.folder
    rng = numpy.random.default_rng(2)
    files = []
    for number, (name, form, kind, channels) in enumerate([("no/a.wav", "WAV", "PCM_16", 1), ("no/b.flac", "FLAC", "PCM_24", 2), ("yes/c.wav", "WAV", "FLOAT", 2),
                                                           ("yes/deep/d.wav", "WAV", "PCM_U8", 1)]):
        path = folder / "clips" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, rng.uniform(-0.9, 0.9, (900 + 200 * number, channels)), 8000, subtype=kind, format=form)
        files.append((path, name.split("/")[0]))
    length, window, hop, bins = 1100, 200, 80, 10
    job = ("dataset: {type: audio_folder, path: clips, length: 1100, sample_rate: 8000, batch: 4, shuffle: false%s}\n"
           "network: [{type: flatten}, {type: dense, units: 2}]\nloss: softmax_cross_entropy\ntrain: {epochs: 1}\nlaunch: {ranks: 1, device: cpu}\n")
    edges = 700 * (10 ** (numpy.linspace(0, 2595 * numpy.log10(1 + 4000 / 700), bins + 2) / 2595) - 1)
    frequencies = numpy.arange(129) * 8000 / 256
    weights = numpy.maximum(0, numpy.minimum((frequencies[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None],
                                             (edges[2:, None] - frequencies[None]) / (edges[2:] - edges[1:-1])[:, None]))
    hann = 0.5 - 0.5 * numpy.cos(2 * numpy.pi * numpy.arange(window) / window)
    for mel in ["", ", audio: mel, window: 200, hop: 80, mel_bins: 10"]:
        (folder / "job.yaml").write_text(job % mel)
        shown = trainctl.run("data", "show", folder / "job.yaml", "-n", 4).splitlines()
        for (path, label), line in zip(files, shown):
            values, _ = soundfile.read(path, dtype="float32", always_2d=True)
            values = numpy.pad(values.mean(1), (0, length))[:length]
            if mel:
                frames = numpy.stack([values[at:at + window] * hann for at in range(0, length - window + 1, hop)])
                values = numpy.log(numpy.maximum(numpy.abs(numpy.fft.rfft(frames, 256)) ** 2 @ weights.T, 1e-10)).ravel()
            assert f"({label})" in line and str(path) in line, line
            found = [float(text) for text in line.split("audio ")[1].split("label")[0].replace("…", "").split(",") if text.strip()]
            assert len(found) == 8 and numpy.allclose(found, values[:8], rtol=2e-3, atol=1e-4), (line, values[:8])
        assert "4 samples, 0 broken" in trainctl.run("data", "check", folder / "job.yaml")
    trainctl.run("run", folder / "job.yaml", f"launch.log_dir={folder}/log")
    (folder / "job.yaml").write_text((job % "").replace("8000", "16000"))
    assert "8,000 samples per second" in trainctl.run("data", "check", folder / "job.yaml", code=3)
    path = files[1][0]
    whole = path.read_bytes()
    (folder / "job.yaml").write_text(job % "")
    for cut in [0, 3, 60, len(whole) // 2]:
        path.write_bytes(whole[:cut])
        done = subprocess.run([trainctl.program, "data", "check", folder / "job.yaml"], capture_output=True, check=False)
        assert done.returncode in ALLOWED, (cut, done)


CASES = {"json_lines": json_lines, "zstandard": zstandard_package, "arrow": arrow, "arrow_versions": arrow_versions, "hdf5": hdf5, "writers": writers, "hugging_face": hugging_face, "mds": mds, "tfrecord": tfrecord,
         "lmdb": lmdb_package, "megatron": megatron, "jobs": jobs, "documents": documents, "audio": audio, "csv": text_tables}


def main():
    program, *names = sys.argv[1:]
    peers = pathlib.Path(__file__).resolve().parents[3] / "build/peers/bin/python3"
    if importlib.util.find_spec("pyarrow") is None and peers.exists() and pathlib.Path(sys.prefix) != peers.parent.parent:
        os.execv(peers, [str(peers), *sys.argv])
    program = str(pathlib.Path(program).resolve())
    left_out, failed = [], []
    for name in names or CASES:
        with tempfile.TemporaryDirectory(prefix="trainctl_tables_") as folder:
            trainctl = Trainctl(program, pathlib.Path(folder))
            try:
                CASES[name](trainctl)
                print(f"{name}: ok", flush=True)
            except Missing as error:
                left_out.append(f"{name} ({error})")
            except AssertionError as error:
                failed.append(name)
                print(f"{name}: FAILED: {error}\n{traceback.format_exc()}", flush=True)
    if left_out:
        print("Skipped: " + "; ".join(left_out))
    return 1 if failed else SKIPPED if left_out else 0


if __name__ == "__main__":
    sys.exit(main())
