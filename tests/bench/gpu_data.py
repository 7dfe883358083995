#!/usr/bin/env python3
"""gpu_data.py TRAINCTL BENCH_IMAGES [--rounds 2] [--steps 40] [--only photos|tokens] [--device cuda]: what the GPU waits for data.

photos: a step of ResNet-50 (templates/resnet50.yaml) on data that it keeps on the GPU; on made-up photographs of 500 x 375 (JPEG, quality 85),
decoded, cropped, flipped and normalized by all cores but one; and on its own data again while processes of `trainctl bench data` read those photos on all
cores but one, which is what full load of the workers costs a step that waits for nothing.
tokens: a step of GPT-2 124M on data that it keeps, and on a file of tokens that was dropped from the system's memory before the run.

Prints medians over the rounds of each run's median step without its first third, and the ratios of the single rounds. The difference of a step on
files and one on kept data is what the GPU waits. --device cpu is for a try of the script, with --small."""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import images
import networks

ROOT = pathlib.Path(__file__).resolve().parents[2]
CORES = images.CORES
PHOTOS = """dataset:
  type: image_folder
  path: photos
  transforms:
    - {random_resized_crop: [224, 224]}
    - horizontal_flip
    - {normalize: {mean: [123.7, 116.3, 103.5], std: [58.4, 57.1, 57.4]}}
    - hwc2chw
  batch: 256
"""
TOKENS = """dataset: {type: tokens, path: tokens.bin, length: "${length}", batch: 16}
"""


def with_dataset(template, dataset):
    """The template's job with another data set."""
    text, count = re.subn(r"^dataset:\n(?:[ #].*\n|\n(?=  ))+", dataset, (ROOT / template).read_text(), flags=re.M)
    assert count == 1, f"{template} has one block dataset:"
    return text


def drop_from_memory(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Bench:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.runs = 0
        self.sets = [f"launch.device={args.device}", "launch.ranks=1", "parallel.mode=stand_alone", "parallel.recompute=[]", f"train.steps={args.steps}",
                     "train.log_every=1", *args.set]

    def step(self, job, *sets):
        """The median step in ms, and what the data set's workers settled on."""
        self.runs += 1
        log = self.folder / f"log{self.runs}"
        out = subprocess.run([self.args.trainctl, "run", job, *self.sets, *sets, f"launch.log_dir={log}"], capture_output=True, text=True)
        if out.returncode:
            sys.exit(f"{job}: exit {out.returncode}\n{out.stdout[-3000:]}{out.stderr[-3000:]}")
        rows = [json.loads(line) for line in open(log / "1" / "metrics.jsonl")]
        times = [row["seconds"] * 1e3 for row in rows if "step" in row and "seconds" in row]
        settled = re.findall(r"data loading: settled on (.*?); to keep", (log / "1" / "rank.0" / "stdout").read_text())
        return statistics.median(times[len(times) // 3:]), settled[-1] if settled else ""

    def compare(self, kinds, per_step, unit):
        """`kinds`: name -> measure. Ratios are to the first of the same round."""
        times, settled = {name: [] for name in kinds}, {}
        for turn in range(self.args.rounds):
            for name, measure in kinds.items():
                ms, settled[name] = measure()
                times[name].append(ms)
            print(f"round {turn + 1}: " + "; ".join(f"{name} {of[-1]:.1f} ms" for name, of in times.items()), flush=True)
        first = next(iter(times.values()))
        for name, of in times.items():
            ratios = [a / b for a, b in zip(of, first)]
            ms = statistics.median(of)
            print(f"{name:<46} {networks.spread(of, 'ms', 2):34s} {per_step / ms * 1e3:9,.0f} {unit}/s   {statistics.median(ratios):.3f}x "
                  f"[{min(ratios):.3f} .. {max(ratios):.3f}]   {settled[name]}", flush=True)


def full_load(trainctl, job, workers):
    """Processes that read photos for ever, one a core: `bench data` with one worker each."""
    return [subprocess.Popen([trainctl, "bench", "data", job, "--workers", "1", "--seconds", "3600"], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL) for _ in range(workers)]


def photos(bench, args):
    for i, file in enumerate(made := images.make_photos(args.bench_images, bench.folder)):
        for copy in range(args.copies):
            os.link(file, bench.folder / "photos" / ("a" if i % 2 else "b") / f"more{copy:03}_{i:02}.jpg")
    assert made
    job = bench.folder / "resnet50_photos.yaml"
    job.write_text(with_dataset("templates/resnet50.yaml", PHOTOS))
    own = ROOT / "templates/resnet50.yaml"
    batch = 256 if not args.small else 8
    sets = [f"dataset.batch={batch}"]

    def loaded():
        load = full_load(args.trainctl, bench.folder / "job.yaml", max(CORES - 1, 1))
        try:
            time.sleep(1)
            return bench.step(own, *sets)
        finally:
            for process in load:
                process.kill()
                process.wait()

    print(f"ResNet-50, batch {batch}, {CORES} cores, {args.steps} steps per run")
    bench.compare({"data kept on the device": lambda: bench.step(own, *sets), "photos": lambda: bench.step(job, *sets),
                   f"kept data, {max(CORES - 1, 1)} cores busy with photos": loaded}, batch, "images")


def tokens(bench, args):
    file = bench.folder / "tokens.bin"
    with open(file, "wb") as out:
        for _ in range(1 if args.small else 16):
            out.write(networks.tokens(1 << 24))
    job = bench.folder / "gpt2_tokens.yaml"
    job.write_text(with_dataset("templates/gpt2.yaml", TOKENS))
    own = ROOT / "templates/gpt2.yaml"
    batch = 16 if not args.small else 2
    sets = [f"dataset.batch={batch}", *(["vars.layers=2", "vars.length=128"] if args.small else [])]

    def cold():
        drop_from_memory(file)
        return bench.step(job, *sets)

    print(f"GPT-2, batch {batch}, a file of {file.stat().st_size >> 20} MiB that is not in memory, {args.steps} steps per run")
    length = 1024 if not args.small else 128
    bench.compare({"data kept on the device": lambda: bench.step(own, *sets), "tokens from the disk": cold}, batch * length, "tokens")


CASES = {"photos": photos, "tokens": tokens}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl", type=os.path.abspath)
    parser.add_argument("bench_images", type=os.path.abspath)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--copies", type=int, default=40, help="of each photo, by more names")
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--set", action="append", default=[], help="a field of the jobs")
    args = parser.parse_args()
    for name, case in CASES.items():
        if args.only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                case(Bench(args, pathlib.Path(folder)), args)


if __name__ == "__main__":
    main()
