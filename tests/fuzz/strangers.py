"""Speaks to a real agent, to the store and the ranks of real runs, and to the door of a pod as one that has no right to: noise, broken and oversized frames,
tokens that are wrong or were heard before, and connections that say nothing.

    python3 tests/fuzz/strangers.py TRAINCTL [--seed 1] [--attacks 200]

Each server serves its own client meanwhile and after, takes no memory for strangers, and ends as always.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

VERSION = int(re.search(r"kVersion = (\d+)", (pathlib.Path(__file__).resolve().parents[2] / "launcher/hosts/frame.h").read_text()).group(1))
TOKEN = b"f" * 64
MOST_GROWTH_BYTES = 64 << 20
ANSWER_SECONDS = 600  # after which something hangs


def require(holds, what):
    if not holds:
        raise AssertionError(what)


def frame(body):
    return struct.pack("<I", len(body)) + body


def join(connection, received, token, version=VERSION):
    return frame(b"J" + struct.pack("<IQQ", version, connection, received) + token)


def message(number, kind, attempt=0, rank=-1, value=0, name=b"", text=b""):
    return frame(b"M" + struct.pack("<Q", number) + kind + struct.pack("<IiqH", attempt, rank, value, len(name)) + name + text)


def alive(received):
    return frame(b"A" + struct.pack("<Q", received))


def memory_of(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) * 1024


class Launcher:
    """The agent's right client, over a relay's pipes."""

    def __init__(self, trainctl, home):
        self.home = home
        environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": ""}
        self.relay = subprocess.Popen([trainctl, "agent", "ab12"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self.sent, self.received, self.buffer, self.got = 0, 0, b"", []
        self.relay.stdin.write(join(1, 0, TOKEN))
        self.relay.stdin.flush()
        require(self.relay.stdout.readline() == b"trainctl-agent\n", "the relay says that an agent is there")
        require(self.read_frame()[:1] == b"W", "the agent welcomes its launcher")
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        self.beat = threading.Thread(target=self.beats, daemon=True)
        self.ends = threading.Event()
        self.lock = threading.Lock()
        self.beat.start()

    def read_frame(self):
        size = struct.unpack("<I", self.relay.stdout.read(4))[0]
        return self.relay.stdout.read(size)

    def read(self):
        with contextlib.suppress(struct.error, ValueError):
            while True:
                body = self.read_frame()
                if body[:1] == b"M":
                    self.received = struct.unpack("<Q", body[1:9])[0]
                    self.got.append((body[9:10], body[28 + struct.unpack("<H", body[26:28])[0]:]))

    def beats(self):
        while not self.ends.wait(0.3):
            self.write(alive(self.received))

    def write(self, data):
        with self.lock, contextlib.suppress(OSError, ValueError):
            self.relay.stdin.write(data)
            self.relay.stdin.flush()

    def send(self, kind, **more):
        self.sent += 1
        self.write(message(self.sent, kind, **more))

    def await_kind(self, kind):
        end = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < end:
            for got, text in self.got:
                if got == kind:
                    return text
            time.sleep(0.02)
        raise AssertionError(f"the agent has not sent {kind} but {self.got}")

    def agent(self):
        # The relay's own child copies; the agent has left its session, and keeps the relay's words.
        found = [int(p.name) for p in pathlib.Path("/proc").iterdir() if p.name.isdigit() and self.is_agent(p)]
        require(len(found) == 1, f"one agent: {found}")
        return found[0]

    def is_agent(self, entry):
        with contextlib.suppress(OSError):
            return ((entry / "comm").read_text().strip() == "trainctl-agent" and
                    f"HOME={self.home}".encode() in (entry / "environ").read_bytes().split(b"\0"))
        return False


def attack_words(chance, replayed):
    """What a stranger says to the agent's socket."""
    good = join(10, 0, bytes(chance.choices(b"0123456789abcdef", k=64)))
    kind = chance.randrange(9)
    if kind == 0:
        return "noise", chance.randbytes(chance.randrange(1, 4000))
    if kind == 1:
        return "another token", good + message(1, b"E")
    if kind == 2:
        return "no join", message(1, b"E") + message(2, b"K", rank=0, value=9)
    if kind == 3:
        return "a join that was heard", replayed
    if kind == 4:
        return "an oversized frame", struct.pack("<I", chance.choice([0x7fffffff, 0xffffffff, (2 << 20) + 1])) + chance.randbytes(3000)
    if kind == 5:
        return "an oversized token", join(11, 0, b"f" * chance.randrange(129, 4000))
    if kind == 6:
        return "another version", join(12, 0, TOKEN, VERSION + chance.choice([-1, 1, 7]))
    if kind == 7:
        data = bytearray(join(13, chance.choice([0, 5, 2 ** 63]), TOKEN[:-1] + b"e") + message(1, b"E"))
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        # By chance it may have become the right join: that is no stranger.
        return "a damaged join", bytes(data).replace(TOKEN, b"e" * 64)
    return "a part of a frame", good[:chance.randrange(1, len(good))]


def attack(address, data, chance, family=socket.AF_UNIX):
    with contextlib.suppress(OSError):
        stranger = socket.socket(family, socket.SOCK_STREAM)
        stranger.settimeout(0.2)
        stranger.connect(address)
        for at in range(0, len(data), 1000):
            stranger.sendall(data[at:at + 1000])
        answer = b""
        with contextlib.suppress(socket.timeout):
            answer = stranger.recv(4096)
        if chance.random() < 0.9:
            stranger.close()
            return answer
        return answer, stranger  # it stays, and says no more
    return b""


def agent(trainctl, folder, chance, attacks):
    home = folder / "agent"
    home.mkdir()
    launcher = Launcher(trainctl, home)
    places = {"host": "here", "run": 1, "places": [[0, 0]], "reconnect": 120, "interface": "lo", "bind": 0, "explain": False,
              "hold_port": False, "files": {}, "copies": [], "program_folder": "", "workload": None}
    launcher.send(b"P", text=json.dumps(places).encode())
    launcher.await_kind(b"R")
    command = {"argv": ["sleep", "600"], "environment": [], "working_dir": "/"}
    launcher.send(b"S", rank=0, text=json.dumps(command).encode())
    launcher.await_kind(b"B")
    pid = launcher.agent()
    before = memory_of(pid)
    path = str(home / ".cache/trainctl/runs/ab12/socket")
    require(oct(os.stat(os.path.dirname(path)).st_mode)[-3:] == "700", "only its user enters the agent's folder")
    replayed = join(1, 0, TOKEN) + message(1, b"E")
    staying = []
    for _ in range(attacks):
        what, data = attack_words(chance, replayed)
        answer = attack(path, data, chance)
        if isinstance(answer, tuple):
            answer, stranger = answer
            staying.append(stranger)
        require(answer == b"", f"{what}: a stranger is told nothing: {answer[:40]}")
        require(pathlib.Path(f"/proc/{pid}").exists() and not [1 for kind, _ in launcher.got if kind == b"D"], f"{what}: the rank runs on")
    launcher.got.clear()
    launcher.send(b"K", rank=0, value=15)
    launcher.await_kind(b"D")
    grown = memory_of(pid) - before
    require(grown < MOST_GROWTH_BYTES, f"the agent has grown by {grown} bytes")
    # Of its own launcher it takes no nonsense either: the connection ends, and what it had is kept.
    launcher.send(b"E")
    end = time.monotonic() + ANSWER_SECONDS
    while pathlib.Path(path).exists() and time.monotonic() < end:
        time.sleep(0.05)
    require(not pathlib.Path(path).exists(), "its folder is deleted")
    launcher.ends.set()
    launcher.relay.kill()
    launcher.relay.wait()
    for stranger in staying:
        stranger.close()
    return f"{attacks} attacks, {len(staying)} of them stay connected; grown by {grown / 1e6:.1f} MB"


def listeners_of(pid):
    """TCP ports of 127.0.0.1, and whether it listens anywhere else."""
    inodes = set()
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if (match := re.match(r"socket:\[(\d+)\]", os.readlink(fd))):
                inodes.add(match.group(1))
    ports, elsewhere = [], []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] != "0A" or words[9] not in inodes:
                continue
            address, port = words[1].split(":")
            (ports if address == "0100007F" else elsewhere).append(int(port, 16))
    return ports, elsewhere


class Training:
    """How far a run that goes on meanwhile has come. `said`: returns what it has printed."""

    def __init__(self, run, logs, said):
        self.run, self.metrics, self.said = run, logs / "1/metrics.jsonl", said

    def step(self):
        return self.metrics.read_text().count("\n") if self.metrics.exists() else 0

    def await_step(self, least):
        end = time.monotonic() + ANSWER_SECONDS
        while self.step() < least and time.monotonic() < end and self.run.poll() is None:
            time.sleep(0.05)
        require(self.step() >= least, f"the run goes on: step {self.step()}, {self.run.poll() is None or self.said()}")


def store(trainctl, folder, chance, attacks):
    root = pathlib.Path(__file__).resolve().parents[2]
    words = [trainctl, "run", f"{root}/tests/jobs/mlp.yaml", "launch.ranks=2", "parallel.mode=data_parallel", "launch.comm=gloo", "train.epochs=1000000",
             f"launch.log_dir={folder}/logs"]
    run = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)
    training = Training(run, folder / "logs", lambda: run.stdout.read())
    training.await_step(3)
    ports, elsewhere = listeners_of(run.pid)
    require(len(ports) == 1 and not elsewhere, f"the launcher listens on the loopback address alone: {ports} {elsewhere}")
    before = memory_of(run.pid)
    for _ in range(attacks):
        size = chance.choice([0, 1, 64, 65, 1 << 20, 0x7fffffff, 0xffffffff])
        data = chance.choice([chance.randbytes(chance.randrange(1, 2000)), struct.pack("<I", size) + chance.randbytes(min(size, 3000)),
                              frame(chance.randbytes(64)) + frame(b"G" + struct.pack("<IH", 0, 1) + b"x")])
        answer = attack(("127.0.0.1", ports[0]), data, chance, socket.AF_INET)
        answer = answer[0] if isinstance(answer, tuple) else answer
        require(len(answer) in (0, 36), f"a stranger gets the server's number, and nothing else: {answer[:60]}")
    grown = memory_of(run.pid) - before
    require(grown < MOST_GROWTH_BYTES, f"the launcher has grown by {grown} bytes")
    training.await_step(training.step() + 3)
    run.send_signal(signal.SIGINT)
    require(run.wait(ANSWER_SECONDS) == 130, "it ends as always: " + run.stdout.read())
    return f"{attacks} attacks; grown by {grown / 1e6:.1f} MB"


def tls_words(chance):
    """What a stranger says to a socket that expects TLS."""
    hello = b"\x16\x03\x01" + struct.pack(">H", 300) + b"\x01\x00\x01\x28\x03\x03" + chance.randbytes(290)
    return chance.choice([chance.randbytes(chance.randrange(1, 4000)), b"GET / HTTP/1.1\r\n\r\n", hello, hello[:chance.randrange(1, 300)],
                          b"\x16\x03\x03\xff\xff" + chance.randbytes(3000), b"run 8\necho pwn\n", chance.randbytes(16)])


def attack_tls(port, chance, attacks):
    """The answer is nothing, or TLS's own refusal. Returns the strangers that stay."""
    staying = []
    for _ in range(attacks):
        answer = attack(("127.0.0.1", port), tls_words(chance), chance, socket.AF_INET)
        if isinstance(answer, tuple):
            answer, stranger = answer
            staying.append(stranger)
        require(answer == b"" or answer[0] == 0x15, f"a stranger is told nothing but an alert: {answer[:60]}")
    return staying


def ranks(trainctl, folder, chance, attacks):
    """Ranks of two hosts, which are this one twice: what stands for ssh runs the command here."""
    root = pathlib.Path(__file__).resolve().parents[2]
    ssh, logs, lines = folder / "ssh", folder / "rank_logs", folder / "rank_lines"
    ssh.write_text('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do [ "$1" = -o ] && shift; shift; done\nHOME=$HOME/$1\nmkdir -p "$HOME"\n'
                   'shift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    run = subprocess.Popen([trainctl, "run", f"{root}/tests/jobs/mlp.yaml", "launch.hosts=[one:1, two:1]", f"launch.ssh={ssh}", "launch.interface=lo",
                            "launch.ranks=2", "parallel.mode=data_parallel", "train.epochs=1000000", f"launch.log_dir={logs}"],
                           stdout=open(lines, "w"), stderr=subprocess.STDOUT, cwd=folder, env={**os.environ, "HOME": str(folder)})
    training = Training(run, logs, lambda: lines.read_text()[-2000:])
    training.await_step(3)
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if b"worker" in words and str(folder).encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = listeners_of(entry.name)
    require(len(found) == 2 and all(len(here) == 1 and not elsewhere for here, elsewhere in found.values()),
            f"each rank listens once, at the address of launch.interface: {found}")
    before = {pid: memory_of(pid) for pid in found}
    staying = [stranger for here, _ in found.values() for stranger in attack_tls(here[0], chance, attacks)]
    training.await_step(training.step() + 3)
    grown = max(memory_of(pid) - before[pid] for pid in found)
    require(grown < MOST_GROWTH_BYTES, f"a rank has grown by {grown} bytes")
    run.send_signal(signal.SIGINT)
    require(run.wait(ANSWER_SECONDS) == 130, "it ends as always: " + lines.read_text()[-2000:])
    for stranger in staying:
        stranger.close()
    return f"{2 * attacks} attacks, {len(staying)} of them stay connected; grown by {grown / 1e6:.1f} MB"


def door(trainctl, folder, chance, attacks):
    """The door of a pod, as its manifest starts it."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clusters"))
    import pods
    root = pathlib.Path(__file__).resolve().parents[2]
    manifests = folder / "manifests"
    subprocess.run([trainctl, "render", f"{root}/tests/jobs/mlp.yaml", "-o", str(manifests), "launch.target=kubernetes", "launch.kubernetes.pods=2",
                    "launch.ranks=2", "parallel.mode=data_parallel"], check=True, stdout=subprocess.DEVNULL)
    words, variables = pods.container(manifests, 1)
    served = subprocess.Popen([trainctl, *words], env={**os.environ, **variables, "HOME": str(folder)}, cwd=folder, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    port = int(re.search(r"kDoorPort = ([\d']+)", (root / "launcher/clusters/pods.h").read_text()).group(1).replace("'", ""))
    end = time.monotonic() + ANSWER_SECONDS
    while port not in sum(listeners_of(served.pid), []) and time.monotonic() < end:
        time.sleep(0.05)
    require(port in sum(listeners_of(served.pid), []), f"the door listens at port {port}: {listeners_of(served.pid)}")
    before = memory_of(served.pid)
    staying = attack_tls(port, chance, attacks)
    require(served.poll() is None, "the door stays open for its launcher")
    grown = memory_of(served.pid) - before
    require(grown < MOST_GROWTH_BYTES, f"the door has grown by {grown} bytes")
    for stranger in staying:
        stranger.close()
    served.kill()  # SIGTERM is for its launcher: the door waits for that
    served.wait(ANSWER_SECONDS)
    return f"{attacks} attacks, {len(staying)} of them stay connected; grown by {grown / 1e6:.1f} MB"


def secrets(trainctl, folder, chance, attacks):
    """No process of a run has 64 hexadecimal digits, as a token has, in its words or its environment; nor do its logs."""
    del chance, attacks
    root = pathlib.Path(__file__).resolve().parents[2]
    logs = folder / "secret_logs"
    run = subprocess.Popen([trainctl, "run", f"{root}/tests/jobs/mlp.yaml", "launch.ranks=2", "parallel.mode=data_parallel", "launch.comm=gloo",
                            "train.epochs=1000000", f"launch.log_dir={logs}"], stdout=subprocess.DEVNULL, cwd=folder)
    end = time.monotonic() + ANSWER_SECONDS
    while not (logs / "1/metrics.jsonl").exists() and time.monotonic() < end:
        time.sleep(0.05)
    token = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
    seen = 0
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes()
            if str(folder).encode() not in words:
                continue
            seen += 1
            require(not token.search(words) and not token.search((entry / "environ").read_bytes()), f"a token is in the words of {words}")
    require(seen >= 3, f"the run's processes are seen: {seen}")
    run.send_signal(signal.SIGINT)
    run.wait(ANSWER_SECONDS)
    for path in logs.rglob("*"):
        require(not path.is_file() or path.suffix == ".json" or not token.search(path.read_bytes()), f"a token is in {path}")
    return f"{seen} processes"


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would the runs
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainctl")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--attacks", type=int, default=60)
    options = parser.parse_args()
    failed = 0
    for part in (agent, store, ranks, door, secrets):
        with tempfile.TemporaryDirectory(prefix="strangers.") as folder:
            try:
                said = part(str(pathlib.Path(options.trainctl).resolve()), pathlib.Path(folder), random.Random(options.seed), options.attacks)
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                said, failed = f"FAILED: {error}", failed + 1
        print(f"{part.__name__:8} {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
