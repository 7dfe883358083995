#!/bin/bash
# muon's step beside adamw's: GPT-2 124M in bf16, 16 samples of 1024 tokens, data_parallel with optimizer_shard. Packed by `pack.sh`.
#
#   muon.sh [GPUS]     3 min   ms per step of adamw and muon in turn, two rounds, and their ratio; GPUS: 2 if omitted
set -uo pipefail
gpus=${1:-2}
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"

step_of() {  # OPTIMIZER LEVEL ROUND: prints the median of the last steps in ms
  local log=$at/muon_$1_$2_$3
  timeout 120 bin/trainctl run templates/gpt2.yaml launch.device=cuda launch.ranks=$gpus parallel.mode=data_parallel parallel.optimizer_shard.level=$2 \
    "optimizer={type: $1, learning_rate: 0.0003, weight_decay: 0.1}" dataset.batch=$((8 * gpus)) train.steps=60 train.log_every=60 \
    train.sink_steps=5 train.checkpoint=none parallel.recompute=[] launch.log_dir=$log > $log.log 2>&1 || tail -15 $log.log >&2
  python3 - $log <<'P'
import glob, json, statistics, sys
files = sorted(glob.glob(sys.argv[1] + "/*/metrics.jsonl"))
rows = [json.loads(line) for line in open(files[-1])] if files else []
times = [r["seconds"] for r in rows if "step" in r and "seconds" in r]
print("%.2f" % (1e3 * statistics.median(times[len(times) // 2:])) if times else "nan")
P
}

{
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader
for level in 0 1; do
  for round in 1 2; do
    adamw=$(step_of adamw $level $round); muon=$(step_of muon $level $round)
    echo "level $level, round $round, $gpus GPUs: adamw $adamw ms, muon $muon ms, $(python3 -c "print('%.3fx' % ($muon / $adamw))") (must be at most 1.15x on 4 ranks)"
  done
done
} 2>&1 | tee "$out/muon.log"
