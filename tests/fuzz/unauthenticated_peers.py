"""Connects without authorization to a real agent, to the store and the ranks of real runs, and to the remote-execution listener of a pod. Sends noise, broken
and oversized frames, wrong and replayed tokens, and opens connections that send nothing.

    python3 tests/fuzz/unauthenticated_peers.py TRAINCTL [--seed 1] [--attacks 200]

Each server must serve its own client during and after the attacks, allocate no memory for unauthenticated peers, and end as usual. Conversely, a launcher
must reveal nothing to an impostor in the place of a pod, and accept from a host only the files of its own ranks.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import resource
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time

from peer_attacks import ANSWER_SECONDS, LIMIT_OF_FILES, Launcher, MOST_GROWTH_BYTES, STARTED, TOKEN, attack, attack_words, await_, frame, join, memory_of, message, require, started


def agent(trainctl, folder, chance, attacks):
    home = folder / "agent"
    home.mkdir()
    launcher = Launcher(trainctl, home)
    places = {"host": "here", "run": 1, "places": [[0, 0]], "reconnect": 120, "grace": 10, "interface": "lo", "bind": 0, "explain": False,
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
            answer, peer = answer
            staying.append(peer)
        require(answer == b"", f"{what}: an unauthenticated peer gets no answer: {answer[:40]}")
        require(pathlib.Path(f"/proc/{pid}").exists() and not [1 for kind, _ in launcher.got if kind == b"D"], f"{what}: the rank runs on")
    launcher.got.clear()
    launcher.send(b"K", rank=0, value=15)
    launcher.await_kind(b"D")
    grown = memory_of(pid) - before
    require(grown < MOST_GROWTH_BYTES, f"the agent has grown by {grown} bytes")
    # Invalid bytes from its own launcher end the connection too, and the agent keeps its state.
    launcher.send(b"E")
    end = time.monotonic() + ANSWER_SECONDS
    while pathlib.Path(path).exists() and time.monotonic() < end:
        time.sleep(0.05)
    require(not pathlib.Path(path).exists(), "its folder is deleted")
    launcher.ends.set()
    launcher.relay.kill()
    launcher.relay.wait()
    for peer in staying:
        peer.close()
    return f"{attacks} attacks, {len(staying)} of them stay connected; grown by {grown / 1e6:.1f} MB"


def as_nobody(run):
    """Returns the result of `run` in a process of another user."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        with contextlib.suppress(OSError):
            os.write(write_end, run())
        os._exit(0)
    os.close(write_end)
    said = b""
    while (more := os.read(read_end, 4096)):
        said += more
    os.close(read_end)
    os.waitpid(pid, 0)
    return said


def users(trainctl, folder, chance, attacks):
    """If another user can reach an agent's folder, an agent takes no launcher of that user, and a launcher no agent."""
    del chance, attacks
    if os.geteuid() != 0:
        return "skipped: only root can be two users"
    folder.chmod(0o755)
    home = folder / "users"
    home.mkdir(mode=0o755)
    launcher = Launcher(trainctl, home)
    run = home / ".cache/trainctl/runs/ab12"
    for path in (home / ".cache", home / ".cache/trainctl", run.parent, run):
        path.chmod(0o777)
    (run / "socket").chmod(0o777)

    def other_launcher():
        other = socket.socket(socket.AF_UNIX)
        other.settimeout(ANSWER_SECONDS)
        other.connect(str(run / "socket"))
        other.sendall(join(5, 0, TOKEN))  # it has even the token
        return other.recv(4096) or b"closed"

    said = as_nobody(other_launcher)
    require(said in (b"closed", b""), f"the agent answers another user: {said}")
    launcher.send(b"P", text=b"{}")
    launcher.await_kind(b"U")  # its own launcher is heard
    launcher.send(b"E")
    await_(lambda: not run.exists(), "the agent leaves")
    launcher.ends.set()
    launcher.relay.kill()
    launcher.relay.wait()

    # The other way round: an agent of another user waits where the launcher looks for its own.
    run.mkdir(mode=0o777)
    run.chmod(0o777)
    ready, heard = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgid(65534)
        os.setuid(65534)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(run / "socket"))
        listener.listen()
        os.chmod(run / "socket", 0o777)
        os.write(ready[1], b"r")
        client, _ = listener.accept()
        client.settimeout(ANSWER_SECONDS)
        with contextlib.suppress(OSError):
            os.write(heard[1], client.recv(4096) or b"nothing")
        os._exit(0)
    os.read(ready[0], 1)
    relay = subprocess.run([trainctl, "agent", "ab12"], input=join(1, 0, TOKEN), env={**os.environ, "HOME": str(home), "XDG_CACHE_HOME": ""}, capture_output=True,
                           timeout=ANSWER_SECONDS, check=False)
    said = os.read(heard[0], 4096)
    os.waitpid(pid, 0)
    require(said == b"nothing" and relay.returncode == 3, f"another user's agent has heard {said}: {relay}")
    return "both refused"


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
    """Returns how far a run that continues meanwhile has come. `said`: returns what it has printed."""

    def __init__(self, run, logs, said):
        self.run, self.metrics, self.said = run, logs / "1/metrics.jsonl", said

    def step(self):
        return self.metrics.read_text().count("\n") if self.metrics.exists() else 0

    def await_step(self, least):
        end = time.monotonic() + ANSWER_SECONDS
        while self.step() < least and time.monotonic() < end and self.run.poll() is None:
            time.sleep(0.05)
        require(self.step() >= least, f"the run continues: step {self.step()}, {self.run.poll() is None or self.said()}")


def is_worker_of(entry, launcher):
    with contextlib.suppress(OSError):
        return b"worker" in (entry / "cmdline").read_bytes().split(b"\0") and f"PPid:\t{launcher}\n" in (entry / "status").read_text()
    return False


def flood(address, pid):
    """Connections that say nothing, more than a process may have descriptors. Returns them, and how many it ever kept."""
    begun = len(os.listdir(f"/proc/{pid}/fd"))
    idle, most = [], 0
    for at in range(1400):
        peer = socket.socket()
        peer.settimeout(2)
        try:
            peer.connect(address)
        except OSError as error:
            raise AssertionError(f"connection {at} is not accepted: {error}") from None
        idle.append(peer)
        if at % 50 == 0:
            most = max(most, len(os.listdir(f"/proc/{pid}/fd")) - begun)
    require(most <= LIMIT_OF_FILES / 4 + 8, f"{most} connections are kept, of at most {LIMIT_OF_FILES} descriptors")
    return idle, most


def limit_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT_OF_FILES, LIMIT_OF_FILES))


def store(trainctl, folder, chance, attacks):
    root = pathlib.Path(__file__).resolve().parents[2]
    words = [trainctl, "run", f"{root}/tests/jobs/mlp.yaml", "launch.ranks=2", "parallel.mode=data_parallel", "launch.comm=gloo", "train.epochs=1000000",
             "launch.max_restarts=1", f"launch.log_dir={folder}/logs"]
    run = started(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, preexec_fn=limit_files)
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
        require(len(answer) in (0, 36), f"an unauthenticated peer gets the server's number, and nothing else: {answer[:60]}")
    idle, most = flood(("127.0.0.1", ports[0]), run.pid)
    grown = memory_of(run.pid) - before
    require(grown < MOST_GROWTH_BYTES, f"the launcher has grown by {grown} bytes")
    training.await_step(training.step() + 3)
    # A rank that is started again finds the store while they all stay.
    ranks_of_run = [int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit() and is_worker_of(entry, run.pid)]
    require(len(ranks_of_run) == 2, f"two ranks: {ranks_of_run}")
    os.kill(ranks_of_run[0], signal.SIGKILL)
    await_(lambda: not any(os.path.exists(f"/proc/{rank}") for rank in ranks_of_run), "the ranks of the first attempt end")
    before = training.step()
    await_(lambda: 0 < training.step() != before, "the ranks of the second attempt train")
    training.await_step(training.step() + 3)
    run.send_signal(signal.SIGINT)
    require(run.wait(ANSWER_SECONDS) == 130, "it ends as always: " + run.stdout.read())
    for peer in idle:
        peer.close()
    return f"{attacks} attacks, {len(idle)} idle connections of which it keeps {most} at most; grown by {grown / 1e6:.1f} MB"


def tls_words(chance):
    """The bytes that an unauthenticated peer sends to a socket that expects TLS."""
    hello = b"\x16\x03\x01" + struct.pack(">H", 300) + b"\x01\x00\x01\x28\x03\x03" + chance.randbytes(290)
    return chance.choice([chance.randbytes(chance.randrange(1, 4000)), b"GET / HTTP/1.1\r\n\r\n", hello, hello[:chance.randrange(1, 300)],
                          b"\x16\x03\x03\xff\xff" + chance.randbytes(3000), b"run 8\necho pwn\n", chance.randbytes(16)])


def attack_tls(port, chance, attacks):
    """The answer is nothing, or TLS's own refusal. Returns the peers that stay."""
    staying = []
    for _ in range(attacks):
        answer = attack(("127.0.0.1", port), tls_words(chance), chance, socket.AF_INET)
        if isinstance(answer, tuple):
            answer, peer = answer
            staying.append(peer)
        require(answer == b"" or answer[0] == 0x15, f"an unauthenticated peer gets only an alert: {answer[:60]}")
    return staying


def ranks(trainctl, folder, chance, attacks):
    """Ranks of two hosts, which are this one twice: what stands for ssh runs the command here."""
    root = pathlib.Path(__file__).resolve().parents[2]
    ssh, logs, lines = folder / "ssh", folder / "rank_logs", folder / "rank_lines"
    ssh.write_text('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do [ "$1" = -o ] && shift; shift; done\nHOME=$HOME/$1\nmkdir -p "$HOME"\n'
                   'shift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    run = started([trainctl, "run", f"{root}/tests/jobs/mlp.yaml", "launch.hosts=[one:1, two:1]", f"launch.ssh={ssh}", "launch.interface=lo",
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
    staying = [peer for here, _ in found.values() for peer in attack_tls(here[0], chance, attacks)]
    training.await_step(training.step() + 3)
    grown = max(memory_of(pid) - before[pid] for pid in found)
    require(grown < MOST_GROWTH_BYTES, f"a rank has grown by {grown} bytes")
    run.send_signal(signal.SIGINT)
    require(run.wait(ANSWER_SECONDS) == 130, "it ends as always: " + lines.read_text()[-2000:])
    for peer in staying:
        peer.close()
    return f"{2 * attacks} attacks, {len(staying)} of them stay connected; grown by {grown / 1e6:.1f} MB"


def listener(trainctl, folder, chance, attacks):
    """The remote-execution listener of a pod, as its manifest starts it."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clusters"))
    import pods
    root = pathlib.Path(__file__).resolve().parents[2]
    manifests = folder / "manifests"
    subprocess.run([trainctl, "render", f"{root}/tests/jobs/mlp.yaml", "-o", str(manifests), "launch.target=kubernetes", "launch.kubernetes.pods=2",
                    "launch.ranks=2", "parallel.mode=data_parallel"], check=True, stdout=subprocess.DEVNULL)
    words, variables = pods.container(manifests, 1)
    served = started([trainctl, *words], env={**os.environ, **variables, "HOME": str(folder)}, cwd=folder, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    port = int(re.search(r"kListenerPort = ([\d']+)", (root / "launcher/clusters/pods.h").read_text()).group(1).replace("'", ""))
    end = time.monotonic() + ANSWER_SECONDS
    while port not in sum(listeners_of(served.pid), []) and time.monotonic() < end:
        time.sleep(0.05)
    require(port in sum(listeners_of(served.pid), []), f"the listener listens at port {port}: {listeners_of(served.pid)}")
    before = memory_of(served.pid)
    staying = attack_tls(port, chance, attacks)
    require(served.poll() is None, "the listener stays open for its launcher")
    # A launcher is served while they all stay.
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
    dial = subprocess.run([trainctl, "dial", "cat; echo end", str(port), "pod", "127.0.0.1"], input="through", env={**os.environ, **variables}, capture_output=True,
                          text=True, timeout=ANSWER_SECONDS, check=False)
    require(dial.stdout == "throughend\n", f"the launcher's script runs: {dial}")
    for peer in idle:
        peer.close()
    grown = memory_of(served.pid) - before
    require(grown < MOST_GROWTH_BYTES, f"the listener has grown by {grown} bytes")
    for peer in staying:
        peer.close()
    served.kill()  # SIGTERM is for its launcher: the listener waits for that
    served.wait(ANSWER_SECONDS)
    return f"{attacks} attacks, {len(staying)} of them stay connected; grown by {grown / 1e6:.1f} MB"


# Signed by itself, for no host. Whoever checks certificates refuses it, and whoever requires the token needs none.
CERTIFICATE = """-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIEZ9BfpZB5207gzWy0La3YWWSP3fx6wRMvS4OJrz6S5LoAoGCCqGSM49
AwEHoUQDQgAEwtdpKf0WmY8xINgGh+S/cZHkhjchP2/G7fyP674SojYdhag7MrTJ
jPLYHUsN3SpsrWlU3nR1mumfTZB6cXcrPA==
-----END EC PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBfTCCASOgAwIBAgIUYjyAJJ/hOw3smQSlMd2s7l4cHL4wCgYIKoZIzj0EAwIw
EzERMA8GA1UEAwwIaW1wb3N0b3IwIBcNMjYxMTI4MDkxNTA5WhgPMjEyNjExMDQw
OTE1MDlaMBMxETAPBgNVBAMMCGltcG9zdG9yMFkwEwYHKoZIzj0CAQYIKoZIzj0D
AQcDQgAEwtdpKf0WmY8xINgGh+S/cZHkhjchP2/G7fyP674SojYdhag7MrTJjPLY
HUsN3SpsrWlU3nR1mumfTZB6cXcrPKNTMFEwHQYDVR0OBBYEFNhfa3PBSKajviYV
4furLKLW9MhPMB8GA1UdIwQYMBaAFNhfa3PBSKajviYV4furLKLW9MhPMA8GA1Ud
EwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIgLt+DsW9KQbJ49zMcNeePJ3dE
d1wB/uxABVLMpU+k7lACIQCeKrWpUsFY9WNyjgWLR0HmOpJ6S5w07b6uEbcAicV9
Lw==
-----END CERTIFICATE-----
"""


def impostor(trainctl, folder, chance, attacks):
    """In the place of pod 1 a server of TLS has a certificate and no token: pod 0 sends it nothing, however often it tries."""
    del chance, attacks
    root = pathlib.Path(__file__).resolve().parents[2]
    port = int(re.search(r"kListenerPort = ([\d']+)", (root / "launcher/clusters/pods.h").read_text()).group(1).replace("'", ""))
    (folder / "impostor.pem").write_text(CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "impostor.pem")
    listener = socket.create_server(("127.0.0.2", port))
    heard, clients = [], []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with contextlib.suppress(OSError), context.wrap_socket(client, server_side=True) as stream:
                    heard.append(stream.recv(4096))
                clients.append(1)

    threading.Thread(target=serve, daemon=True).start()
    words = [trainctl, "run", f"{root}/tests/jobs/mlp.yaml", "launch.ranks=2", "parallel.mode=data_parallel", "env.SECRET=of the job", f"launch.log_dir={folder}/logs"]
    variables = {"TRAINCTL_PODS": "127.0.0.[1-2]", "JOB_COMPLETION_INDEX": "0", "TRAINCTL_TOKEN": TOKEN.decode(), "HOME": str(folder)}
    run = started(words, cwd=folder, env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + ANSWER_SECONDS
    while len(clients) < 5 and time.monotonic() < end and run.poll() is None:
        time.sleep(0.05)
    run.kill()
    said = run.communicate()[1]
    listener.close()
    require(len(clients) >= 5, f"pod 0 tries again: {len(clients)} {said}")
    require(not any(heard), f"pod 0 has told the impostor {heard}")
    require("127.0.0.2 did not prove that it has the job's token" in said or said == "", said)
    return f"{len(clients)} connections, and not a byte"


def rogue(trainctl, folder, chance, attacks):
    """The launcher accepts from a host only files of that host's ranks, and no value of a wrong type ends the launcher as a bug."""
    del chance, attacks
    here = pathlib.Path(__file__).resolve().parent
    stub, job = folder / "ssh", folder / "job.yaml"
    stub.write_text('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do [ "$1" = -o ] && shift; shift; done\nhost=$1\nHOME=$HOME/$1\nmkdir -p "$HOME"\nshift\n'
                    f'[ "$host" = two ] && exec {sys.executable} {here}/rogue_agent.py\nexec sh -c "$*"\n')
    stub.chmod(0o755)
    job.write_text("name: rogue\ncommand: [sh, -c, 'echo mine; sleep 2']\n")
    words = [trainctl, "run", str(job), "launch.hosts=[one:1, two:1]", f"launch.ssh={stub}", "launch.interface=lo", "launch.ranks=2", f"launch.log_dir={folder}/logs"]
    said = {}
    for mode in ("files", "types"):
        run = subprocess.run(words, cwd=folder, env={**os.environ, "HOME": str(folder), "ROGUE": mode}, capture_output=True, text=True, timeout=120, check=False)
        said[mode] = run.returncode, run.stdout + run.stderr
    code, text = said["files"]
    require(code == 0 and "of host two, which its ranks may not write" in text, f"the user is told: {said}")
    logs = folder / "logs/1"
    forged = {str(path.relative_to(logs)) for path in logs.rglob("*") if path.is_file() and "forged" in path.read_text(errors="replace")}
    require(forged == {"rank.1/mine", "notes"}, f"files of the rogue host: {sorted(forged)}")
    require((logs / "rank.0/stdout").read_text() == "mine\n" and "name: rogue" in (logs / "job.yaml").read_text(), "other files are as they were")
    require(not (folder / "logs/escaped").exists() and not pathlib.Path("/tmp/escaped").exists(), "nothing is written outside of the run's folder")
    code, text = said["types"]
    require(code in (3, 5) and "sent an invalid message" in text, f"exit {code}: {text}")
    return f"{len(forged)} files of its own"


def secrets(trainctl, folder, chance, attacks):
    """No process of a run has 64 hexadecimal digits, as a token has, in its words or its environment; nor do its logs."""
    del chance, attacks
    root = pathlib.Path(__file__).resolve().parents[2]
    logs = folder / "secret_logs"
    run = started([trainctl, "run", f"{root}/tests/jobs/mlp.yaml", "launch.ranks=2", "parallel.mode=data_parallel", "launch.comm=gloo",
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
    for part in (agent, users, store, ranks, listener, impostor, rogue, secrets):
        with tempfile.TemporaryDirectory(prefix="peers.") as folder:
            try:
                said = part(str(pathlib.Path(options.trainctl).resolve()), pathlib.Path(folder), random.Random(options.seed), options.attacks)
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                said, failed = f"FAILED: {error}", failed + 1
            for process in STARTED:
                process.kill()
                process.wait()
        print(f"{part.__name__:8} {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
