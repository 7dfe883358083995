"""Plays the agent of a host that does more than it may: started in place of ssh, it starts no rank, and sends the launcher files of others.

ROGUE=files: names of files that are not its ranks'. ROGUE=types: values of other types than the launcher expects.
"""
import json
import os
import struct
import sys
import threading
import time

NAMES = ["rank.1/mine", "rank.0/stdout", "rank.0/forged", "rank.1/../rank.0/forged", "rank.01/forged", "job.yaml", "plan.json", "outcome.json", "error.json",
         "launcher.log", "checkpoints/step_00000009/checkpoint.json", "metrics.jsonl", "../escaped", "/tmp/escaped", "rank.1", "server.0/forged", "notes"]
number, confirmed = 0, 0
whole_frames = threading.Lock()


def write(body):
    with whole_frames:
        sys.stdout.buffer.write(struct.pack("<I", len(body)) + body)
        sys.stdout.buffer.flush()


def stay_alive():
    """Twice a second, as an agent: on a busy machine the launcher would connect again otherwise."""
    while True:
        time.sleep(0.5)
        write(b"A" + struct.pack("<Q", confirmed))


def send(kind, rank=-1, value=0, name="", text=b"", attempt=0):
    global number
    number += 1
    write(b"M" + struct.pack("<Q", number) + kind + struct.pack("<IiqH", attempt, rank, value, len(name)) + name.encode() + text)


def main():
    global confirmed
    mode = os.environ["ROGUE"]
    sys.stdout.buffer.write(b"trainctl-agent\n")
    sys.stdout.buffer.flush()
    version, ranks = 0, []
    while True:
        head = sys.stdin.buffer.read(4)
        if len(head) < 4:
            return
        body = sys.stdin.buffer.read(struct.unpack("<I", head)[0])
        if body[:1] == b"J":
            version, = struct.unpack("<I", body[1:5])
            write(b"W" + struct.pack("<IQ", version, 0))
            threading.Thread(target=stay_alive, daemon=True).start()
        if body[:1] != b"M":
            continue
        confirmed, = struct.unpack("<Q", body[1:9])
        write(b"A" + struct.pack("<Q", confirmed))
        kind, rank = body[9:10], struct.unpack("<i", body[14:18])[0]
        if kind == b"P":
            ready = {"address": "127.0.0.1", "port": 0, "link_port": 0, "cores": 1, "lacks_files": False, "lacks_copies": []}
            if mode == "types":
                ready = {"address": 5, "port": "x", "lacks_copies": "y"}
            send(b"R", text=json.dumps(ready).encode())
        if kind == b"S":
            ranks.append(rank)
            send(b"B", rank=rank)
            for name in NAMES:
                send(b"I", name=name, text=b"forged\n")
            time.sleep(0.2)
            report = {"signaled": False, "code": 0, "age": 0.0, "out_of_memory": False, "last_words": "", "left": "", "failed_unasked": False, "blames_peer": False}
            send(b"D", rank=rank, text=json.dumps(report).encode())
        if kind == b"E":
            return


main()
