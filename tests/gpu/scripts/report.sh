#!/bin/bash
# A run on a GPU as tests/report wants it: its folder, with histograms and a profile. Packed by `pack.sh`; there:
#
#   report.sh          1 min    records it, and compares its histograms with those of the same run on the CPU
#
# What $OUT/gpu_run.tar.gz has then belongs into tests/report/gpu_run.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
job=$at/tests/jobs/gpt.yaml
fields=(train.steps=40 train.histograms=10 launch.ranks=1 parallel.mode=stand_alone)
{
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
run $at/bin/trainctl run "$job" "${fields[@]}" launch.device=cuda launch.log_dir="$out/logs" --profile --profile-steps 20-22
run $at/bin/trainctl run "$job" "${fields[@]}" launch.device=cpu launch.log_dir="$out/logs"
mkdir -p "$out/gpu_run"
cp "$out"/logs/1/{job.yaml,plan.json,machine.json,metrics.jsonl,outcome.json,profile.json} "$out/gpu_run/"
tar czf "$out/gpu_run.tar.gz" -C "$out" gpu_run && rm -r "$out/gpu_run"
# Event files are records of a length, its sum, an event and its sum; a histogram has a count, which both devices share.
python3 - "$out/logs" <<'P'
import pathlib, struct, sys
def messages(text):
    at = 0
    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = text[at]; at += 1
            value |= (byte & 127) << shift; shift += 7
            if byte < 128: return value
    while at < len(text):
        key = varint()
        if key & 7 == 0: yield key >> 3, varint()
        else:
            size = {1: 8, 5: 4}.get(key & 7) or varint()
            yield key >> 3, text[at:at + size]; at += size
def histograms(run):
    file, = pathlib.Path(run).glob("events.out.tfevents.*")
    text, at, found = file.read_bytes(), 0, {}
    while at < len(text):
        size, = struct.unpack_from("<Q", text, at)
        event = dict(messages(text[at + 12:at + 12 + size])); at += size + 16
        for number, value in messages(event.get(5, b"")):
            fields = dict(messages(value))
            if 5 in fields:
                h = dict(messages(fields[5]))
                found[event.get(2, 0), fields[1].decode()] = [struct.unpack("<d", h[n])[0] for n in (3, 4, 5)]
    return found
cuda, cpu = histograms(sys.argv[1] + "/1"), histograms(sys.argv[1] + "/2")
assert cuda.keys() == cpu.keys() and cpu, (len(cuda), len(cpu))
worst = max(abs(a[2] ** .5 - b[2] ** .5) / (b[2] ** .5 + 1e-6) for a, b in ((cuda[k], cpu[k]) for k in cpu))
assert all(cuda[k][0] == cpu[k][0] for k in cpu), "the same elements are counted"
print(f"{len(cpu)} histograms: the same counts, norms within {worst:.1e} of the CPU's")
sys.exit(worst > 0.02)
P
} 2>&1 | tee "$out/report.log"
