#!/usr/bin/env python3
"""Makes the checkpoints of one format, which later versions must read (checkpoint_files_test.cpp).

    tests/checkpoint_files/make.py build/release/bin/trainctl tests/checkpoint_files/format_1

Run it once for each format, with the first version that writes it; never again for a format that has been released.
Each folder has a checkpoint in the middle of an epoch, and expected.json: the CRC-32 of each whole tensor, and the
losses of the steps that follow.
"""
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

HERE = pathlib.Path(__file__).resolve().parent
STEP = 11
PLANS = {
    "one_rank": [],
    "four_ranks": ["launch.ranks=4", "parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.micro_batches=2",
                   "parallel.stage_config={conv: 0, bn: 0, relu: 0, flat: 0, fc: 1, act: 1, out: 1}",
                   "parallel.optimizer_shard={level: 2, min_kb: 0}", "train.checkpoint.integrated=true"],
}


def digests(file):
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    body = data[8 + size:]
    return {name: f'{zlib.crc32(body[slice(*entry["data_offsets"])]):08x}'
            for name, entry in sorted(header.items()) if name != "__metadata__"}


def losses(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row.get("run_step", 0) > STEP]


def make(trainctl, to, plan):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE / "job.yaml", folder)

        def call(*words):
            subprocess.run([trainctl, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)

        call("run", "job.yaml", *plan)
        run = pathlib.Path(folder) / "log_output" / "1"
        checkpoint = run / "checkpoints" / f"step_{STEP:08}"
        call("checkpoint", "merge", str(checkpoint), "--all", "-o", "all.safetensors")
        expected = {"tensors": digests(pathlib.Path(folder) / "all.safetensors"), "losses": losses(run)}
        to.mkdir(parents=True)
        shutil.copytree(checkpoint, to / checkpoint.name)
        (to / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def main():
    trainctl, to = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    for name, plan in PLANS.items():
        make(str(trainctl), to / name, plan)


main()
