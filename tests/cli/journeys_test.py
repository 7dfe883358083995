#!/usr/bin/env python3
"""The journeys of three new users, from their data to answers, with data that this script makes: photos, a text, a script for a cluster.

    tests/cli/journeys_test.py build/release/bin/trainctl [--seed N] [--show]

Each command must end as its user expects. The time of each is printed, but not judged; --show prints their output too."""
import argparse
import json
import math
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time
import zlib

KINDS = ["round", "square", "striped"]


def png(size, pixel):
    raw = b"".join(b"\0" + bytes(v for x in range(size) for v in pixel(x, y)) for y in range(size))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def photo(kind, rng):
    size, paper, ink = rng.randint(40, 72), [rng.randint(140, 255) for _ in range(3)], [rng.randint(0, 90) for _ in range(3)]
    middle, half = size / 2 + rng.uniform(-5, 5), size * rng.uniform(0.25, 0.35)

    def pixel(x, y):
        inside = {"round": math.hypot(x - middle, y - middle) < half, "square": max(abs(x - middle), abs(y - middle)) < half,
                  "striped": abs(y - middle) < half and (x // 4) % 2 == 0}[kind]
        return [min(255, max(0, v + rng.randint(-12, 12))) for v in (ink if inside else paper)]
    return png(size, pixel)


def sentence(rng):
    first, second = rng.sample(["the cook", "a guest", "my aunt", "the child"], 2)
    return f"{first} {rng.choice(['sees', 'calls', 'feeds'])} {second} and {second} {rng.choice(['laughs', 'sleeps'])}.\n"


class Journey:
    def __init__(self, program, shows):
        self.program, self.shows, self.times = program, shows, []
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="trainctl-journey-"))

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def go(self, line, *more, code=0, says=(), columns=80):
        """Runs `trainctl LINE MORE` and requires its exit code and parts of its output, which it returns."""
        begin = time.monotonic()
        env = {**os.environ, "XDG_RUNTIME_DIR": str(self.folder), "TMPDIR": str(self.folder), "COLUMNS": str(columns), "NO_COLOR": "1"}
        done = subprocess.run([self.program, *line.split(), *more], cwd=self.folder, capture_output=True, text=True, env=env, timeout=900)
        self.times.append((time.monotonic() - begin, " ".join([line, *more])))
        said = done.stdout + done.stderr
        if self.shows:
            print(f"$ trainctl {self.times[-1][1]}\n{said}", flush=True)
        assert done.returncode == code, f"trainctl {line}: exit code {done.returncode}\n{said}"
        for part in says:
            assert part in said, f"trainctl {line}: '{part}' is not in\n{said}"
        return said

    def report(self, name):
        print(f"{name}: {len(self.times)} commands, {sum(t for t, _ in self.times):.1f} s")
        for seconds, line in self.times:
            print(f"  {seconds:6.2f} s  trainctl {line[:110]}")


def photos(journey, rng):
    """From folders of photos to classes of new ones."""
    for part, count in [("train", 24), ("val", 8)]:
        for kind in KINDS:
            for i in range(count):
                journey.write(f"shapes/{part}/{kind}/{i}.png", photo(kind, rng))
    for i in range(12):
        journey.write(f"inbox/{'deeper/' if i > 7 else ''}{KINDS[i % 3]}_{i}.png", photo(KINDS[i % 3], rng))
    small = ["launch.device=cpu", "train.epochs=12"]
    journey.go("init --data shapes -o job.yaml", says=["next: trainctl plan job.yaml"])
    journey.go("check job.yaml launch.device=cpu", says=["valid"])
    journey.go("data check job.yaml", says=["72 samples, 0 broken", "striped"])
    journey.go("show model job.yaml launch.device=cpu", says=["global_avg_pool", "parameters"])
    for columns in (80, 120):
        said = journey.go("plan --layers job.yaml launch.device=cpu", columns=columns, says=["memory per rank", "validation"])
        assert max(map(len, said.splitlines())) <= columns, max(said.splitlines(), key=len)
        assert "[1, 1, 1, 1]" not in said, said
    said = journey.go("run job.yaml", *small, says=["validation accuracy", "done after"])
    last = said.strip().splitlines()[-1]
    assert "validation loss" in last and "training loss" in last, last
    journey.go("ps --all", says=["shapes", "accuracy"])
    for columns in (80, 120):
        said = journey.go("evaluate job.yaml launch.device=cpu", columns=columns, says=["confusion matrix", "mean F1", "precision"])
        tables = said[said.index("classes\n"):]
        assert max(map(len, tables.splitlines())) <= columns, tables
    said = journey.go("predict job.yaml inbox launch.device=cpu -o answers.csv", says=["12 answers"])
    rows = (journey.folder / "answers.csv").read_text().splitlines()
    assert rows[0] == "file,class,probability" and len(rows) == 13, rows
    right = sum(row.split(",")[1] == pathlib.Path(row).name.split("_")[0] for row in rows[1:])
    assert right >= 8 and all(row.split(",")[1] in KINDS for row in rows[1:]), rows  # a guess is right four times
    evaluated, _ = json.JSONDecoder().raw_decode(journey.go("evaluate job.yaml launch.device=cpu --json"))
    journey.go("predict job.yaml shapes/val launch.device=cpu -o held_out.csv", says=["24 answers"])
    held_out = [line.split(",") for line in (journey.folder / "held_out.csv").read_text().splitlines()[1:]]
    right = sum(row[1] == pathlib.Path(row[0]).parent.name for row in held_out)
    assert right == round(24 * evaluated["accuracy"]), "predict sees the photos as evaluate does"
    journey.go("report 1 -o report.html", says=["open it in a browser"])
    page = (journey.folder / "report.html").read_text()
    assert '"confusion"' in page and "data:image/png;base64" in page, "the worst samples are images"
    journey.go("sweep job.yaml --lr-range 1e-4..1 --lr-steps 20 launch.device=cpu", says=["learning rates from"])
    journey.go("checkpoint show 1", says=["step"])


def text(journey, rng):
    """From a text to texts."""
    journey.write("book.txt", "".join(sentence(rng) for _ in range(400)))
    journey.write("held_out.txt", "".join(sentence(rng) for _ in range(60)))
    small = ["launch.device=cpu", "vars.layers=2", "vars.d=64", "vars.length=48"]
    journey.go("init --data book.txt --validation held_out.txt -o job.yaml", says=["next"])
    journey.go("check job.yaml", *small, says=["valid"])
    journey.go("run job.yaml train.steps=20", *small, says=["validation loss", "done after"])
    said = journey.go("run job.yaml --resume train.steps=40", *small, says=["step 20"])
    assert "done after" in said
    journey.go("evaluate job.yaml", *small, says=["perplexity"])
    journey.go("generate job.yaml --max-tokens 12", "the cook ", *small)
    journey.go("report 1 2 -o report.html", says=["open it in a browser"])
    journey.go("ps --all", says=["40/40"])


def script(journey, rng):
    """From a script on a laptop to hosts and clusters."""
    del rng
    journey.write("src/train.py", "import os, sys, time\nfor step in range(int(sys.argv[1])):\n"
                  "    print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], 'step', step, flush=True)\n    time.sleep(0.02)\n")
    journey.go("init command -o template.yaml", says=["written"])
    journey.write("job.yaml", "name: script\ncommand: [python3, train.py, '3']\nworking_dir: src\nlaunch: {ranks: 2}\n")
    journey.go("check job.yaml", says=["valid"])
    journey.go("plan job.yaml", says=["2 ranks of"])
    journey.go("run job.yaml --show all", says=["rank 1 of 2 step 2", "done after"])
    journey.write("long.yaml", "name: long\ncommand: [python3, train.py, '100000']\nworking_dir: src\nlaunch: {ranks: 2}\n")
    journey.go("run long.yaml --detach", says=["run 2 started"])
    while "running" not in journey.go("ps", says=["long"]):  # the ranks have started
        pass
    journey.go("stop", says=["run 2 (long)"])
    journey.write("ssh", "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\n"
                  f"HOME={journey.folder}/$1; export HOME; mkdir -p $HOME; shift; unset XDG_CACHE_HOME; exec sh -c \"$*\"\n").chmod(0o755)
    hosts = ["launch.hosts=[a, b]", f"launch.ssh={journey.folder}/ssh", "launch.interface=lo"]
    journey.go("hosts job.yaml", *hosts, says=["127.0.0.1"])
    journey.go("run job.yaml", *hosts, f"launch.copy=[{journey.folder}/src]", "--show", "all", says=["rank 1 of 2 step 2"])
    said = journey.go("render job.yaml launch.target=kubernetes launch.kubernetes.pods=2", says=["job.yaml:3:14: warning: working_dir", "kubectl apply"])
    assert "memory" not in (journey.folder / "script.kubernetes/job.yaml").read_text().split("resources:")[1].split("volumeMounts")[0], said
    journey.go("render job.yaml launch.target=slurm launch.slurm.nodes=2 launch.slurm.time=1:00:00", says=["sbatch script.slurm/job.sbatch"])
    journey.go("render job.yaml launch.target=slurm launch.slurm.time=1h", code=2, says=["1:00:00"])
    journey.go("predict job.yaml photos", code=2, says=["a program has no network"])
    runs = json.loads(journey.go("ps --all --json"))
    assert [run["state"] for run in runs] == ["done", "stopped", "done"], runs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("journeys", nargs="*", choices=[[], "photos", "text", "script"])
    options = parser.parse_args()
    journeys = {"photos": photos, "text": text, "script": script}
    for name in options.journeys or journeys:
        journey = Journey(options.program.resolve(), options.show)
        journeys[name](journey, random.Random(options.seed))
        journey.report(name)


if __name__ == "__main__":
    sys.exit(main())
