#!/usr/bin/env python3
"""Measures how long steps wait for image shards from an object store that answers each request after 200 ms.

    store_waits.py TRAINCTL --photos FOLDER [--steps 300] [--delay 0.2] [--samples 102400] [--only store,local]
    store_waits.py TRAINCTL --small             a small network on CPUs, and arrays in place of photographs

Writes tar shards of the JPEG files in FOLDER (repeated) with an index, starts slow_store.py, and trains the same job from local files and from
s3:// with an empty cache. Needs only the standard library, for machines with a GPU; `formats.py --only store` uses moto, and
requests that fail. Prints the time of the steps and the requests of each run. A run whose steps wait for at least 2 % of the time says so.
"""
import argparse
import io
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
parser = argparse.ArgumentParser()
parser.add_argument("trainctl", type=os.path.abspath)
parser.add_argument("--small", action="store_true")
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--delay", type=float, default=0.2)
parser.add_argument("--samples", type=int, default=102400)
parser.add_argument("--photos", type=pathlib.Path, help="a folder of JPEG files; not needed with --small")
parser.add_argument("--batch", type=int, default=256)
parser.add_argument("--shard", type=int, default=1024, help="samples per shard")
parser.add_argument("--block", type=int, default=1024, help="dataset.shuffle_block")
parser.add_argument("--template", default=str(HERE.parents[1] / "templates/resnet50.yaml"))
parser.add_argument("--set", action="append", default=[], help="a field of the job: dataset.workers=8")
parser.add_argument("--only", default="", help="names of runs: local, store, again (cached), full (a full shuffle)")
options = parser.parse_args()
if not options.small and not options.photos:
    parser.error("--photos is missing")


def npy(side):
    header = ("{'descr': '|u1', 'fortran_order': False, 'shape': (%d, %d, 3), }" % (side, side)).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + os.urandom(side * side * 3)


def write_shards(folder):
    """All shards have the same content, which readers of objects cannot know."""
    photos = [npy(147) for _ in range(32)] if options.small else [path.read_bytes() for path in sorted(options.photos.glob("*.jpg"))]
    folder.mkdir(parents=True)
    suffix, content = "npy" if options.small else "jpg", io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for number in range(options.shard):
            for ending, data in ((suffix, photos[number * 7 % len(photos)]), ("cls", str(number * 13 % 10).encode())):
                info = tarfile.TarInfo(f"{number:07}.{ending}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    shards = [folder / f"train-{i:04}.tar" for i in range(options.samples // options.shard)]
    for shard in shards:
        shard.write_bytes(content.getbuffer())
    subprocess.run([options.trainctl, "data", "index", *map(str, shards)], check=True, stdout=subprocess.DEVNULL)
    print(f"{len(shards)} shards, {sum(p.stat().st_size for p in shards) / 1e6:,.0f} MB, {options.samples:,} samples", flush=True)


SMALL = """name: small
seed: 1
dataset: {type: tar, path: PATH, fields: {image: npy, label: cls}, batch: 64, transforms: {image: [{random_crop: {size: [16, 16]}}, to_float, hwc2chw]}}
network:
  - {name: c1, type: conv2d, channels: 12, kernel: 3, padding: 1, inputs: [image]}
  - {type: relu}
  - {name: c2, type: conv2d, channels: 12, kernel: 3, padding: 1}
  - {type: relu}
  - {name: c3, type: conv2d, channels: 12, kernel: 3, padding: 1}
  - {type: global_avg_pool}
  - {name: out, type: dense, units: 10}
loss: softmax_cross_entropy
optimizer: {type: sgd, learning_rate: 0.01}
launch: {device: cpu, ranks: 1}
"""
LARGE = """dataset:
  type: tar
  path: PATH
  transforms:
    - {random_resized_crop: [224, 224]}
    - horizontal_flip
    - {normalize: {mean: [123.7, 116.3, 103.5], std: [58.4, 57.1, 57.4]}}
    - hwc2chw
  batch: BATCH
"""


def job(path):
    if options.small:
        return SMALL.replace("PATH", path).replace("batch: 64", f"batch: {options.batch if options.batch != 256 else 64}")
    text = pathlib.Path(options.template).read_text()
    text, count = re.subn(r"^dataset:\n(?:[ #].*\n|\n(?=  ))+", LARGE.replace("PATH", path).replace("BATCH", str(options.batch)), text, flags=re.M)
    assert count == 1
    return text


def stats(port):
    return json.loads(urllib.request.urlopen(f"http://127.0.0.1:{port}/stats").read())


def train(name, path, folder, environment, port, sets):
    (folder / f"{name}.yaml").write_text(job(path))
    before, start = stats(port), time.monotonic()
    done = subprocess.run([options.trainctl, "run", f"{name}.yaml", f"train.steps={options.steps}", "train.log_every=1", "train.checkpoint=none", f"launch.log_dir=log_{name}", *sets, *options.set],
                          cwd=folder, env=environment, capture_output=True, text=True)
    seconds, after = time.monotonic() - start, stats(port)
    if done.returncode != 0:
        print(f"{name}: exit {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-3000:]}", flush=True)
        return
    rows = [json.loads(line) for line in (folder / f"log_{name}/1/metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "step" in row and "loss" in row]
    said = (folder / f"log_{name}/1/rank.0/stdout").read_text().splitlines()
    times = [row["seconds"] for row in steps[1:]]
    last = times[len(times) // 3:]
    summary = f"median step {1e3 * statistics.median(last):.1f} ms, mean {1e3 * statistics.mean(last):.1f} ms (last two thirds)" if last else f"keys {list(steps[0])}"
    print(f"{name}: {seconds:.1f} s in all; {summary}; {after['requests'] - before['requests']} requests, {(after['bytes'] - before['bytes']) / 1e6:,.0f} MB, "
          f"at most {after['most']} at once", flush=True)
    for line in said:
        if "data loading" in line:
            print("      " + line.strip(), flush=True)


def main():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    root = pathlib.Path(tempfile.mkdtemp(prefix="waits-"))
    server = subprocess.Popen([sys.executable, HERE / "slow_store.py", root / "buckets", str(port), "--delay", str(options.delay)])
    try:
        write_shards(root / "buckets/data/set")
        for _ in range(100):
            try:
                stats(port)
                break
            except OSError:
                time.sleep(0.1)
        environment = dict(os.environ, AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}", AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b", AWS_REGION="us-east-1",
                           XDG_CACHE_HOME=str(root / "cache"), XDG_RUNTIME_DIR=str(root))
        blocks = f"dataset.shuffle_block={options.block}"
        runs = {"local": (f"{root}/buckets/data/set/*.tar", [blocks]), "store": ("s3://data/set/*.tar", [blocks]), "again": ("s3://data/set/*.tar", [blocks]),
                "full": ("s3://data/set/*.tar", [])}
        for name, (path, sets) in runs.items():
            if options.only and name not in options.only.split(","):
                continue
            if name != "again":
                shutil.rmtree(root / "cache", ignore_errors=True)
            train(name, path, root, environment, port, sets)
    finally:
        server.kill()
        shutil.rmtree(root, ignore_errors=True)


main()
