#!/usr/bin/env python3
"""Predictions for samples without labels, and the measures of evaluate, in runs of real processes.

    tests/cli/answers_test.py build/release/bin/trainctl

The measures are compared with those of scikit-learn where it is installed; otherwise with formulas written out here."""
import csv
import io
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

TRAINCTL = os.path.abspath(sys.argv[1])

try:
    import sklearn.metrics as sklearn
except ImportError:
    sklearn = None


def png(pixels):
    """An RGB image: rows of (red, green, blue)."""
    raw = b"".join(b"\0" + bytes(v for pixel in row for v in pixel) for row in pixels)
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def image_of(color, rng, size=12):
    return png([[tuple(min(255, max(0, c + rng.randint(-40, 40))) for c in color) for _ in range(size)] for _ in range(size)])


class Folder:
    def __init__(self):
        self.path = tempfile.mkdtemp(prefix="trainctl-answers-")

    def write(self, name, content):
        path = os.path.join(self.path, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb" if isinstance(content, bytes) else "w") as file:
            file.write(content)

    def run(self, *words, code=0):
        env = {**os.environ, "XDG_RUNTIME_DIR": self.path, "COLUMNS": "120"}
        done = subprocess.run([TRAINCTL, *words], cwd=self.path, capture_output=True, text=True, env=env, timeout=600)
        assert done.returncode == code, (words, done.returncode, done.stdout[-3000:], done.stderr[-3000:])
        return done

    def rows(self, text):
        return list(csv.DictReader(io.StringIO(text)))


PHOTOS = """
name: colors
dataset:
  type: image_folder
  path: photos/train
  transforms: [to_float, {resize: [8, 8]}, hwc2chw]
  batch: 12
validation: {dataset: {path: photos/val}}
metrics: [accuracy]
network: [{type: flatten}, {name: fc, type: dense, units: 16}, {type: relu}, {name: out, type: dense, units: 3}]
loss: softmax_cross_entropy
optimizer: {type: adam, learning_rate: 0.01}
train: {epochs: 6, checkpoint: {every_epochs: 1, keep_best: accuracy}}
launch: {device: cpu}
"""
COLORS = {"blue, deep": (30, 40, 200), "green": (40, 200, 40), "red": (210, 40, 40)}


def photos():
    folder, rng = Folder(), random.Random(1)
    for name, color in COLORS.items():
        for i in range(24):
            folder.write(f"photos/train/{name}/{i}.png", image_of(color, rng))
        for i in range(9):
            folder.write(f"photos/val/{name}/{i}.png", image_of(color, rng, 20))
    for i, (name, color) in enumerate(COLORS.items()):
        folder.write(f"new/{i}.png", image_of(color, rng, 16))
        folder.write(f"new/deeper/{i + 3}.png", image_of(color, rng, 9))
    folder.write("new/notes.txt", "not an image")
    folder.write("colors.yaml", PHOTOS)
    return folder


def expected_class(path):
    return list(COLORS)[int(os.path.basename(path).split(".")[0]) % 3]


def test_photos():
    folder = photos()
    ended = folder.run("run", "colors.yaml").stdout
    assert "validation accuracy" in ended, ended[-2000:]
    last = ended.strip().splitlines()[-1]
    assert last.startswith("done after") and "validation loss" in last and "accuracy" in last, last

    # The checkpoint has the names of the classes; the training set need not be there any more.
    folder.run("predict", "colors.yaml", "new", "-o", "answers.csv")
    with open(os.path.join(folder.path, "answers.csv")) as file:
        before = file.read()
    shutil.move(os.path.join(folder.path, "photos"), os.path.join(folder.path, "gone"))
    done = folder.run("predict", "colors.yaml", "new", "-o", "answers.csv")
    assert "6 answers: written to answers.csv" in done.stdout, done.stdout
    with open(os.path.join(folder.path, "answers.csv")) as file:
        text = file.read()
    assert text == before
    rows = folder.rows(text)
    assert len(rows) == 6 and list(rows[0]) == ["file", "class", "probability"], rows
    for row in rows:
        assert row["class"] == expected_class(row["file"]), row
        assert 1 / 3 < float(row["probability"]) <= 1

    # Single files, the most probable classes, a table on stdout and nothing else there.
    rows = folder.rows(folder.run("predict", "colors.yaml", "new/1.png", "new/2.png", "--top", "3").stdout)
    assert [os.path.basename(row["file"]) for row in rows] == ["1.png", "2.png"]
    for row in rows:
        assert list(row) == ["file", "class", "probability", "class_2", "probability_2", "class_3", "probability_3"]
        shares = [float(row["probability"]), float(row["probability_2"]), float(row["probability_3"])]
        assert shares == sorted(shares, reverse=True) and abs(sum(shares) - 1) < 1e-4, row
        assert {row["class"], row["class_2"], row["class_3"]} == set(COLORS)

    # The same answers under a plan of several ranks, and raw outputs as an array.
    two = folder.rows(folder.run("predict", "colors.yaml", "new", "launch.ranks=2", "parallel.mode=data_parallel").stdout)
    assert [row["class"] for row in two] == [row["class"] for row in folder.rows(text)]
    folder.run("predict", "colors.yaml", "new", "-o", "logits.npy")
    assert os.path.getsize(os.path.join(folder.path, "logits.npy")) == 128 + 6 * 3 * 4

    shutil.move(os.path.join(folder.path, "gone"), os.path.join(folder.path, "photos"))
    # best, latest and a run name checkpoints; the default of a job with keep_best is the best one.
    best = folder.run("predict", "colors.yaml", "new", "--checkpoint", "best").stdout
    assert best == folder.run("predict", "colors.yaml", "new").stdout
    for name in ("latest", "1"):
        folder.run("predict", "colors.yaml", "new", "--checkpoint", name)
    refused = folder.run("predict", "colors.yaml", "new", "--checkpoint", "weights", code=2).stderr
    assert "--checkpoint: the job has no weights to start from" in refused, refused
    refused = folder.run("predict", "colors.yaml", "new/notes.txt", code=2).stderr
    assert "notes.txt' is not an image" in refused, refused
    refused = folder.run("predict", "colors.yaml", "nowhere", code=2).stderr
    assert "nowhere" in refused, refused
    refused = folder.run("predict", "colors.yaml", "new", "-o", "answers.txt", code=2).stderr
    assert "neither .csv, .npy nor .safetensors" in refused, refused

    # The validation set has labels.
    rows = folder.rows(folder.run("predict", "colors.yaml").stdout)
    assert len(rows) == 27 and list(rows[0]) == ["file", "class", "probability", "label"]
    assert all(os.path.basename(os.path.dirname(row["file"])) == row["label"] for row in rows)

    # evaluate: the measures of the same answers.
    done = folder.run("evaluate", "colors.yaml")
    for part in ("classes\n", "precision", "confusion matrix", "mean F1", "AUC"):
        assert part in done.stdout, (part, done.stdout)
    report = json.loads(folder.run("evaluate", "colors.yaml", "--json").stdout)
    names = [one["name"] for one in report["classes"]]
    assert names == sorted(COLORS), names
    table = {(a, b): 0 for a in names for b in names}
    for row in rows:
        table[row["label"], row["class"]] += 1
    assert report["confusion"] == [[table[a, b] for b in names] for a in names]
    page = os.path.join(folder.path, "report.html")
    folder.run("report", "1", "-o", "report.html")
    with open(page) as file:
        text = file.read()
    assert '"confusion"' in text and '"validation"' in text
    shutil.rmtree(folder.path)


def test_measures_of_classes():
    """Noisy classes, compared with scikit-learn."""
    folder, rng = Folder(), random.Random(3)
    lines = ["x,y,kind"]
    for i in range(400):
        kind = i % 4
        lines.append(f"{rng.gauss(kind % 2, 0.7):.4f},{rng.gauss(kind // 2, 0.7):.4f},{'abcd'[kind]}")
    folder.write("table.csv", "\n".join(lines) + "\n")
    folder.write("job.yaml", """
name: noisy
dataset: {type: csv, path: table.csv, fields: {data: [x, y], label: kind}, split: {train: 0.5, validation: 0.5}, batch: 20}
validation: {}
network: [{type: dense, units: 16}, {type: relu}, {name: out, type: dense, units: 4}]
loss: softmax_cross_entropy
optimizer: {type: adam, learning_rate: 0.02}
train: {epochs: 5}
launch: {device: cpu}
""")
    folder.run("run", "job.yaml")
    rows = folder.rows(folder.run("predict", "job.yaml", "--top", "4").stdout)
    report = json.loads(folder.run("evaluate", "job.yaml", "launch.ranks=2", "parallel.mode=data_parallel", "--json").stdout)
    labels, answers = [row["label"] for row in rows], [row["class"] for row in rows]
    assert report["samples"] == len(rows) and 0 < len(rows) < 400
    names = list("abcd")
    for one in report["classes"]:
        hits = sum(a == b == one["name"] for a, b in zip(labels, answers))
        assert one["samples"] == labels.count(one["name"])
        assert math.isclose(one["precision"], hits / max(1, answers.count(one["name"])), abs_tol=1e-9)
        assert math.isclose(one["recall"], hits / max(1, labels.count(one["name"])), abs_tol=1e-9)
    assert math.isclose(report["accuracy"], sum(a == b for a, b in zip(labels, answers)) / len(rows), abs_tol=1e-9)
    if sklearn:
        precision, recall, f1, _ = sklearn.precision_recall_fscore_support(labels, answers, labels=names, zero_division=0)
        for i, one in enumerate(report["classes"]):
            assert math.isclose(one["precision"], precision[i], abs_tol=1e-9)
            assert math.isclose(one["recall"], recall[i], abs_tol=1e-9)
            assert math.isclose(one["f1"], f1[i], abs_tol=1e-9)
        assert math.isclose(report["f1"], sum(f1) / 4, abs_tol=1e-9)
        assert report["confusion"] == sklearn.confusion_matrix(labels, answers, labels=names).tolist()
        shares = []
        for row in rows:
            of = {row["class"]: float(row["probability"])}
            of.update({row[f"class_{k}"]: float(row[f"probability_{k}"]) for k in (2, 3, 4)})
            total = sum(of.values())
            shares.append([of[name] / total for name in names])
        auc = sklearn.roc_auc_score(labels, shares, labels=names, multi_class="ovr")
        assert abs(report["auc"] - auc) < 1e-3, (report["auc"], auc)  # the table has six digits
    # A table without the label column.
    folder.write("test.csv", "y,x,note\n" + "\n".join(f"{rng.random():.3f},{rng.random():.3f},n" for _ in range(5)) + "\n")
    rows = folder.rows(folder.run("predict", "job.yaml", "test.csv").stdout)
    assert list(rows[0]) == ["file", "line", "class", "probability"] and [row["line"] for row in rows] == list("23456"), rows
    shutil.rmtree(folder.path)


def test_numbers():
    folder, rng = Folder(), random.Random(5)
    lines = ["a,b,price"]
    for _ in range(200):
        a, b = rng.random(), rng.random()
        lines.append(f"{a:.5f},{b:.5f},{3 * a - b + rng.gauss(0, 0.1):.5f}")
    folder.write("table.csv", "\n".join(lines) + "\n")
    folder.write("job.yaml", """
name: prices
dataset: {type: csv, path: table.csv, fields: {data: [a, b], label: [price]}, label_dtype: f32, split: {train: 0.6, validation: 0.4}, batch: 10}
validation: {}
network: [{type: dense, units: 16}, {type: relu}, {name: out, type: dense, units: 1}]
loss: mse
optimizer: {type: adam, learning_rate: 0.02}
train: {epochs: 20}
launch: {device: cpu}
""")
    folder.run("run", "job.yaml")
    rows = folder.rows(folder.run("predict", "job.yaml").stdout)
    assert list(rows[0]) == ["file", "line", "value", "label"], rows[0]
    pairs = [(float(row["label"]), float(row["value"])) for row in rows]
    report = json.loads(folder.run("evaluate", "job.yaml", "--json").stdout)
    mean = sum(label for label, _ in pairs) / len(pairs)
    squares = sum((label - value) ** 2 for label, value in pairs)
    assert math.isclose(report["mae"], sum(abs(label - value) for label, value in pairs) / len(pairs), rel_tol=1e-5)
    assert math.isclose(report["rmse"], math.sqrt(squares / len(pairs)), rel_tol=1e-5)
    r2 = 1 - squares / sum((label - mean) ** 2 for label, _ in pairs)
    assert math.isclose(report["r2"], r2, rel_tol=1e-5) and r2 > 0.5, (report["r2"], r2)
    if sklearn:
        assert math.isclose(r2, sklearn.r2_score([p[0] for p in pairs], [p[1] for p in pairs]), rel_tol=1e-9)
    assert "R2 0." in folder.run("evaluate", "job.yaml").stdout
    folder.write("new.csv", "b,a\n0.5,0.25\n0.1,0.9\n")
    rows = folder.rows(folder.run("predict", "job.yaml", "new.csv").stdout)
    assert list(rows[0]) == ["file", "line", "value"] and abs(float(rows[1]["value"]) - 2.6) < 1, rows
    # The held-out numbers are negated, so the first validation is the best one.
    folder.write("negated.csv", "\n".join([lines[0]] + [f"{a},{b},{-float(price)}" for a, b, price in (line.split(",") for line in lines[1:])]) + "\n")
    job = open(os.path.join(folder.path, "job.yaml")).read().replace("prices", "negated").replace(", split: {train: 0.6, validation: 0.4}", "")
    folder.write("negated.yaml", job.replace("validation: {}", "validation: {dataset: {path: negated.csv}}").replace(
        "{epochs: 20}", "{epochs: 20, checkpoint: {every_epochs: 1, keep_best: loss}}"))
    folder.run("run", "negated.yaml")
    said = folder.run("evaluate", "negated.yaml")
    assert "after step 20 " in said.stdout + said.stderr, (said.stdout, said.stderr)
    shutil.rmtree(folder.path)


def test_early_stop():
    folder = Folder()
    folder.write("job.yaml", """
name: stops
dataset: {type: random, shape: [4], classes: 3, samples: 40, batch: 8}
validation: {dataset: {samples: 16}}
metrics: [accuracy]
network: [{type: dense, units: 3}]
loss: softmax_cross_entropy
optimizer: {type: sgd, learning_rate: 1.0e-30}
train: {epochs: 30, stop_when: {metric: accuracy, patience: 2}}
launch: {device: cpu}
""")
    last = folder.run("run", "job.yaml").stdout.strip().splitlines()[-1]
    assert last.startswith("stopped early at step 15 of 150 after ") and "has not improved" in last, last
    listed = json.loads(folder.run("ps", "-a", "--json").stdout)[0]
    assert listed["step"] == 15 and listed["steps"] == 150 and "best" in listed["validation"]["accuracy"], listed
    assert "15/150" in folder.run("ps", "-a").stdout
    shutil.rmtree(folder.path)


def test_tokens():
    folder = Folder()
    folder.write("words.txt", "to be or not to be that is the question " * 40)
    folder.write("more.txt", "to be or to question that not the " * 20)
    folder.write("job.yaml", """
name: words
dataset: {type: text, path: words.txt, length: 16, batch: 8}
validation: {dataset: {path: more.txt}}
network: [{type: embedding, vocab: 256, units: 16}, {name: out, type: dense, units: 256}]
loss: softmax_cross_entropy
optimizer: {type: adam, learning_rate: 0.01}
train: {epochs: 2}
launch: {device: cpu}
""")
    folder.run("run", "job.yaml")
    report = json.loads(folder.run("evaluate", "job.yaml", "--json").stdout)
    assert math.isclose(report["perplexity"], math.exp(report["loss"]), rel_tol=1e-6)
    refused = folder.run("predict", "job.yaml", "more.txt", code=2).stderr
    assert "trainctl generate" in refused, refused
    shutil.rmtree(folder.path)


if __name__ == "__main__":
    for test in (test_photos, test_measures_of_classes, test_numbers, test_early_stop, test_tokens):
        test()
        print(test.__name__, "passed", flush=True)
    if sklearn is None:
        print("scikit-learn is not installed: measures were compared with formulas alone")
