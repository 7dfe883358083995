"""Frames of the protocol between launcher and agents, a launcher for tests, and the attacks of unauthenticated_peers.py on a listener."""
import contextlib
import os
import pathlib
import re
import socket
import struct
import subprocess
import threading
import time

VERSION = int(re.search(r"kVersion = (\d+)", (pathlib.Path(__file__).resolve().parents[2] / "launcher/hosts/frame.h").read_text()).group(1))
TOKEN = b"f" * 64
MOST_GROWTH_BYTES = 64 << 20
ANSWER_SECONDS = 600  # after which something hangs
LIMIT_OF_FILES = 1024


STARTED = []  # what a failed part leaves running


def started(*words, **options):
    STARTED.append(subprocess.Popen(*words, **options))
    return STARTED[-1]


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
        self.relay = started([trainctl, "agent", "ab12"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
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
                require(got != b"U", f"the agent refuses: {text}")
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
    """The bytes that an unauthenticated peer sends to the agent's socket."""
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
        # By chance the damage may have restored the right token: replace it, since that join would be authenticated.
        return "a damaged join", bytes(data).replace(TOKEN, b"e" * 64)
    return "a part of a frame", good[:chance.randrange(1, len(good))]


def attack(address, data, chance, family=socket.AF_UNIX):
    with contextlib.suppress(OSError):
        peer = socket.socket(family, socket.SOCK_STREAM)
        peer.settimeout(0.2)
        peer.connect(address)
        for at in range(0, len(data), 1000):
            peer.sendall(data[at:at + 1000])
        answer = b""
        with contextlib.suppress(socket.timeout):
            answer = peer.recv(4096)
        if chance.random() < 0.9:
            peer.close()
            return answer
        return answer, peer  # it stays, and says no more
    return b""


def await_(holds, what):
    end = time.monotonic() + 3 * ANSWER_SECONDS
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    require(holds(), what)
