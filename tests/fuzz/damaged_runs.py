#!/usr/bin/env python3
"""Damaged run folders, each given to the commands that read them.

  python3 tests/fuzz/damaged_runs.py --trainctl build/release/bin/trainctl --folders 1000

One run is made, with a validation, checkpoints and a profile. Each time one of its files is damaged: fields of its JSON are removed,
repeated or replaced by values of other types, or bytes are changed, cut off or inserted. Then report, metrics, logs, ps, attach and
checkpoint must end with 0, or with an error that is no bug, and write no control character. Prints a row for each deviation, whose folder
is kept under --keep. Of one seed, folder N is always the same: --only N.
"""
import argparse
import copy
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

JOB = """name: damaged
dataset: {type: random, shape: [8], classes: 4, batch: 8, samples: 32}
network: [{name: a, type: dense, units: 8}, {type: relu}, {name: o, type: dense, units: 4}]
loss: softmax_cross_entropy
metrics: [accuracy]
validation: {dataset: {samples: 8}}
optimizer: {type: adam, learning_rate: 0.01}
train: {epochs: 2, checkpoint: {every_epochs: 1}}
parallel: {mode: semi_auto_parallel, stages: 2, micro_batches: 2, optimizer_shard: {level: 1}}
launch: {ranks: 4, device: cpu}
"""
COMMANDS = [["report", "1", "-o", "page.html"], ["report", "1", "--json"], ["metrics", "1"], ["metrics", "1", "--rows", "epochs"],
            ["metrics", "1", "--csv", "--rows", "validations"], ["logs", "1", "--rank", "all"], ["logs"], ["ps", "-a"], ["ps", "-a", "--json"],
            ["attach", "1"], ["checkpoint", "list", "1"], ["checkpoint", "show", "1"]]
VALUES = [None, True, 0, -1, 1e308, 2**63, 2**64 - 1, -2**63, 0.5, "", "x\x1b[31m", "9" * 400, [], {}, [[]], [None], {"a": 1}]
CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
ENDS = (0, 2, 3, 5)  # 5: attach ends as its run did
PATIENCE = 600


def places(value, path=()):
    """The path of each value inside another."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    for key, inner in items:
        yield path + (key,)
        yield from places(inner, path + (key,))


def damage_json(chance, value):
    for _ in range(chance.choice([1, 1, 2, 4])):
        paths = list(places(value))
        if not paths:
            return chance.choice(VALUES)
        *outer, last = chance.choice(paths)
        holder = value
        for key in outer:
            holder = holder[key]
        way = chance.random()
        if way < 0.35:
            del holder[last]
        elif way < 0.85:
            holder[last] = copy.deepcopy(chance.choice(VALUES))
        elif isinstance(holder, list):
            holder.append(copy.deepcopy(holder[last]))
        else:
            holder["again"] = holder[last]
    return value


def damage_bytes(chance, data):
    at, size = chance.randrange(len(data) + 1), chance.randrange(1, 30)
    inserted = bytes(chance.randrange(256) for _ in range(size))
    return chance.choice([data[:at], data[:at] + data[at + size:], data[:at] + inserted + data[at:], data[:at] + inserted + data[at + size:]])


def damage(chance, path):
    data = path.read_bytes()
    lines = [data] if path.suffix == ".json" else data.splitlines(keepends=True)
    if path.suffix in (".json", ".jsonl") and lines and chance.random() < 0.8:
        number = chance.randrange(len(lines))
        lines[number] = json.dumps(damage_json(chance, json.loads(lines[number]))).encode() + b"\n"
        path.write_bytes(b"".join(lines))
    else:
        path.write_bytes(damage_bytes(chance, data))


def problem_of(options, folder, words):
    try:
        done = subprocess.run([options.trainctl, *words], cwd=folder, env=dict(os.environ, XDG_RUNTIME_DIR=str(folder)), timeout=PATIENCE,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except subprocess.TimeoutExpired:
        return "does not end"
    if done.returncode not in ENDS or b"bug: " in done.stdout:
        return f"exit code {done.returncode}: {done.stdout[-300:]}"
    return f"control characters: {done.stdout[-300:]}" if CONTROL.search(done.stdout) else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainctl", required=True, type=os.path.abspath)
    parser.add_argument("--folders", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this folder alone")
    parser.add_argument("--keep", type=pathlib.Path, default="damaged_runs.failed", help="folder for the runs that were read wrongly")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="trainctl-damaged-") as place:
        place = pathlib.Path(place)
        (place / "job.yaml").write_text(JOB)
        subprocess.run([options.trainctl, "run", "job.yaml", "--profile"], cwd=place, env=dict(os.environ, XDG_RUNTIME_DIR=str(place)),
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
        files = sorted(path.relative_to(place) for path in (place / "log_output").rglob("*") if path.is_file())
        records = [path for path in files if path.suffix in (".json", ".jsonl")]
        for number in [options.only] if options.only is not None else range(options.folders):
            chance = random.Random(f"{options.seed} {number}")
            folder = place / str(number)
            shutil.copytree(place / "log_output", folder / "log_output", symlinks=True)
            path = chance.choice(records if chance.random() < 0.8 else files)
            damage(chance, folder / path)
            problems = [(words, problem_of(options, folder, words)) for words in chance.sample(COMMANDS, 4)]
            for words, problem in problems:
                if problem:
                    print(f"folder {number}: {path}: {' '.join(words)}: {problem}", flush=True)
            if any(problem for _, problem in problems):
                wrong += 1
                shutil.copytree(folder, options.keep / str(number), symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(folder)
    print(f"{options.folders} damaged folders, {wrong} read wrongly")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
