#!/usr/bin/env python3
"""Mistakes that new users make: at least 90 % of them are answered with their position, the cause and the next step.

    tests/cli/mistakes_test.py build/release/bin/trainctl [--all]

A case is the text of a job with one mistake, the line that is wrong, a part of the cause, and a part of the next step. Names
of other tools are mistakes too: their next step is what to write here."""
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

from further_mistakes import COMMANDS, job_cases, make_further_data
from mistakes_of_tools import make_tool_data, tool_cases

TRAINCTL = os.path.abspath(sys.argv[1])
SHOWS_ALL = "--all" in sys.argv

CSV = """name: table
dataset:
  type: csv
  path: table.csv
  fields: {data: [a, b], label: kind}
  batch: 4
network:
  - {type: dense, units: 8}
  - {type: relu}
  - {type: dense, units: 2}
loss: softmax_cross_entropy
optimizer: {type: sgd, learning_rate: 0.1}
train: {epochs: 1}
launch: {device: cpu}
"""
IMAGES = """name: images
dataset:
  type: image_folder
  path: photos/train
  transforms: [to_float, {resize: [8, 8]}, hwc2chw]
  batch: 4
network:
  - {type: flatten}
  - {type: dense, units: 2}
loss: softmax_cross_entropy
optimizer: {type: sgd, learning_rate: 0.1}
train: {epochs: 1}
launch: {device: cpu}
"""
TOKENS = """name: words
dataset:
  type: tokens
  path: data.bin
  length: 8
  batch: 4
network:
  - {type: embedding, vocab: 100, units: 16}
  - {type: dense, units: 48}
  - {type: attention, heads: 4, causal: true}
  - {type: dense, units: 100}
loss: softmax_cross_entropy
optimizer: {type: adam, learning_rate: 0.001}
train: {steps: 2}
launch: {device: cpu}
"""


def png(size):
    raw = b"".join(b"\0" + bytes([90, 80, 70] * size) for _ in range(size))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))


def idx(dims, values):
    return bytes([0, 0, 8, len(dims)]) + b"".join(struct.pack(">I", d) for d in dims) + bytes(values)


def make_data(folder):
    def write(name, content):
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb" if isinstance(content, bytes) else "w") as file:
            file.write(content)
    write("table.csv", "a,b,kind\n" + "".join(f"{i},{i % 3},{'xy'[i % 2]}\n" for i in range(16)))
    write("numbers.csv", "a,b,kind\n" + "".join(f"{i},{i % 3},{-100 if i == 7 else i % 2}\n" for i in range(16)))
    for split in ("train", "val"):
        for kind in ("cat", "dog"):
            for i in range(4):
                write(f"photos/{split}/{kind}/{i}.png", png(10 + i))
    write("flat/1.png", png(8))
    write("data.bin", struct.pack("<400H", *[i % 90 for i in range(400)]))
    write("data32.bin", struct.pack("<400i", *[i % 90 for i in range(400)]))
    write("data.idx", idx([20, 4, 4], [0] * 320))
    write("data.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) +
          b"{'descr': '<u2', 'fortran_order': False, 'shape': (64,), }".ljust(117) + b"\n" + struct.pack("<64H", *range(64)))
    write("kaggle/train-images.idx3-ubyte", idx([8, 4, 4], [0] * 128))
    write("kaggle/train-labels.idx1-ubyte", idx([8], [0, 1] * 4))
    write("digits/train-images-idx3-ubyte", idx([8, 4, 4], list(range(128))))
    write("digits/train-labels-idx1-ubyte", idx([8], [0, 1] * 4))
    make_further_data(write, png)
    make_tool_data(write)


# (title, base, what is replaced, by what, a part of the line with the mistake, cause, next step)
CASES = [
    # Names of other tools.
    ("lr", CSV, "learning_rate: 0.1", "lr: 0.1", "lr: 0.1", "unknown field 'lr'", "learning_rate: 0.1"),
    ("batch_size", CSV, "batch: 4", "batch_size: 4", "batch_size: 4", "unknown field 'batch_size'", "batch: 64"),
    ("batch_size at the top", CSV, "loss:", "batch_size: 4\nloss:", "batch_size: 4", "unknown field", "dataset: {batch: 64}"),
    ("max_steps", CSV, "epochs: 1", "max_steps: 10", "max_steps", "unknown field 'max_steps'", "steps: 1000"),
    ("num_epochs", CSV, "epochs: 1", "num_epochs: 3", "num_epochs", "unknown field", "epochs: 10"),
    ("early_stopping", CSV, "epochs: 1", "early_stopping: 3", "early_stopping", "unknown field", "stop_when: {metric: loss, patience: 3}"),
    ("cross_entropy", CSV, "softmax_cross_entropy", "cross_entropy", "loss: cross_entropy", "cross_entropy", "loss: softmax_cross_entropy"),
    ("CrossEntropyLoss", CSV, "softmax_cross_entropy", "CrossEntropyLoss", "CrossEntropyLoss", "CrossEntropyLoss", "loss: softmax_cross_entropy"),
    ("l1", CSV, "softmax_cross_entropy", "l1", "loss: l1", "l1", "loss: mae"),
    ("linear", CSV, "{type: dense, units: 8}", "{type: linear, units: 8}", "linear", "unknown layer type 'linear'", "type: dense"),
    ("nn.Linear", CSV, "{type: dense, units: 8}", "{type: nn.Linear, units: 8}", "nn.Linear", "unknown layer type", "type: dense"),
    ("swish", CSV, "{type: relu}", "{type: swish}", "swish", "unknown layer type", "type: silu"),
    ("out_features", CSV, "units: 8", "out_features: 8", "out_features", "unknown field 'out_features'", "units"),
    ("in_features", CSV, "units: 8", "in_features: 2, units: 8", "in_features", "unknown field 'in_features'", "remove it"),
    ("activation of a layer", CSV, "units: 8", "units: 8, activation: relu", "activation", "unknown field", "a layer of its own"),
    ("conv2d with filters", IMAGES, "- {type: flatten}", "- {type: conv2d, filters: 4, kernel: 3}\n  - {type: flatten}", "filters", "filters", "channels"),
    ("kernel_size", IMAGES, "- {type: flatten}", "- {type: conv2d, channels: 4, kernel_size: 3}\n  - {type: flatten}", "kernel_size", "kernel_size", "kernel"),
    ("maxpool", IMAGES, "- {type: flatten}", "- {type: MaxPool2d, kernel: 2}\n  - {type: flatten}", "MaxPool2d", "unknown layer type", "max_pool2d"),
    ("num_heads", TOKENS, "heads: 4", "num_heads: 4", "num_heads", "unknown field 'num_heads'", "heads"),
    ("vocab_size", TOKENS, "vocab: 100", "vocab_size: 100", "vocab_size", "unknown field", "vocab"),
    ("gradient_accumulation_steps", CSV, "train:", "gradient_accumulation_steps: 4\ntrain:", "gradient_accumulation_steps", "unknown field", "micro_batches: 4"),
    ("tensor_model_parallel_size", CSV, "launch:", "parallel: {tensor_model_parallel_size: 2}\nlaunch:", "tensor_model_parallel_size", "unknown field", "tensor: 2"),
    ("zero_stage", CSV, "launch:", "parallel: {mode: data_parallel, zero_stage: 2}\nlaunch:", "zero_stage", "unknown field", "optimizer_shard"),
    ("float16", CSV, "launch:", "precision: float16\nlaunch:", "float16", "float16", "fp16"),
    ("fp16_true", CSV, "launch:", "fp16: true\nlaunch:", "fp16: true", "'fp16' is for jobs with precision: fp16", "precision: fp16"),
    ("loss_scale", CSV, "launch:", "loss_scale: 128\nlaunch:", "loss_scale", "unknown field 'loss_scale'", "fp16"),
    ("amp", CSV, "launch:", "amp: true\nlaunch:", "amp: true", "unknown field 'amp'", "precision: bf16"),
    ("adamw_torch", CSV, "type: sgd", "type: adamw_torch", "adamw_torch", "adamw_torch", "adamw"),
    ("acc", CSV, "train:", "metrics: [acc]\ntrain:", "[acc]", "unknown metric 'acc'", "accuracy"),
    ("f1", CSV, "train:", "metrics: [f1]\ntrain:", "[f1]", "unknown metric 'f1'", "trainctl evaluate"),
    ("ToTensor", IMAGES, "to_float", "ToTensor", "ToTensor", "unknown transform", "to_float"),
    ("RandomHorizontalFlip", IMAGES, "to_float", "RandomHorizontalFlip, to_float", "RandomHorizontalFlip", "unknown transform", "horizontal_flip"),
    ("imagefolder", IMAGES, "type: image_folder", "type: ImageFolder", "ImageFolder", "ImageFolder", "image_folder"),
    ("dataset: path at the top", CSV, "loss:", "data_dir: x\nloss:", "data_dir", "unknown field", "dataset: {path"),
    ("criterion", CSV, "loss:", "criterion:", "criterion", "criterion", "loss: softmax_cross_entropy"),
    ("model in place of network", CSV, "network:", "model:", "model:", "unknown field 'model'", "network"),
    ("gpus", CSV, "device: cpu", "device: cpu, gpus: 2", "gpus", "unknown field 'gpus'", "ranks"),
    ("cosine annealing", CSV, "learning_rate: 0.1", "learning_rate: {type: cosine_annealing, base: 0.1}", "cosine_annealing", "cosine_annealing", "cosine"),
    ("warmup_ratio", CSV, "learning_rate: 0.1", "learning_rate: {base: 0.1, warmup_ratio: 0.1}", "warmup_ratio", "unknown field", "warmup_steps"),
    ("num_workers", CSV, "batch: 4", "batch: 4\n  num_workers: 2", "num_workers", "unknown field 'num_workers'", "workers"),
    ("seq_len", TOKENS, "length: 8", "seq_len: 8", "seq_len", "unknown field 'seq_len'", "length"),
    ("save_steps", CSV, "epochs: 1", "epochs: 1, save_steps: 10", "save_steps", "unknown field", "every_steps"),
    ("lora_r", CSV, "launch:", "adapters: {lora: {layers: ['*'], r: 4}}\nlaunch:", "r: 4", "unknown field 'r'", "rank"),
    # The network does not fit.
    ("missing flatten", IMAGES, "  - {type: flatten}\n", "", "loss: softmax", "", "flatten"),
    ("heads that do not divide", TOKENS, "heads: 4, causal", "heads: 5, causal", "heads: 5", "5", "divi"),
    ("too few classes", CSV, "units: 2", "units: 1", "", "", "units: 2"),
    # Data.
    ("resize before to_float", IMAGES, "[to_float, {resize: [8, 8]}, hwc2chw]", "[{resize: [8, 8]}, to_float, hwc2chw]", "resize", "to_float", "put to_float before"),
    ("label -100 without ignore_index", CSV, "table.csv", "numbers.csv", "numbers.csv", "-100", "ignore_index: -100"),
    ("int32 tokens", TOKENS, "data.bin", "data32.bin", "", "", "token_dtype: int32"),
    (".idx used as tokens", TOKENS, "data.bin", "data.idx", "data.idx", "IDX", "mnist"),
    (".npy used as tokens", TOKENS, "data.bin", "data.npy", "data.npy", "npy", "tofile"),
    ("braces of webdataset", IMAGES, "type: image_folder\n  path: photos/train", "type: tar\n  path: 's-{000..002}.tar'", "s-{000", "s-{000..002}.tar", "s-*.tar"),
    ("a path above train and val", IMAGES, "photos/train", "photos", "path: photos", "train", "photos/train"),
    ("a folder without classes", IMAGES, "photos/train", "flat", "path: flat", "no classes", "one folder per class"),
    ("a missing path", CSV, "table.csv", "tables.csv", "tables.csv", "tables.csv", "table.csv"),
    ("a missing column", CSV, "label: kind", "label: sort", "sort", "no column 'sort'", "kind"),
    ("a batch larger than the set", CSV, "batch: 4", "batch: 64", "batch: 64", "64", "at most 16"),
    ("no images size", IMAGES, ", {resize: [8, 8]}", "", "transforms", "", "resize"),
    ("val_split", CSV, "batch: 4", "batch: 4\n  val_split: 0.2", "val_split", "unknown field", "split: {train: 0.8, validation: 0.2}"),
    ("a path of the home folder", CSV, "table.csv", "~/table.csv", "~/table.csv", "~", "write the whole path"),
    ("a variable of the shell", CSV, "table.csv", "$HOME/table.csv", "$HOME", "$HOME", "write the whole path"),
    ("a list of shares", CSV, "batch: 4", "batch: 4\n  split: [0.8, 0.2]", "split", "not a list", "{train: 0.8, validation: 0.2}"),
    ("split of tokens", TOKENS, "length: 8", "length: 8\n  split: {train: 0.9, validation: 0.1}", "split", "not for tokens", "validation: {dataset: {path"),
    ("path of the validation", CSV, "train:", "validation: {path: val.csv}\ntrain:", "val.csv", "unknown field 'path'", "validation.dataset.path"),
    ("one number for a size", IMAGES, "{resize: [8, 8]}", "{resize: 8}", "resize", "list of 2 integers", "[8, 8]"),
    ("two channels of three", IMAGES, "hwc2chw]", "{normalize: {mean: [1, 2], std: [1, 2]}}, hwc2chw]", "normalize", "3 channels", "one per channel"),
    # Values.
    ("a percentage", CSV, "learning_rate: 0.1", "learning_rate: 10%", "10%", "a number", "write 0.1"),
    ("a decimal comma", CSV, "learning_rate: 0.1", "learning_rate: 0,1", "0,1", "unknown field '1'", "decimal point"),
    ("a list of optimizers", CSV, "{type: sgd, learning_rate: 0.1}", "[adam]", "[adam]", "a mapping, not a list", "{type: "),
    ("patience alone", CSV, "epochs: 1", "epochs: 1, stop_when: 3", "stop_when", "a mapping", "metric"),
    ("checkpoint: true", CSV, "epochs: 1", "epochs: 1, checkpoint: true", "checkpoint", "'true'", "write auto"),
    ("cuda:0", CSV, "device: cpu", "device: 'cuda:0'", "cuda:0", "cuda:0", "cuda"),
    ("the rate of dropout", CSV, "{type: relu}", "{type: dropout, rate: 0.5}", "rate", "unknown field 'rate'", "p: 0.1"),
    ("a number in quotes", CSV, "units: 8", "units: '8'", "'8'", "an integer", "remove the quotes"),
    ("a layer for the input", CSV, "- {type: relu}", "- {type: input, shape: [8]}", "input", "unknown layer type", "remove it"),
    ("two layers of one name", CSV, "{type: relu}", "{type: relu, name: a}\n  - {type: relu, name: a}", "name: a", "used twice", "first used in line"),
    ("wandb: true", CSV, "train:", "track: {wandb: true}\ntrain:", "wandb", "unknown field 'wandb'", "track: ["),
    ("an unknown tracker", CSV, "train:", "track: [tensorbord]\ntrain:", "tensorbord", "unknown tracker", "tensorboard"),
    ("a program as a tracker", CSV, "train:", "track: ./push.py\ntrain:", "push.py", "unknown tracker", "command: ./push.py"),
    # The form of the file.
    ("a tab", CSV, "  type: csv", "\ttype: csv", "\ttype", "tab", "spaces"),
    ("a misspelt section", CSV, "optimizer:", "optimiser:", "optimiser", "optimiser", "optimizer"),
    ("a misspelt field", CSV, "epochs: 1", "epocs: 1", "epocs", "epocs", "epochs"),
    ("text for a number", CSV, "batch: 4", "batch: four", "four", "four", "integer"),
    ("a list for a layer", CSV, "- {type: relu}", "- relu", "- relu", "relu", "type: relu"),
    ("units of a layer forgotten", CSV, "{type: dense, units: 8}", "{type: dense}", "{type: dense}", "units", "units"),
]

# Jobs of another form that are right.
RIGHT = [
    ("optimizer: adam", CSV, "optimizer: {type: sgd, learning_rate: 0.1}", "optimizer: adam"),
    ("device: gpu means cuda", CSV, "device: cpu", "device: gpu"),
    ("IDX files with Kaggle's names", CSV, CSV[:CSV.index("  - {type: dense")], """name: digits
dataset: {type: mnist, path: kaggle, transforms: [to_float, hwc2chw], batch: 4}
network:
  - {type: flatten}
"""),
]


def check(folder, text, words=("plan", "job.yaml")):
    with open(os.path.join(folder, "job.yaml"), "w") as file:
        file.write(text)
    env = {**os.environ, "XDG_RUNTIME_DIR": folder}
    done = subprocess.run([TRAINCTL, *words], cwd=folder, capture_output=True, text=True, env=env, timeout=300)
    return done.returncode, done.stderr


def judge(case, code, error):
    """Returns which of position, cause and next step the error lacks."""
    title, base, old, new, where, cause, step = case[:7]
    text = base.replace(old, new)
    missing = []
    is_warning = code == 0 and ": warning: " in error
    if code != 2 and not is_warning and "model.pt" not in error:
        return [f"exit code {code}"]
    lines = [n + 1 for n, line in enumerate(text.split("\n")) if where.strip("\t") in line.strip("\t")] if where else []
    found = [int(n) for n in re.findall(r"job\.yaml:(\d+):\d+: ", error)]
    if where and not set(lines) & set(found):
        missing.append(f"position (line {lines}, found {found})")
    if not where and not found:
        missing.append("position")
    if cause not in error:
        missing.append(f"cause '{cause}'")
    if step not in error:
        missing.append(f"next step '{step}'")
    return missing


def main():
    folder = tempfile.mkdtemp(prefix="trainctl-mistakes-")
    make_data(folder)
    weak = []
    cases = CASES + job_cases(CSV, IMAGES, TOKENS) + tool_cases(CSV, IMAGES, TOKENS)
    for case in cases:
        title, base, old, new = case[:4]
        assert old in base, title
        command = case[7] if len(case) > 7 else ("plan",)
        code, error = check(folder, base.replace(old, new), [*command, "job.yaml"])
        missing = judge(case, code, error)
        if missing:
            weak.append(title)
        if missing or SHOWS_ALL:
            print(f"--- {title}: {'; '.join(missing) if missing else 'good'}\n{error.strip()}")
    for title, words, cause, step in COMMANDS:
        code, error = check(folder, CSV, words)
        missing = [part for part in (cause, step) if part not in error] + ([f"exit code {code}"] if code != 2 else [])
        if missing:
            weak.append(title)
        if missing or SHOWS_ALL:
            print(f"--- {title}: {', '.join(missing) if missing else 'good'}\n{error.strip()}")
    for title, base, old, new in RIGHT:
        assert old in base, title
        code, error = check(folder, base.replace(old, new).replace("device: gpu", "device: gpu"))
        is_refused = code != 0 and "device" not in title
        if is_refused or (code == 2):
            weak.append(title)
            print(f"--- {title}: exit code {code}\n{error.strip()}")
    count = len(cases) + len(COMMANDS) + len(RIGHT)
    share = 1 - len(weak) / count
    print(f"{count} cases, {share:.0%} with position, cause and next step; weak: {', '.join(weak) or 'none'}")
    shutil.rmtree(folder)
    assert count >= 220 and share >= 0.9


if __name__ == "__main__":
    main()
