#!/bin/bash
# Two GPUs of one host. Packed by pack.sh.
#
#   pair.sh resume               2 min   random jobs, each saved at a random step and resumed on the same plan and on another
#   pair.sh saves                2 min   what a save of GPT-2 350M costs on two GPUs, beside PyTorch's ways on one
#   pair.sh scaling [NETWORK …]  1 min   each network data parallel on two GPUs, beside one with half the batch
# Prints what the programs print; all of it is in $OUT/pair_PART.log.
set -uo pipefail
part=${1:?resume, saves or scaling}; shift
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
networks=("$@"); [ ${#networks[@]} -gt 0 ] || networks=(gpt2 gpt2_350m)

scaling() {  # NETWORK: medians of the later half of the steps
  python3 - "$1" <<'P'
import json, statistics, subprocess, sys
sys.path.insert(0, "tests/bench")
import networks
name, steps = sys.argv[1], 60
job, batch, _, _, _, sets = networks.NETWORKS[name]
def step(ranks, *more):
    logs = f"/tmp/pair_{name}_{ranks}_{len(more)}"
    subprocess.run(["bin/trainctl", "run", job, *sets, "launch.device=cuda", f"launch.ranks={ranks}", f"dataset.batch={batch * ranks}",
                    f"dataset.samples={batch * ranks * steps}", f"train.steps={steps}", "train.log_every=1", f"launch.log_dir={logs}", *more],
                   check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in open(f"{logs}/1/metrics.jsonl")]
    times = [row["seconds"] * 1e3 for row in rows if "step" in row][steps // 2:]
    return statistics.median(times), min(times), max(times)
one = step(1, "parallel.mode=stand_alone")
for more in ([], ["parallel.optimizer_shard=1"]):
    two = step(2, "parallel.mode=data_parallel", *more)
    print("%s: one GPU %.2f ms [%.2f .. %.2f], two %s %.2f ms [%.2f .. %.2f]: %.1f %% of twice one" % (
        name, *one, " ".join(more) or "data parallel", *two, 100 * one[0] / two[0]), flush=True)
P
}

{
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader
case $part in
resume)
  run python3 tests/random_jobs/random_jobs.py --trainctl bin/trainctl --device cuda --gpus 2 --ranks 1,2 --resume --jobs "${JOBS:-200}" \
    --seconds "${SECONDS_OF_JOBS:-90}" --seed "${SEED:-$RANDOM}" ;;
saves)
  run python3 tests/bench/saves.py bin/trainctl --device cuda --rounds "${ROUNDS:-1}" --batch 16 --python python3 \
    --set launch.ranks=2 --set parallel.mode=data_parallel --set vars.d=1024 --set vars.layers=24 --set vars.heads=16 ;;
scaling)
  for n in "${networks[@]}"; do scaling "$n"; done ;;
esac
} 2>&1 | tee "$out/pair_$part.log"
