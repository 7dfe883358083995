#!/usr/bin/env python3
"""data_scale.py TRAINCTL [CASE...] [--samples N]: what a data set costs as it grows, and what odd samples cost. Cases: tar, workers,
broken; all if none is named. Prints a table each; docs/performance.md has the figures."""

import argparse
import json
import pathlib
import random
import struct
import subprocess
import tempfile
import time
import zlib


def tar_header(name, size):
    block = bytearray(512)
    block[0:len(name)] = name.encode()
    block[100:108], block[108:116], block[116:124] = b"0000644\0", b"0000000\0", b"0000000\0"
    block[124:136], block[136:148] = b"%011o\0" % size, b"00000000000\0"
    block[148:156], block[156:157], block[257:265] = b" " * 8, b"0", b"ustar\00000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def write_tar(path, files):
    """files: (name, bytes)."""
    with open(path, "wb") as out:
        for name, data in files:
            out.write(tar_header(name, len(data)) + data + bytes(-len(data) % 512))
        out.write(bytes(1024))


def png(side, seed):
    values = random.Random(seed)
    rows = b"".join(b"\0" + values.randbytes(3 * side) for _ in range(side))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b""))


class Process:
    """A command, with the largest private memory (RssAnon) of it and its children by time."""

    def __init__(self, command):
        self.start = time.monotonic()
        self.memory = []
        process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        while process.poll() is None:
            self.memory.append((time.monotonic() - self.start, self.largest(process.pid)))
            time.sleep(0.05)
        self.seconds = time.monotonic() - self.start
        self.out = process.communicate()[0]
        if process.returncode:
            raise SystemExit(f"{command}: exit {process.returncode}\n{self.out}")

    @staticmethod
    def largest(pid):
        try:
            children = [c for task in pathlib.Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()]
            lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            return 0
        own = next((int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)
        return max([own] + [Process.largest(int(child)) for child in children])

    def mib(self, share):
        """The largest in that share of the time."""
        return max((m for t, m in self.memory if share[0] <= t / self.seconds <= share[1]), default=0) / 1024


def bench(trainctl, job, seconds, *fields, workers=1):
    run = Process([trainctl, "bench", "data", job, *fields, "--workers", workers, "--seconds", seconds, "--json"])
    return json.loads(run.out)["rows"][-1]["samples_per_second"], run


TEXT = """dataset: {type: tar, path: "%s", fields: {text: txt}, transforms: [{tokenize_bytes: 16}], batch: 256, cache: none}
network: [{name: e, type: embedding, vocab: 256, units: 4, inputs: [text]}]
train: {epochs: 1}
launch: {ranks: 1}
"""


def tar(trainctl, folder, args):
    print(f"tar shards: 1 rank, batch 256, samples of 16 bytes; MiB are private memory of the largest process")
    for samples in sorted({args.samples // 10, args.samples}):
        for i in range(4):
            at = range(i * samples // 4, (i + 1) * samples // 4)
            write_tar(folder / f"s{i}.tar", ((f"{n:08}.txt", b"%016d" % n) for n in at))
        (folder / "tar.yaml").write_text(TEXT % (folder / "s*.tar"))
        for indexed in [False, True]:
            if indexed:
                subprocess.run([trainctl, "data", "index", *sorted(folder.glob("s?.tar"))], check=True, stdout=subprocess.DEVNULL)
            check = Process([trainctl, "check", folder / "tar.yaml"])
            run = Process([trainctl, "run", folder / "tar.yaml", f"launch.log_dir={folder}/log"])
            print(f"  {samples:9,} samples, {'with' if indexed else 'no'} index: check {check.seconds:5.2f} s; an epoch {run.seconds:6.1f} s, "
                  f"{run.mib((0.2, 0.4)):6.1f} MiB in its first half, {run.mib((0.6, 1.0)):6.1f} in its last", flush=True)
        for file in folder.glob("s?.tar*"):
            file.unlink()


def workers(trainctl, folder, args):
    photos = folder / "photos"
    for i in range(64):
        (photos / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        (photos / "ab"[i % 2] / f"{i}.png").write_bytes(png(512, i))
    job = folder / "photos.yaml"
    job.write_text(f"""dataset:
  type: image_folder
  path: {photos}
  transforms: [{{random_resized_crop: [224, 224]}}, horizontal_flip, to_float, hwc2chw]
  batch: 16
network: [{{type: global_avg_pool}}, {{type: flatten}}, {{type: dense, units: 2}}]
loss: softmax_cross_entropy
train: {{epochs: 8}}
launch: {{ranks: 1, log_dir: {folder}/log_photos}}
""")
    print("memory by workers: PNGs of 512 x 512 to 224 x 224, batch 16")
    for count in [1, 16]:
        run = Process([trainctl, "run", job, f"dataset.workers={count}", "dataset.prefetch=2"])
        print(f"  {count:2} workers: {run.mib((0, 1)):6.1f} MiB", flush=True)


def broken(trainctl, folder, args):
    for name, every in [("whole", 0), ("broken", 100)]:
        write_tar(folder / f"{name}.tar", ((f"{n:06}.png", png(8, n)[:None if not every or n % every else 60]) for n in range(10000)))
        (folder / f"{name}.yaml").write_text(
            f"dataset: {{type: tar, path: {folder}/{name}.tar, fields: {{image: png}}, transforms: [{{resize: {{size: [8, 8], method: area}}}}, to_float], batch: 100, "
            f"on_error: {'skip' if every else 'stop'}}}\nnetwork: [{{type: flatten, inputs: [image]}}]\ntrain: {{epochs: 1}}\n")
    print("1 % broken files, PNGs of 8 x 8, on_error: skip, beside none; 1 worker, in turn")
    rates = {"whole": [], "broken": []}
    for _ in range(5):
        for name, of in rates.items():
            rate, run = bench(trainctl, folder / f"{name}.yaml", args.seconds)
            of.append((rate, run))
    for name, of in rates.items():
        rate = sorted(rate for rate, _ in of)[len(of) // 2]
        reads = sum(rate * args.seconds for rate, _ in of)
        print(f"  {name:6}: {rate:8.0f} samples/s, {reads:9,.0f} reads, {of[-1][1].mib((0.1, 0.4)):.1f} MiB early, {of[-1][1].mib((0.6, 1)):.1f} late")


CASES = {"tar": tar, "workers": workers, "broken": broken}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--samples", type=int, default=1_000_000, help="of tar")
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement of broken")
    args = parser.parse_args()
    for case in args.cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            CASES[case](args.trainctl, pathlib.Path(folder), args)


main()
