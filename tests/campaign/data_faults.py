#!/usr/bin/env python3
"""data_faults.py --trainctl TRAINCTL --shim LIBREAD_FAULTS: runs whose files are cut off, lie, vanish, become shorter, cannot be read, or hang:
files of a folder, a tar, a csv, arrays, tokens; on the disk, behind a shim, and on a FUSE mount. Each must end in time, with exit code 3 or 5 and a
message that names the file and what is wrong with it, and leave no process and no shared memory. Prints a line a case; those that need rights
that this host does not give say so."""

import argparse
import base64
import concurrent.futures
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib

JPEG = base64.b64decode("/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqm"
                        "x5moq6T/wAALCAAIAAgBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAf/EABcQAAMBAAAAAAAAAAAAAAAAAAADBWL/2gAIAQEAAD8AFwsH/9k=")
LIMIT = 600  # seconds after which a run hangs
# launch.timeout of runs in which a file system does not answer. The ranks of a busy machine must start within it.
TIMEOUT = 10


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

    def tokens(self, count=100_000, length=64, train="epochs: 100000000, log_every: 1000"):
        (self.path / "t.bin").write_bytes(b"\1\0" * count)
        return f"""dataset: {{type: tokens, path: t.bin, length: {length}, batch: 64}}
network: [{{type: embedding, vocab: 256, units: 4}}, {{type: dense, units: 256}}]
loss: softmax_cross_entropy
train: {{{train}}}
"""

    def write(self, job, timeout):
        (self.path / "job.yaml").write_text(job + f"launch: {{ranks: 2, timeout: {timeout}s, grace: 1s, log_dir: {self.log}}}\n"
                                            "parallel: {mode: data_parallel}\n")

    def start(self, job, timeout, env=None, through=()):
        """`through`: a command that runs the command behind it."""
        self.write(job, timeout)
        return subprocess.Popen([*through, self.options.trainctl, "run", self.path / "job.yaml"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, env=os.environ | (env or {}), cwd=self.path)

    def wait_for_steps(self, process):
        metrics = self.log / "1" / "metrics.jsonl"
        end = time.monotonic() + LIMIT
        while not (metrics.exists() and '"step"' in metrics.read_text()) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)

    def left(self):
        """The processes and the shared memory that the run has left."""
        of = subprocess.run(["pgrep", "-f", f"trainctl.*{self.path}"], capture_output=True, text=True).stdout.split()
        return of + [name for name in set(os.listdir("/dev/shm")) - self.before if "trainctl" in name]

    def expect(self, process, words, codes=(2, 3, 5), release=None, early=False):
        """`release`: unmounts, which ends what no signal ends. `early`: as soon as the message is there."""
        start = time.monotonic()
        out = ""
        if early:  # the process cannot end before
            for line in process.stdout:
                out += line
                if all(word in out for word in words):
                    break
            release()
        try:
            out += process.communicate(timeout=LIMIT)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            if release and not early:
                release()
            raise SystemExit(f"{self.name}: still runs after {LIMIT} s\n{process.communicate()[0]}")
        seconds = time.monotonic() - start
        if release and not early:
            release()
        missing = [word for word in words if word not in out]
        if missing or process.returncode not in codes:
            raise SystemExit(f"{self.name}: exit {process.returncode}, the message lacks {missing}\n{out}")
        end = time.monotonic() + (LIMIT if release else 0)
        while self.left() and time.monotonic() < end:
            time.sleep(0.05)
        if self.left():
            raise SystemExit(f"{self.name}: left {self.left()}")
        line = next((line for line in out.splitlines() if words and words[0] in line), "")
        print(f"{self.name}: exit {process.returncode} in {seconds:.1f} s: {line.strip()[:150]}", flush=True)
        self.folder.cleanup()

    def mount(self, folder, name, fault):
        """`folder`, seen at "mounted" of the scene. None: not on this host."""
        at = self.path / "mounted"
        at.mkdir()
        server = subprocess.Popen([sys.executable, pathlib.Path(__file__).with_name("fuse_mount.py"), folder, at, name, fault],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if server.stdout.readline().strip() != "mounted":
            if server.wait() != 77:
                raise SystemExit(f"{self.name}: the mount ended with {server.returncode}")
            print(f"{self.name}: NOT TESTED, FUSE may not be mounted here", flush=True)
            return None

        def release():
            server.stdin.close()
            server.wait(10)
        return release


def truncated_jpeg(options):
    scene = Scene(options, "truncated JPEG")
    scene.photos()
    (scene.path / "photos/b/3.jpg").write_bytes(JPEG[:-20])
    scene.expect(scene.start(scene.images(), 20), ["photos/b/3.jpg", "JPEG"])


def png_bomb(options):
    scene = Scene(options, "PNG that claims 10^9 pixels")
    scene.photos()
    (scene.path / "photos/b/9.png").write_bytes(png(50_000, 20_000, 1))
    scene.expect(scene.start(scene.images(), 20), ["photos/b/9.png", "the limit is"])


def lying_tar(options):
    scene = Scene(options, "tar with a wrong size")
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
    scene.wait_for_steps(process)
    (scene.path / "photos/b/17.jpg").unlink()
    scene.expect(process, ["photos/b/17.jpg", "No such file"])


def shortened_tar(options):
    scene = Scene(options, "tar that becomes shorter in an epoch")
    files = [entry for i in range(64) for entry in [(f"{i:02}.jpg", JPEG, len(JPEG)), (f"{i:02}.cls", b"1", 1)]]
    (scene.path / "s.tar").write_bytes(tar(files))
    job = scene.images(", cache: none", "epochs: 100000000, log_every: 1000").replace("type: image_folder, path: photos", "type: tar, path: s.tar")
    process = scene.start(job, 20)
    scene.wait_for_steps(process)
    os.truncate(scene.path / "s.tar", 20_000)
    scene.expect(process, ["s.tar: cannot be read: it ends at byte "])


def shortened_tokens(options):
    scene = Scene(options, "tokens that become fewer in an epoch")
    process = scene.start(scene.tokens(), 20)
    scene.wait_for_steps(process)
    os.truncate(scene.path / "t.bin", 50_000)
    scene.expect(process, ["t.bin: cannot be read: it ends at byte "])


def read_error(options):
    scene = Scene(options, "EIO")
    scene.photos()
    env = {"LD_PRELOAD": options.shim, "READ_FAULT_PATH": "photos/a/4.jpg", "READ_FAULT": "errno"}
    scene.expect(scene.start(scene.images(), 20, env), ["photos/a/4.jpg", "Input/output error"])


def hanging_read(options):
    scene = Scene(options, "read that hangs")
    scene.photos()
    env = {"LD_PRELOAD": options.shim, "READ_FAULT_PATH": "photos/a/4.jpg", "READ_FAULT": "hang"}
    scene.expect(scene.start(scene.images(), TIMEOUT, env), ["photos/a/4.jpg", "launch.timeout"])


TABLE = """dataset: {type: csv, path: t.csv, fields: {data: [x], label: label}, batch: 64}
network: [{type: dense, units: 2}]
loss: softmax_cross_entropy
train: {epochs: 1}
"""


def read_errors_of_files(options):
    for kind, file in [("tokens", "t.bin"), ("tar", "s.tar"), ("csv", "t.csv")]:
        scene = Scene(options, f"EIO of {kind}")
        (scene.path / "t.csv").write_text("label,x\n" + "1,0.5\n" * 1000)
        (scene.path / "s.tar").write_bytes(tar([("0.jpg", JPEG, len(JPEG)), ("0.cls", b"1", 1)] * 8))
        job = {"tokens": scene.tokens(), "csv": TABLE,
               "tar": scene.images().replace("type: image_folder, path: photos", "type: tar, path: s.tar")}[kind]
        env = {"LD_PRELOAD": options.shim, "READ_FAULT_PATH": file, "READ_FAULT": "errno"}
        scene.expect(scene.start(job, 20, env), [file, "Input/output error"])


def hanging_mount(options):
    scene = Scene(options, "FUSE mount that hangs")
    scene.photos()
    release = scene.mount(scene.path / "photos", "a/4.jpg", "hang")
    if release:
        scene.expect(scene.start(scene.images().replace("path: photos", "path: mounted"), TIMEOUT), ["mounted/a/4.jpg", "launch.timeout"], release=release)


def hanging_open(options):
    scene = Scene(options, "FUSE mount that hangs when a photo is opened")
    scene.photos()
    release = scene.mount(scene.path / "photos", "a/4.jpg", "hang-open")
    if release:
        scene.expect(scene.start(scene.images().replace("path: photos", "path: mounted"), TIMEOUT), ["mounted/a/4.jpg", "launch.timeout"], release=release)


def hanging_tokens(options):
    scene = Scene(options, "FUSE mount that hangs, of tokens")
    job = scene.tokens()
    (scene.path / "files").mkdir()
    (scene.path / "t.bin").rename(scene.path / "files" / "t.bin")
    release = scene.mount(scene.path / "files", "none", "hang-late")
    if release:
        process = scene.start(job.replace("path: t.bin", "path: mounted/t.bin"), TIMEOUT)
        scene.wait_for_steps(process)
        (scene.path / "files" / "hang").touch()
        scene.expect(process, ["mounted/t.bin: token", "launch.timeout"], release=release)


def hanging_plan(options):
    """`run`, `check` and `data check` read files before there is any rank."""
    for kind, name in [("folder", "mounted/b"), ("tar", "mounted/s.tar"), ("tokens", "mounted/t.bin")]:
        for command in [["run"], ["check"]] + [["data", "check"]] * (kind != "tokens"):
            scene = Scene(options, f"FUSE mount that hangs under trainctl {' '.join(command)}, of a {kind}")
            job = {"folder": scene.images().replace("path: photos", "path: mounted"), "tokens": scene.tokens().replace("path: t.bin", f"path: {name}"),
                   "tar": scene.images().replace("type: image_folder, path: photos", f"type: tar, path: {name}")}[kind]
            scene.photos()
            (scene.path / "t.bin").touch()
            (scene.path / "t.bin").rename(scene.path / "photos/t.bin")
            (scene.path / "photos/s.tar").write_bytes(tar([("0.jpg", JPEG, len(JPEG)), ("0.cls", b"1", 1)] * 8))
            release = scene.mount(scene.path / "photos", name.rpartition("/")[2], "hang")
            if not release:
                return
            scene.write(job, 5)
            process = subprocess.Popen([options.trainctl, *command, scene.path / "job.yaml"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            scene.expect(process, [name, "launch.timeout"], codes=(3,), release=release, early=True)


def failing_mount(options):
    scene = Scene(options, "FUSE mount whose reads fail")
    scene.photos()
    release = scene.mount(scene.path / "photos", "b/5.jpg", "fail")
    if release:
        scene.expect(scene.start(scene.images().replace("path: photos", "path: mounted"), 20), ["mounted/b/5.jpg", "Input/output error"], release=release)


def skipped(options):
    scene = Scene(options, "EIO, and on_error: skip")
    scene.photos(64)
    env = {"LD_PRELOAD": options.shim, "READ_FAULT_PATH": "photos/a/4.jpg", "READ_FAULT": "errno"}
    scene.expect(scene.start(scene.images(", on_error: skip"), 20, env), [], codes=(0,))


def pipes(options):
    """In place of a file of tokens, a shard, a table: none of them is waited for."""
    for kind, name in [("tokens", "t.bin"), ("tar", "s.tar"), ("csv", "t.csv")]:
        scene = Scene(options, f"pipe in place of a {kind} file")
        job = {"tokens": scene.tokens(), "tar": scene.images().replace("type: image_folder, path: photos", "type: tar, path: s.tar"),
               "csv": TABLE}[kind]
        (scene.path / name).unlink(missing_ok=True)
        os.mkfifo(scene.path / name)
        scene.expect(scene.start(job, TIMEOUT), [name])


def small_shared_memory(options):
    """The ranks' shared memory is memfd, so that a container's usual /dev/shm of 64 MB does not limit it: a cache of 134 MB."""
    scene = Scene(options, "/dev/shm of 64 MB")
    inside = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"', "sh"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        print(f"{scene.name}: NOT TESTED, a mount namespace may not be made here", flush=True)
        return
    scene.photos(512)
    job = scene.images(", cache: memory").replace("size: [8, 8]", "size: [256, 256]").replace("to_float", "{rescale: {scale: 0.5}}")
    scene.expect(scene.start(job, 60, through=inside), [], codes=(0,))


def killed(options):
    scene = Scene(options, "kill -9 of the launcher")
    scene.photos(64)
    process = scene.start(scene.images(", cache: memory", "epochs: 100000000, log_every: 1000"), 20)
    scene.wait_for_steps(process)
    process.send_signal(signal.SIGKILL)
    end = time.monotonic() + LIMIT
    while scene.left() and time.monotonic() < end:
        time.sleep(0.05)
    scene.expect(process, [], codes=(-signal.SIGKILL,))


def pipe(options):
    scene = Scene(options, "pipe in place of a photo")
    scene.photos()
    (scene.path / "photos/a/6.jpg").unlink()
    os.mkfifo(scene.path / "photos/a/6.jpg")
    scene.expect(scene.start(scene.images(), TIMEOUT), ["photos/a/6.jpg", "is not a file"])


CASES = [truncated_jpeg, png_bomb, lying_tar, wrong_column, vanishing, shortened_tar, shortened_tokens, read_error, read_errors_of_files, skipped,
         hanging_read, hanging_mount, hanging_open, hanging_tokens, hanging_plan, failing_mount, pipe, pipes, small_shared_memory, killed]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainctl", required=True, type=os.path.abspath)
    parser.add_argument("--shim", required=True, type=os.path.abspath)
    parser.add_argument("--only", help="the name of one case's function")
    options = parser.parse_args()
    chosen = [case for case in CASES if options.only in (None, case.__name__)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:  # most of them wait
        for done in [pool.submit(case, options) for case in chosen]:
            done.result()


main()
