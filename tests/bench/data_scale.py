#!/usr/bin/env python3
"""data_scale.py TRAINCTL [CASE...] [--samples N]: what a data set costs as it grows, and what odd samples cost. Cases: tar, workers,
broken, slow, resume, cold, blocks; all if none is named. Prints a table each; tests/bench/NOTEBOOK.md has the figures."""

import argparse
import json
import os
import pathlib
import random
import resource
import struct
import subprocess
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor


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
            f"cache: none, on_error: {'skip' if every else 'stop'}}}\nnetwork: [{{type: flatten, inputs: [image]}}]\ntrain: {{epochs: 1}}\n")
    print("1 % broken files, PNGs of 8 x 8, on_error: skip, compared with no broken files; 1 worker, in turn")
    rates = {"whole": [], "broken": []}
    a_second = {"whole": [], "broken": []}  # of a core: what other work takes of the machine does not count
    for turn in range(10):
        for name, of in sorted(rates.items(), reverse=turn % 2 == 1):
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            rate, run = bench(trainctl, folder / f"{name}.yaml", args.seconds)
            of.append((rate, run))
            a_second[name].append(rate * args.seconds / (resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before))
    for name, of in rates.items():
        rate = sorted(rate for rate, _ in of)[len(of) // 2]
        reads = sum(rate * args.seconds for rate, _ in of)
        print(f"  {name:6}: {rate:8.0f} samples/s, {reads:9,.0f} reads, {of[-1][1].mib((0.1, 0.4)):.1f} MiB early, {of[-1][1].mib((0.6, 1)):.1f} late")
    for what, of in [("time", {name: [rate for rate, _ in of] for name, of in rates.items()}), ("CPU time", a_second)]:
        ratios = sorted(whole / broken for whole, broken in zip(of["whole"], of["broken"]))
        print(f"  {what} with broken ones: {(ratios[4] + ratios[5]) / 2:.3f}x [{ratios[0]:.3f} .. {ratios[-1]:.3f}]", flush=True)


def slow(trainctl, folder, args):
    """Photos of 32 x 32, and as many with one of 320 x 320 among them: 100 times the pixels."""
    for name in ["even", "slow"]:
        for i in range(20_000):
            to = folder / name / "ab"[i % 2] / f"{i:05}.png"
            to.parent.mkdir(parents=True, exist_ok=True)
            if i < 50 or (name == "slow" and i == 7777):
                to.write_bytes(png(320 if i == 7777 else 32, i))
            else:
                to.hardlink_to(folder / name / "ab"[i % 2] / f"{i % 50:05}.png")
        (folder / f"{name}.yaml").write_text(
            f"dataset: {{type: image_folder, path: {folder}/{name}, transforms: [{{resize: {{size: [8, 8], method: area}}}}, to_float], batch: 100, cache: none}}\n"
            f"network: [{{type: flatten}}, {{type: dense, units: 2}}]\nloss: softmax_cross_entropy\ntrain: {{epochs: 1, log_every: 100}}\n"
            f"launch: {{ranks: 1, log_dir: {folder}/log_slow}}\n")
    seconds = {"even": [], "slow": []}
    for _ in range(5):
        for name, of in seconds.items():
            of.append(Process([trainctl, "run", folder / f"{name}.yaml", "dataset.workers=2", "dataset.prefetch=4"]).seconds)
    ratios = sorted(b / a for a, b in zip(seconds["even"], seconds["slow"]))
    print(f"one of 20,000 samples 100 times slower, 2 workers, an epoch: {sorted(seconds['slow'])[2]:.2f} s, without it {sorted(seconds['even'])[2]:.2f} s, "
          f"{ratios[2]:.3f}x [{ratios[0]:.3f} .. {ratios[-1]:.3f}]", flush=True)


def resume(trainctl, folder, args):
    """10^9 samples of 10^10 are trained on, and the run resumes from its checkpoint."""
    job, once = folder / "large.yaml", folder / "once.yaml"
    job.write_text(f"""dataset: {{type: random, shape: [1], label_shape: [1], label_dtype: f32, samples: 10000000000, batch: 1000000, workers: 1}}
network: [{{type: dense, units: 1}}]
loss: mse
train: {{steps: 1000, log_every: 500, checkpoint: {{every_steps: 1000}}}}
launch: {{ranks: 1, log_dir: {folder}/log_large}}
""")
    once.write_text(job.read_text().replace("steps: 1000, log_every: 500, checkpoint: {every_steps: 1000}", "steps: 1").replace("log_large", "log_once"))
    first = [Process([trainctl, "run", once]).seconds for _ in range(3)]
    whole = Process([trainctl, "run", job])
    again = []
    for _ in range(3):
        run = Process([trainctl, "run", job, "train.steps=1001", "--resume"])
        again.append(run.seconds)
    print(f"10^10 samples: a run of one step takes {sorted(first)[1]:.2f} s, one that resumes at sample 10^9 {sorted(again)[1]:.2f} s "
          f"(10^9 samples took {whole.seconds:.0f} s)", flush=True)


def drop_from_memory(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cold(trainctl, folder, args):
    """An epoch over a file of tokens that is not in memory, compared with reads of the same bytes: in order, and window by window."""
    file, length, batch = folder / "tokens.bin", 1024, 256
    windows = args.mib * (1 << 20) // (2 * length)
    with open(file, "wb") as out:
        for _ in range(args.mib):
            out.write(random.randbytes(1 << 20))
    job = folder / "cold.yaml"
    job.write_text(f"""dataset: {{type: tokens, path: {file}, length: {length}, batch: {batch}}}
network: [{{name: e, type: embedding, vocab: 65536, units: 1, inputs: [data]}}]
train: {{epochs: 1, log_every: 1000}}
launch: {{ranks: 1, log_dir: {folder}/log_cold}}
""")

    def in_order():
        with open(file, "rb", buffering=0) as data:
            while data.read(1 << 20):
                pass

    def by_window():
        order = list(range(windows))
        random.Random(1).shuffle(order)
        with open(file, "rb", buffering=0) as data, ThreadPoolExecutor(64) as pool:
            list(pool.map(lambda part: [os.pread(data.fileno(), 2 * length + 2, 2 * length * at) for at in part],
                          [order[i::64] for i in range(64)]))

    def timed(run):
        drop_from_memory(file)
        start = time.monotonic()
        run()
        return time.monotonic() - start

    def trained(*fields):
        Process([trainctl, "run", job, *fields])

    def warmed(run):
        in_order()
        start = time.monotonic()
        run()
        return time.monotonic() - start

    print(f"{args.mib} MiB of tokens, windows of {length}, an epoch of a small network; medians of 3", flush=True)
    for name, own, peer in [("in order", lambda: trained("dataset.shuffle=false"), in_order), ("shuffled", trained, by_window)]:
        rounds = [(timed(own), warmed(own), timed(peer)) for _ in range(3)]
        cold_seconds, warm_seconds, alone = (sorted(of)[1] for of in zip(*rounds))
        print(f"  {name}: {cold_seconds:.2f} s from the disk, {warm_seconds:.2f} s from memory; only reading the same from the disk {alone:.2f} s, "
              f"{args.mib / alone:.0f} MiB/s", flush=True)
    drop_from_memory(file)


def blocks(trainctl, folder, args):
    """The first tenth of an epoch over shards that are not in memory: what is read for it, of a set too large to stay in memory."""
    count = 200_000
    shards = [folder / f"s{i}.tar" for i in range(4)]
    for i, shard in enumerate(shards):
        write_tar(shard, ((f"{n:08}.txt", b"%016d" % n) for n in range(i * count // 4, (i + 1) * count // 4)))
    subprocess.run([trainctl, "data", "index", *shards], check=True, stdout=subprocess.DEVNULL)
    (folder / "blocks.yaml").write_text(TEXT % (folder / "s*.tar"))
    steps = count // 10 // 256
    used = steps * 256 * sum(shard.stat().st_size for shard in shards) / count / (1 << 20)
    print(f"the first {steps * 256:,} of {count:,} samples of 1 KiB in shards that are not in memory, {used:.0f} MiB; medians of 3", flush=True)
    for name, fields in [("shuffled", []), ("in blocks of 1000", ["dataset.shuffle_block=1000"]), ("in order", ["dataset.shuffle=false"])]:
        rounds = []
        for _ in range(3):
            for shard in shards:
                drop_from_memory(shard)
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
            run = Process([trainctl, "run", folder / "blocks.yaml", f"train.steps={steps}", f"launch.log_dir={folder}/log_blocks", *fields])
            rounds.append(((resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - before) / 2048, run.seconds))
        mib, seconds = (sorted(of)[1] for of in zip(*rounds))
        print(f"  {name}: {mib:.0f} MiB from the disk, {seconds:.2f} s", flush=True)


CASES = {"tar": tar, "workers": workers, "broken": broken, "slow": slow, "resume": resume, "cold": cold, "blocks": blocks}



def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--samples", type=int, default=1_000_000, help="of tar")
    parser.add_argument("--mib", type=int, default=256, help="of cold")
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement of broken")
    args = parser.parse_args()
    for case in args.cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            CASES[case](args.trainctl, pathlib.Path(folder), args)


main()
