#!/usr/bin/env python3
"""images.py TRAINCTL BENCH_IMAGES [--python PYTHON] [--rounds 5] [--seconds 2] [--parts]

Images per second of `trainctl bench data` on made-up photographs of 500 x 375 pixels (JPEG, quality 85), to normalized random crops of
224 x 224, on all cores; beside it, in turn in each round, libjpeg-turbo's own tjbench on the same files, one process per core (it only
decodes), and PyTorch's DataLoader with torchvision, which PYTHON has, at each number of workers. Prints medians and the ratios.
--parts: also what one core makes of each part of the work (BENCH_IMAGES)."""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

JOB = """
dataset:
  type: image_folder
  path: photos
  transforms:
    - {random_resized_crop: {size: [224, 224]}}
    - horizontal_flip
    - to_float
    - {normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}}
    - hwc2chw
  batch: 32
network:
  - {type: global_avg_pool}
  - {type: flatten}
  - {type: dense, units: 2}
loss: softmax_cross_entropy
"""
CORES = len(os.sched_getaffinity(0))


def make_photos(bench, folder):
    """48 photos, each 10 times, in two classes: names of their own, so that a set of them is not one batch."""
    subprocess.run([bench, "--write", folder / "made", "0.01"], check=True, stdout=subprocess.DEVNULL)
    made = sorted((folder / "made").glob("*.jpg"))
    for i, file in enumerate(made * 10):
        to = folder / "photos" / ("a" if i % 2 else "b") / f"{i:04}.jpg"
        to.parent.mkdir(parents=True, exist_ok=True)
        os.link(file, to)
    (folder / "job.yaml").write_text(JOB)
    return made


def ours(trainctl, folder, seconds, *fields):
    """Images per second, by number of workers."""
    out = subprocess.run([trainctl, "bench", "data", folder / "job.yaml", *fields, "--seconds", str(seconds), "--json"],
                         capture_output=True, text=True, check=True).stdout
    return {row["workers"]: row["samples_per_second"] for row in json.loads(out)["rows"]}


def tjbench_one(file, seconds):
    """Seconds per image. tjbench prints megapixels per second for one file, and writes the decoded image next to its input."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(file, folder)
        out = subprocess.run(["tjbench", copy, "-nowrite", "-quiet", "-rgb", "-benchtime", str(seconds), "-warmup", "0.05"],
                             capture_output=True, text=True, check=True).stdout
    width, height, rate = re.search(r"(\d+)\s+(\d+)\s+\S+\s+\S+\s+([\d.]+)\s*$", out.strip().splitlines()[-1]).groups()
    return int(width) * int(height) / (float(rate) * 1e6)


def tjbench(files, seconds):
    """Images per second of all cores."""
    chosen = files[:4 * CORES]
    with ThreadPoolExecutor(CORES) as pool:
        each = list(pool.map(lambda file: tjbench_one(file, seconds / 4), chosen))
    return CORES * len(each) / sum(each)


def torch(python, folder, workers, seconds, kind):
    script = pathlib.Path(__file__).with_name("images_torch.py")
    out = subprocess.run([python, script, folder / "photos", str(workers), str(seconds), kind], capture_output=True, text=True, check=True)
    return float(out.stdout)


def line(what, values, ours=None):
    """`ours`: of the same rounds. The ratio is the median of the rounds' ratios: other work changes from round to round."""
    text = f"{what:<52} {statistics.median(values):7.0f} images/s  [{min(values):.0f} .. {max(values):.0f}]"
    if ours:
        ratios = [a / b for a, b in zip(ours, values)]
        text += f"  {statistics.median(ratios):5.2f}x [{min(ratios):.2f} .. {max(ratios):.2f}]"
    print(text, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl")
    parser.add_argument("bench_images")
    parser.add_argument("--python", help="one that has torch and torchvision")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2, help="of each measurement")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--peer-workers", type=lambda text: [int(n) for n in text.split(",")], default=sorted({1, CORES, CORES + 1, 2 * CORES}),
                        help="of the DataLoader: 1, the cores, one more, and twice as many if it is left out")
    args = parser.parse_args()
    has_tjbench = shutil.which("tjbench") is not None
    if not has_tjbench:
        print("no tjbench here (libjpeg-turbo-progs)")
    if args.python and subprocess.run([args.python, "-c", "import torchvision"], stderr=subprocess.DEVNULL).returncode:
        sys.exit(f"{args.python} has no torchvision")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        made = make_photos(args.bench_images, folder)
        if args.parts:
            subprocess.run([args.bench_images, folder / "made", str(args.seconds)], check=True)
        own, mapped, peers = {}, [], {}
        for turn in range(args.rounds):
            for workers, rate in ours(args.trainctl, folder, args.seconds).items():
                own.setdefault(workers, []).append(rate)
            mapped.append(max(ours(args.trainctl, folder, args.seconds, "launch.device=cuda").values()))
            if has_tjbench:
                peers.setdefault(f"tjbench, {CORES} processes: decoding alone", []).append(tjbench(made, args.seconds))
            for kind in ["pillow", "tensor"] if args.python else []:
                for workers in args.peer_workers:
                    peers.setdefault(f"DataLoader, torchvision ({kind}), {workers} workers", []).append(
                        torch(args.python, folder, workers, args.seconds, kind))
            last = {f"{n} workers": rates[-1] for n, rates in own.items()} | {what: rates[-1] for what, rates in peers.items()}
            print(f"round {turn + 1}: " + "; ".join(f"{what} {rate:.0f}" for what, rate in last.items()), flush=True)
        print(f"{CORES} cores, {args.rounds} rounds: the median, and [least .. most]")
        for workers, rates in own.items():
            line(f"trainctl bench data, {workers} workers", rates)
        line("the same, of bytes that a GPU normalizes", mapped)
        for what, rates in peers.items():
            line(what, rates, own[max(own)])


if __name__ == "__main__":
    main()
