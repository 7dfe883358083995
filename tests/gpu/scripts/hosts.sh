#!/bin/bash
# GPUs on two hosts: this machine twice, each with one of its GPUs. What stands for ssh runs the command here, with another id for NCCL,
# so ranks talk by sockets. Packed by pack.sh.
#
#   hosts.sh   1 min   losses of plans on two hosts beside one GPU, saves, resumes, a killed rank, a lost host
# Prints what the programs print; all of it is in $OUT/hosts.log.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
{
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
python3 - <<'P'
import json, os, pathlib, re, signal, subprocess, sys, tempfile, time
folder = pathlib.Path(tempfile.mkdtemp(prefix="hosts."))
ssh = folder / "ssh"
ssh.write_text('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do [ "$1" = -o ] && shift; shift; done\n'
               'case $1 in one) gpu=0 ;; *) gpu=1; [ -e ' + f'{folder}/down' + ' ] && exit 255 ;; esac\nexport NCCL_HOSTID=$1 CUDA_VISIBLE_DEVICES=$gpu HOME=' + f'{folder}/$1\n'
               'mkdir -p "$HOME"\nshift\nexec sh -c "$*"\n')
ssh.chmod(0o755)
HOSTS = ["launch.hosts=[one:1, two:1]", f"launch.ssh={ssh}", "launch.interface=lo", "launch.ranks=2", "launch.reconnect=3s",
         "env={NCCL_DEBUG: INFO, NCCL_NVLS_ENABLE: '0'}"]
number = 0

def start(job, *sets, command="run"):
    global number
    number += 1
    logs = folder / f"logs.{number}"
    words = ["bin/trainctl", command, f"tests/jobs/{job}.yaml", "launch.device=cuda", f"launch.log_dir={logs}", *sets]
    return subprocess.Popen(words, stdout=open(folder / f"out.{number}", "w"), stderr=subprocess.STDOUT), logs

def losses(logs, run=1):
    path = logs / str(run) / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []
    return {row["run_step"]: row["loss"] for row in rows if "loss" in row and "run_step" in row}

def run(job, *sets):
    process, logs = start(job, *sets)
    code = process.wait(120)
    said = (folder / f"out.{number}").read_text()
    if code: print(f"FAILED {code}: {said[-3000:]}", flush=True)
    return losses(logs), logs, said

def worst(a, b):
    both = sorted(a.keys() & b.keys())
    return f"{len(both)} steps, worst difference {max((abs(a[s] - b[s]) / max(abs(a[s]), 1e-3) for s in both), default=float('nan')):.1e}"

def case(name, of):
    begin = time.monotonic()
    try:
        said = of()
    except Exception as error:
        said = f"FAILED: {type(error).__name__} {error}"
    print(f"{name:12} {time.monotonic() - begin:5.1f} s  {said}", flush=True)

def plan(job, *sets):
    def go():
        one = run(job, "train.steps=30", "launch.ranks=1", "parallel.mode=stand_alone")[0]
        two, logs, _ = run(job, "train.steps=30", *HOSTS, *sets)
        net = set(re.findall(r"via NET/\w+|via P2P[/\w]*|via SHM[/\w]*", "".join(p.read_text(errors="replace") for p in logs.rglob("std*") if p.is_file())))
        return f"{worst(one, two)}; NCCL {', '.join(sorted(net)) or 'says nothing of its channels'}"
    return go

def saved():
    dp = ["parallel.mode=data_parallel", "train.checkpoint={every_steps: 10, keep: 10, async: false}", "train.steps=40"]
    whole, logs, _ = run("gpt", *HOSTS, *dp)
    resumed, _, _ = run("gpt", *HOSTS, *dp, f"--resume-from={logs}/1/checkpoints/step_00000020")
    return worst(whole, resumed)

def until(process, holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds() and process.poll() is None and time.monotonic() < end: time.sleep(0.05)
    return holds()

def pids_of(host):
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if f"HOME={folder}/{host}".encode() in (entry / "environ").read_bytes().split(b"\0"): yield int(entry.name), (entry / "cmdline").read_bytes().split(b"\0")
        except OSError: pass

def killed_rank():
    process, logs = start("gpt", "train.steps=1000000", "train.epochs=1000000", "train.checkpoint={every_steps: 50}", "launch.max_restarts=1", "parallel.mode=data_parallel", *HOSTS)
    until(process, lambda: max(losses(logs), default=0) > 120)
    for pid, words in pids_of("two"):
        if b"worker" in words: os.kill(pid, signal.SIGKILL)
    at = max(losses(logs))
    ok = until(process, lambda: max(losses(logs), default=0) > at + 100)
    process.send_signal(signal.SIGINT)
    code = process.wait(60)
    return f"killed after step {at}, continued: {ok}; exit code {code} (130)"

def elastic():
    process, logs = start("gpt", "train.steps=1000000", "train.epochs=1000000", "train.checkpoint={every_steps: 1000}", "launch.elastic=1", "parallel.mode=data_parallel", *HOSTS)
    until(process, lambda: max(losses(logs), default=0) > 120)
    (folder / "down").touch()
    for pid, words in pids_of("two"): os.kill(pid, signal.SIGKILL)
    at = max(losses(logs))
    ok = until(process, lambda: max(losses(logs), default=0) > at + 100)
    process.send_signal(signal.SIGINT)
    code = process.wait(60)
    lines = [line for line in (folder / f"out.{number}").read_text().splitlines() if "ranks instead" in line or "rank instead" in line]
    return f"lost after step {at}, continued: {ok}; exit code {code} (130); {lines} {'' if ok else (folder / f'out.{number}').read_text()[-2500:]}"

case("data", plan("gpt", "parallel.mode=data_parallel"))
case("shard", plan("gpt", "parallel.mode=data_parallel", "parallel.optimizer_shard=1"))
case("mlp", plan("mlp", "parallel.mode=data_parallel", "parallel.optimizer_shard=3"))
case("saved", saved)
case("killed_rank", killed_rank)
case("elastic", elastic)
left = subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True).stdout
left = len(left.split())
print("left behind: " + (f"{left} processes" if left else "nothing"), flush=True)
P
} 2>&1 | tee "$out/hosts.log"
