#!/usr/bin/env python3
"""data_faults.py --trainctl TRAINCTL --shim LIBREAD_FAULTS: runs whose files are cut off, lie, vanish, cannot be read, or hang. Each must end
in time, with exit code 3 or 5 and a message that names the file and what is wrong with it, and leave no process and no shared memory."""

import argparse
import base64
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time
import zlib

JPEG = base64.b64decode("/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqm"
                        "x5moq6T/wAALCAAIAAgBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAf/EABcQAAMBAAAAAAAAAAAAAAAAAAADBWL/2gAIAQEAAD8AFwsH/9k=")
LIMIT = 60  # seconds for any of them: none of them may hang


def png(width, height, rows):
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(bytes((width + 1) * rows))) + chunk(b"IEND", b""))


def tar(members):
    data = b""
    for name, body, claimed in members:
        block = bytearray(512)
        block[0:len(name)] = name.encode()
        block[100:108], block[124:136] = b"0000644\0", b"%011o\0" % claimed
        block[148:156], block[156:157], block[257:265] = b" " * 8, b"0", b"ustar\00000"
        block[148:156] = b"%06o\0 " % sum(block)
        data += bytes(block) + body + bytes(-len(body) % 512)
    return data + bytes(1024)


class Scene:
    def __init__(self, options, name):
        self.options, self.name = options, name
        self.before = set(os.listdir("/dev/shm"))
        self.folder = tempfile.TemporaryDirectory(prefix="trainctl-data-faults-")
        self.path = pathlib.Path(self.folder.name)
        self.log = self.path / "log"

    def photos(self, count=8):
        for i in range(count):
            to = self.path / "photos" / "ab"[i % 2] / f"{i}.jpg"
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(JPEG)

    def images(self, dataset="", train="epochs: 1"):
        return f"""dataset: {{type: image_folder, path: photos, channels: 1, transforms: [{{resize: {{size: [8, 8], method: area}}}}, to_float], batch: 4{dataset}}}
network: [{{type: flatten}}, {{type: dense, units: 2}}]
loss: softmax_cross_entropy
train: {{{train}}}
"""

    def start(self, job, timeout, env=None):
        (self.path / "job.yaml").write_text(job + f"launch: {{ranks: 2, timeout: {timeout}s, grace: 1s, log_dir: {self.log}}}\n"
                                            "parallel: {mode: data_parallel}\n")
        return subprocess.Popen([self.options.trainctl, "run", self.path / "job.yaml"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, env=os.environ | (env or {}), cwd=self.path)

    def expect(self, process, words, codes=(2, 3, 5)):
        start = time.monotonic()
        try:
            out = process.communicate(timeout=LIMIT)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            raise SystemExit(f"{self.name}: still runs after {LIMIT} s")
        missing = [word for word in words if word not in out]
        if missing or process.returncode not in codes:
            raise SystemExit(f"{self.name}: exit {process.returncode}, the message lacks {missing}\n{out}")
        left = subprocess.run(["pgrep", "-f", str(self.path)], capture_output=True, text=True).stdout.split()
        shared = set(os.listdir("/dev/shm")) - self.before
        if left or any("trainctl" in name for name in shared):
            raise SystemExit(f"{self.name}: left processes {left}, shared memory {shared}")
        line = next(line for line in out.splitlines() if words[0] in line)
        print(f"{self.name}: exit {process.returncode} in {time.monotonic() - start:.1f} s: {line.strip()[:150]}", flush=True)
        self.folder.cleanup()


def truncated_jpeg(options):
    scene = Scene(options, "truncated JPEG")
    scene.photos()
    (scene.path / "photos/b/3.jpg").write_bytes(JPEG[:-20])
    scene.expect(scene.start(scene.images(), 20), ["photos/b/3.jpg", "JPEG"])


def png_bomb(options):
    scene = Scene(options, "PNG that claims 10^9 pixels")
    scene.photos()
    (scene.path / "photos/b/9.png").write_bytes(png(50_000, 20_000, 1))
    scene.expect(scene.start(scene.images(), 20), ["photos/b/9.png", "the most is"])


def lying_tar(options):
    scene = Scene(options, "tar with a size that lies")
    (scene.path / "s.tar").write_bytes(tar([("0.jpg", JPEG, len(JPEG)), ("0.cls", b"1", 1), ("1.jpg", JPEG, 1 << 30), ("1.cls", b"0", 1)]))
    job = scene.images().replace("type: image_folder, path: photos", "type: tar, path: s.tar")
    scene.expect(scene.start(job, 20), ["s.tar: byte 2,048", "1,073,741,824 bytes"])


def wrong_column(options):
    scene = Scene(options, "csv with a wrong column in row 900,001")
    row = "1,0.5\n"
    (scene.path / "t.csv").write_text("label,x\n" + row * 899_999 + "1,0.5,7\n" + row * 10)
    job = """dataset: {type: csv, path: t.csv, fields: {data: [x], label: label}, batch: 10000, shuffle: false, drop_last: false}
network: [{type: dense, units: 2}]
loss: softmax_cross_entropy
train: {epochs: 1, log_every: 100}
"""
    scene.expect(scene.start(job, 20), ["t.csv:900001", "3"])


def vanishing(options):
    scene = Scene(options, "file that vanishes in an epoch")
    scene.photos(64)
    process = scene.start(scene.images(", cache: none", "epochs: 100000000, log_every: 1000"), 20)
    metrics = scene.log / "1" / "metrics.jsonl"
    end = time.monotonic() + LIMIT
    while not (metrics.exists() and metrics.stat().st_size > 0) and time.monotonic() < end:
        time.sleep(0.02)
    (scene.path / "photos/b/17.jpg").unlink()
    scene.expect(process, ["photos/b/17.jpg", "No such file"])


def read_error(options):
    scene = Scene(options, "EIO")
    scene.photos()
    env = {"LD_PRELOAD": options.shim, "READ_FAULT_PATH": "photos/a/4.jpg", "READ_FAULT": "errno"}
    scene.expect(scene.start(scene.images(), 20, env), ["photos/a/4.jpg", "Input/output error"])


def hanging_read(options):
    scene = Scene(options, "read that hangs")
    scene.photos()
    env = {"LD_PRELOAD": options.shim, "READ_FAULT_PATH": "photos/a/4.jpg", "READ_FAULT": "hang"}
    scene.expect(scene.start(scene.images(), 2, env), ["photos/a/4.jpg", "launch.timeout"])


def pipe(options):
    scene = Scene(options, "pipe in place of a photo")
    scene.photos()
    (scene.path / "photos/a/6.jpg").unlink()
    os.mkfifo(scene.path / "photos/a/6.jpg")
    scene.expect(scene.start(scene.images(), 2), ["photos/a/6.jpg", "is no file"])


CASES = [truncated_jpeg, png_bomb, lying_tar, wrong_column, vanishing, read_error, hanging_read, pipe]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainctl", required=True, type=os.path.abspath)
    parser.add_argument("--shim", required=True, type=os.path.abspath)
    parser.add_argument("--only", help="the name of one case's function")
    options = parser.parse_args()
    for case in CASES:
        if options.only in (None, case.__name__):
            case(options)


main()
