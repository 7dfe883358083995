"""Samples of MDS and of tar shards: trainctl against the formats' own libraries with a DataLoader of PyTorch, and shards in a distant store.

    formats.py TRAINCTL [--rounds 5] [--samples 20000] [--only mds|tar|store] [--seconds 1]

mds, tar: both read the same shards of [64, 64, 3] u8 arrays with a label, and deliver batches of 64 in f32 in random order, with two workers.
mds is read by StreamingDataset, tar by webdataset with a shuffle buffer of 1,000. In each round both take turns; prints the median and the
range of the ratios of the rounds. Opening the files is not counted.
store: a job trains on tar shards with JPEG files of photos in an S3 server whose responses take 200 ms, and of whose requests 5 % fail, from an empty cache, and on the same shards on
the disk, in turns. Prints the time of all steps relative to that with the disk, and, where autotune measures it (a rank with at least 3 cores), the share
of its time in which training waited for data; the first steps, which wait for the first blocks, are counted too. Needs streaming, webdataset, torch; moto[server,s3] and pillow for store. A part whose package is missing is skipped.
"""
import argparse
import importlib
import importlib.util
import io
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile

SHAPE, BATCH, WORKERS = (64, 64, 3), 64, 2

LOADERS = {"mds": """
import sys, time, torch
from streaming import StreamingDataset
folder, batch, workers, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
def collate(rows):
    return torch.stack([torch.from_numpy(row["data"].copy()) for row in rows]).float(), torch.tensor([int(row["label"]) for row in rows])
data = StreamingDataset(local=folder, shuffle=True, batch_size=batch)
loader = torch.utils.data.DataLoader(data, batch_size=batch, num_workers=workers, collate_fn=collate, persistent_workers=True)
""", "tar": """
import sys, time, io, glob, numpy, torch, webdataset
folder, batch, workers, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
def collate(rows):
    return torch.stack([torch.from_numpy(row[0]) for row in rows]).float(), torch.tensor([row[1] for row in rows])
data = (webdataset.WebDataset(sorted(glob.glob(folder + "/*.tar")), shardshuffle=100, empty_check=False).shuffle(1000).decode().to_tuple("npy", "cls").batched(batch, collation_fn=collate))
loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers, persistent_workers=True)
"""}
COUNT = """
samples = 0
start = None
while start is None or time.perf_counter() - start < seconds:
    for values, labels in loader:
        if start is None:
            start = time.perf_counter()
            continue
        samples += len(values)
print("RESULT", samples / (time.perf_counter() - start))
"""
NETWORK = ("network: [{type: global_avg_pool}, {type: flatten}, {type: dense, units: 2}]\nloss: softmax_cross_entropy\nlaunch: {device: cpu, ranks: 1}\n")
DATASETS = {"mds": "{type: table, path: mds, fields: {data: data, label: label}, ", "tar": "{type: tar, path: tar/*.tar, fields: {data: npy, label: cls}, "}


def write_shards(program, folder, samples):
    import numpy
    draw = numpy.random.default_rng(1)
    numpy.savez(folder / "all.npz", data=draw.integers(0, 256, (samples, *SHAPE), numpy.uint8), label=draw.integers(0, 2, samples))
    subprocess.run([program, "data", "convert", "all.npz", "-o", "mds/index.json"], cwd=folder, check=True, capture_output=True)
    (folder / "tar").mkdir()
    arrays = numpy.load(folder / "all.npz")
    data, label = arrays["data"], arrays["label"]
    for shard in range(8):
        with tarfile.open(folder / f"tar/{shard}.tar", "w") as tar:
            for i in range(shard, samples, 8):
                buffer = io.BytesIO()
                numpy.save(buffer, data[i])
                for suffix, content in [("npy", buffer.getvalue()), ("cls", str(label[i]).encode())]:
                    info = tarfile.TarInfo(f"{i:06}.{suffix}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    subprocess.run([program, "data", "index", *map(str, sorted((folder / "tar").glob("*.tar")))], check=True, capture_output=True)


def run_library(kind, folder, seconds):
    out = subprocess.run([sys.executable, "-c", LOADERS[kind] + COUNT, str(folder / kind), str(BATCH), str(WORKERS), str(seconds)],
                         env=dict(os.environ, OMP_NUM_THREADS="1"), capture_output=True, text=True, timeout=600)
    found = re.search(r"RESULT ([\d.e+]+)", out.stdout)
    if not found:
        raise SystemExit(out.stdout + out.stderr)
    return float(found[1])


def run_trainctl(program, kind, folder, seconds):
    (folder / f"{kind}.yaml").write_text(f"dataset: {DATASETS[kind]}batch: {BATCH}, transforms: [to_float, hwc2chw], workers: {WORKERS}, cache: none}}\n" + NETWORK)
    bench = subprocess.run([program, "bench", "data", f"{kind}.yaml", "--seconds", str(seconds), "--json"], cwd=folder, capture_output=True, text=True)
    return max(row["samples_per_second"] for row in json.loads(bench.stdout)["rows"] if row["workers"] <= WORKERS)


def compare(program, kind, folder, options):
    ratios, ours, theirs = [], [], []
    for _ in range(options.rounds):
        ours.append(run_trainctl(program, kind, folder, options.seconds))
        theirs.append(run_library(kind, folder, options.seconds))
        ratios.append(ours[-1] / theirs[-1])
    print(f"{kind}, {options.rounds} rounds: median {statistics.median(ours):,.0f} against {statistics.median(theirs):,.0f} samples/s; ratios of the rounds: "
          f"median {statistics.median(ratios):.2f} [{min(ratios):.2f} .. {max(ratios):.2f}]", flush=True)


def train(program, folder, job, environment):
    done = subprocess.run([program, "run", job, f"launch.log_dir={folder}/log_{job}"], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    rows = map(json.loads, next((folder / f"log_{job}").rglob("metrics.jsonl")).read_text().splitlines())
    seconds = [row["seconds"] for row in rows if "run_step" in row and "loss" in row]
    waits = re.findall(r"training waited for data ([\d.]+) %", done.stdout + "".join(p.read_text(errors="replace") for p in (folder / f"log_{job}").rglob("stdout")))
    return sum(seconds), f"waited {waits[-1]} %" if waits else "has no autotune, which counts waits"


def distant_store(program, folder, options):
    stores = pathlib.Path(__file__).resolve().parents[1] / "stores"
    sys.path.insert(0, str(stores))
    import object_stores_test as stores_test
    from PIL import Image
    draw = random.Random(1)
    (folder / "photos").mkdir()
    small = [bytes(draw.randrange(256) for _ in range(3 * 30 * 40)) for _ in range(64)]
    for shard in range(16):
        with tarfile.open(folder / f"photos/{shard:02}.tar", "w") as tar:
            for i in range(128):
                buffer = io.BytesIO()
                Image.frombytes("RGB", (40, 30), small[(shard * 7 + i) % 64]).resize((500, 375), Image.BICUBIC).save(buffer, "JPEG", quality=85)
                for suffix, content in [("jpg", buffer.getvalue()), ("cls", str(i % 2).encode())]:
                    info = tarfile.TarInfo(f"{shard:02}{i:04}.{suffix}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    subprocess.run([program, "data", "index", *map(str, sorted((folder / "photos").glob("*.tar")))], check=True, capture_output=True)
    port = stores_test.free_port()
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              env=dict(os.environ, INITIAL_NO_AUTH_ACTION_COUNT="3"))
    try:
        stores_test.wait_for(port)
        keys = stores_test.make_keys(port)
        store = stores_test.client(port, keys=keys)
        store.create_bucket(Bucket="data")
        for path in (folder / "photos").iterdir():
            store.put_object(Bucket="data", Key="photos/" + path.name, Body=path.read_bytes())
        stores_test.DELAY = 0.2
        proxy = stores_test.Proxy(port, folder)
        for where in ["photos/*.tar", "s3://data/photos/*.tar"]:
            job = ("disk" if where.startswith("photos") else "store") + ".yaml"
            (folder / job).write_text(
                f"dataset:\n  type: tar\n  path: {where}\n  batch: 32\n  cache: none\n  transforms: [{{random_resized_crop: [224, 224]}}, horizontal_flip, hwc2chw]\n"
                "network:\n  - {type: conv2d, channels: 24, kernel: 5, stride: 2}\n  - {type: relu}\n  - {type: conv2d, channels: 48, kernel: 5, stride: 2}\n  - {type: relu}\n"
                "  - {type: global_avg_pool}\n  - {type: flatten}\n  - {type: dense, units: 2}\nloss: softmax_cross_entropy\noptimizer: {type: sgd, learning_rate: 0.001}\n"
                f"train: {{steps: {options.steps}, log_every: 1}}\nlaunch: {{device: cpu, ranks: 1}}\n")
        ratios = []
        for round_number in range(options.rounds):
            environment = stores_test.Scene(program, folder, proxy, keys).environment
            environment["XDG_CACHE_HOME"] = str(folder / f"cache{round_number}")
            environment["OMP_NUM_THREADS"] = "1"
            disk, _ = train(program, folder, "disk.yaml", environment)
            distant, waits = train(program, folder, "store.yaml", environment)
            subprocess.run(["rm", "-rf", str(folder / "log_disk.yaml"), str(folder / "log_store.yaml")], check=True)
            ratios.append(distant / disk)
            print(f"round {round_number + 1}: all steps take {distant:.1f} s with the store ({waits}), {disk:.1f} s with the disk, {proxy.requests} requests", flush=True)
        print(f"store, {options.rounds} rounds: time of all steps relative to the disk: median {statistics.median(ratios):.3f} [{min(ratios):.3f} .. {max(ratios):.3f}]")
    finally:
        server.kill()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=20000)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--steps", type=int, default=400, help="of the job that reads from the store")
    parser.add_argument("--only", choices=["mds", "tar", "store"], nargs="+", default=["mds", "tar", "store"])
    options = parser.parse_args()
    program = str(pathlib.Path(options.trainctl).resolve())
    os.sched_setaffinity(0, set(list(os.sched_getaffinity(0))[:2]))
    needed = {"mds": ["torch", "streaming", "numpy"], "tar": ["torch", "webdataset", "numpy"], "store": ["moto", "boto3", "PIL"]}
    chosen = []
    for part in options.only:
        missing = [name for name in needed[part] if importlib.util.find_spec(name) is None]
        if missing:
            print(f"SKIPPED: {part}: {sys.executable} has no {', '.join(missing)}")
        else:
            chosen.append(part)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if {"mds", "tar"} & set(chosen):
            write_shards(program, folder, options.samples)
        for part in chosen:
            distant_store(program, folder, options) if part == "store" else compare(program, part, folder, options)
    sys.exit(0 if chosen else 77)


if __name__ == "__main__":
    main()
