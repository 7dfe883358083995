"""Reads the file of an offline run of W&B with its own protocol buffers: LevelDB's log format behind a header of 7 bytes."""
import json
import time


def records_of(data):
    """The records of a .wandb file: blocks of 32 KiB, in which each part has a crc, a length and a type."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4:at + 6], "little"), data[at + 6]
        part = data[at + 7:at + 7 + length]
        at += 7 + length
        whole = part if kind in (1, 2) else whole + part  # 1: whole, 2: first, 3: middle, 4: last
        if kind in (1, 4):
            yield whole


def losses_of(folder):
    """{step: loss} of an offline run, once wandb's process has written its end."""
    from wandb.proto import wandb_internal_pb2
    file = next(folder.glob("*.wandb"))
    while True:
        records = []
        for data in records_of(file.read_bytes()):
            records.append(wandb_internal_pb2.Record())
            records[-1].ParseFromString(data)
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            break
        time.sleep(0.1)
    found = {}
    for record in records:
        items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        if "loss" in items:
            found[items["_step"]] = items["loss"]
    return found
