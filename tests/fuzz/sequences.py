"""Sends real agents sequences of valid frames in any order: orders of a launcher, with right and wrong contents, for attempts and ranks that
exist or not, late confirmations, joins in between, and frames that only an agent sends.

    python3 tests/fuzz/sequences.py TRAINCTL [--seed 1] [--sequences 40]

Whatever it receives, an agent exits with 0 when it is stopped, and leaves neither its folder nor a rank behind.
"""
import argparse
import ctypes
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from peer_attacks import TOKEN, Launcher, alive, join, message, require  # noqa: E402

SECONDS = 40
SNAPSHOT_BYTES = 136
PR_SET_CHILD_SUBREAPER = 36
ORDERS, ANSWERS = b"PSKHZLQXWE", b"RUBNDFGOIT"
BOTH = b"CYV"
NAMES = [b"", b"x", b"..", b".", b"a/b", b"../x", b"/tmp/x", b"rank.0/stdout", b"f" * 64, b"f" * 64 + b"/file", b"e" * 64, b"decided", b"progress",
         b"finished", b"offer", b"fetch", b"wanted", b"asked", b"position", b"stdout", b"\xff\xfe", b"n" * 4000]
NUMBERS = [0, 1, -1, 2, 9, 15, 18, 19, 64, 4096, -2 ** 63, 2 ** 63 - 1, 2 ** 40]
RANKS = [0, 1, -1, 2, 5, 2 ** 31 - 1, -2 ** 31]


def places(chance):
    """The text of a prepare message, with up to two faults."""
    json_text = {"host": "h", "run": 1, "places": chance.choice([[[0, 0]], [[0, 0], [1, 1]], [[1, 0]]]), "reconnect": 15, "grace": 1, "interface": "lo", "bind": 0,
                 "explain": chance.random() < 0.5, "hold_port": chance.random() < 0.3, "files": {}, "copies": [], "program_folder": "", "workload": None}
    if chance.random() < 0.6:
        json_text["workload"] = {"arena_bytes": [65536, 65536], "routes": [[0, 1]], "saves_from": chance.choice([-1, 0, 5]), "holds": chance.random() < 0.5}
    if chance.random() < 0.3:
        json_text["copies"] = [["/data/set", "f" * 64]]
    faults = [
        ("places", [[], [[0, 7]], [[9, 0]], [[0, 0], [0, 1]], [[-1, 0]], [[2 ** 31 - 1, 0]], 5, [[0]], [["a", 0]]]),
        ("reconnect", [-1, 1e300, "x", None, 15]), ("grace", [-1, 1e300, "x", None, 0]), ("bind", [1, 2, 3, 255, -1]), ("run", [-1, 2 ** 31 - 1, "1"]),
        ("files", [{"job.yaml": "a: 1"}, {"../x": "a"}, {"a/b": "a"}, {"job.yaml": 5}, []]), ("interface", ["nowhere0", 5]),
        ("copies", [[["relative", "f" * 64]], [["/x", "short"]], [["/../x", "f" * 64]], [[]], 5]), ("program_folder", ["../../x", "copied/x", 5]),
        ("workload", [{}, 5, {"arena_bytes": []}, {"arena_bytes": [2 ** 63 - 1] * 3}, {"arena_bytes": [1], "routes": [[0, 5]]},
                      {"arena_bytes": [1, 1], "routes": [[0, 0]]}, {"arena_bytes": [-1]}, {"arena_bytes": [1] * 10, "routes": [], "resume": {}},
                      {"arena_bytes": [8, 8], "routes": [], "resume": {"folder": "/nowhere", "digest": "0"}}]),
    ]
    for key, values in chance.sample(faults, chance.choice([0, 0, 0, 1, 1, 2])):
        json_text[key] = chance.choice(values)
    text = json.dumps(json_text).encode()
    return text if chance.random() < 0.95 else text[:chance.randrange(len(text))]


def command(chance):
    return json.dumps(chance.choice([
        {"argv": ["sleep", "600"], "environment": [], "working_dir": "/"}, {"argv": ["sleep", "600"], "environment": [], "working_dir": "/"},
        {"argv": ["sh", "-c", "echo out; echo err >&2; exit 3"], "environment": [["A", "b"]], "working_dir": "{folder}"},
        {"argv": ["true"], "environment": [], "working_dir": "/"}, {"argv": [], "environment": [], "working_dir": "/"},
        {"argv": ["/no/such/program"], "environment": [], "working_dir": "/"}, {"argv": ["true"], "environment": [], "working_dir": "/no/such/folder"},
        {"argv": {}, "environment": 5}, {"argv": ["true"], "environment": [["A"]], "working_dir": "/"}, []])).encode()


def order(chance, number, attempt):
    kind = bytes([chance.choice(ORDERS[:-1] * 6 + BOTH * 3 + ANSWERS)])
    rank, value, name = chance.choice(RANKS[:2] * 6 + RANKS), chance.choice(NUMBERS), chance.choice(NAMES)
    text = chance.choice([b"", b"text", chance.randbytes(SNAPSHOT_BYTES), struct.pack("<i", 0) + bytes(SNAPSHOT_BYTES - 4), chance.randbytes(3000)])
    if kind == b"P":
        attempt, text = chance.choice([attempt, attempt + 1, attempt + 1, 0]), places(chance)
    elif kind == b"S":
        text = command(chance)
    return kind, message(number, kind, attempt if chance.random() < 0.9 else attempt + 1, rank, value, name, text), attempt


class Sequence:
    def __init__(self, trainctl, seed):
        self.chance, self.trainctl, self.seed = random.Random(seed), trainctl, seed
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="sequence."))
        self.sent, self.connection, self.kinds, self.relay, self.received, self.is_prepared = 0, 0, [], None, 0, False

    def connect(self):
        if self.relay:
            self.relay.kill()
            self.relay.wait()
        self.connection += 1
        words = [self.trainctl, "agent", "ab12"] + (["--join"] if self.connection > 1 else [])
        self.relay = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                      env={**os.environ, "HOME": str(self.home), "XDG_CACHE_HOME": ""})
        os.set_blocking(self.relay.stdout.fileno(), False)
        self.bytes = b""
        self.write(join(self.connection, self.received, TOKEN))

    def write(self, data):
        try:
            self.relay.stdin.write(data)
            self.relay.stdin.flush()
        except OSError:
            return False
        return True

    def read(self):
        """Frames that have come; False once the agent has closed."""
        while True:
            try:
                got = os.read(self.relay.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                got = None
            if got is None or not got:
                break
            self.bytes += got
        if self.bytes.startswith(b"trainctl-agent\n"):
            self.bytes = self.bytes[15:]
        while len(self.bytes) >= 4:
            size, = struct.unpack("<I", self.bytes[:4])
            if len(self.bytes) < 4 + size:
                break
            body, self.bytes = self.bytes[4:4 + size], self.bytes[4 + size:]
            if body[:1] == b"M":
                self.received, = struct.unpack("<Q", body[1:9])
                self.is_prepared = self.is_prepared or body[9:10] == b"R"
        return got != b""

    def agent(self):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for entry in pathlib.Path("/proc").iterdir():
                if entry.name.isdigit() and Launcher.is_agent(self, entry):
                    return int(entry.name)
            time.sleep(0.02)
        raise AssertionError("there is no agent")

    def run(self):
        self.connect()
        pid = self.agent()
        attempt = 0
        for at in range(self.chance.randrange(1, 25)):
            if at == 0 and self.chance.random() < 0.8:
                kind, data = b"P", message(self.sent + 1, b"P", text=places(self.chance))
            else:
                kind, data, attempt = order(self.chance, self.sent + 1, attempt)
            self.kinds.append(kind.decode())
            self.sent += 1
            self.write(data)
            if self.chance.random() < 0.3:
                time.sleep(self.chance.choice([0.01, 0.05, 0.3]))
                self.read()
            if self.chance.random() < 0.3:
                self.write(alive(self.received))
            if self.chance.random() < 0.05:
                self.read()
                self.kinds.append("join")
                self.connect()
                self.sent = self.confirmed()
        self.sent += 1
        self.write(message(self.sent, b"E"))
        self.end(pid)

    def confirmed(self):
        """The number of the last message that the agent has received, from its welcome: the next number follows it."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            data = b""
            try:
                data = os.read(self.relay.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                time.sleep(0.01)
                continue
            self.bytes += data
            at = self.bytes.find(b"W")
            if self.bytes.startswith(b"trainctl-agent\n") and len(self.bytes) >= 15 + 4 + 13:
                require(self.bytes[19:20] == b"W", f"a welcome: {self.bytes[:40]}")
                return struct.unpack("<Q", self.bytes[24:32])[0]
            require(data != b"" or at >= 0, "the agent answers a join")
        raise AssertionError("no welcome")

    def end(self, pid):
        """The launcher confirms all that comes, at some time."""
        late = self.chance.random() < 0.3
        end, begin = time.monotonic() + SECONDS, time.monotonic()
        while time.monotonic() < end:
            self.read()
            if not late or time.monotonic() - begin > 1:
                self.write(alive(self.received))
            try:
                found, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # its parent is the relay, which ends when the agent closes the connection
                found, status = 0, 0
            if found == pid:
                require(os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0, f"the agent ended with {status}")
                break
            if self.relay.poll() is None and found == 0 and time.monotonic() - begin > 8:
                self.relay.kill()
            time.sleep(0.02)
        else:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError("the agent does not end")
        folder = self.home / ".cache/trainctl/runs/ab12"
        require(not folder.exists(), f"its folder is there: {list(folder.rglob('*')) if folder.exists() else ''}")
        ours = f"HOME={self.home}".encode()
        end = time.monotonic() + SECONDS
        while (left := [e.name for e in pathlib.Path("/proc").iterdir() if e.name.isdigit() and self.is_rank(e, ours)]) and time.monotonic() < end:
            time.sleep(0.05)
        require(not left, f"ranks are left: {left}")

    def is_rank(self, entry, ours):
        try:
            return entry.name != str(self.relay.pid) and b"sleep" in (entry / "cmdline").read_bytes() and ours in (entry / "environ").read_bytes()
        except OSError:
            return False

    def close(self):
        self.relay.kill()
        self.relay.wait()
        shutil.rmtree(self.home, ignore_errors=True)


def run_one(work):
    trainctl, seed = work
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # agents become children of this process
    sequence = Sequence(trainctl, seed)
    try:
        sequence.run()
    except (AssertionError, OSError) as error:
        return sequence.is_prepared, f"seed {seed}, {' '.join(sequence.kinds)}: {error}"
    finally:
        sequence.close()
    return sequence.is_prepared, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainctl")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sequences", type=int, default=40)
    options = parser.parse_args()
    trainctl = str(pathlib.Path(options.trainctl).resolve())
    with multiprocessing.Pool(min(8, options.sequences)) as pool:  # they mostly wait
        results = pool.map(run_one, [(trainctl, options.seed * 100_000 + i) for i in range(options.sequences)], chunksize=1)
    faults = [fault for _, fault in results if fault]
    prepared = sum(is_prepared for is_prepared, _ in results)
    if prepared < options.sequences / 4:  # else most orders are refused, and nothing is tested
        faults.append(f"an agent was prepared in only {prepared} sequences")
    print(*faults, f"{options.sequences} sequences, {prepared} with a prepared agent, {len(faults)} failed", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
