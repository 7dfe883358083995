#!/bin/bash
# Parameter servers on the 16 cores of a machine with a GPU (two cores show correctness, not speed). Packed by pack.sh.
#
#   servers.sh rates [MEGABYTES …]   3 min    8 workers with 1, 2, 4, 8 servers beside data_parallel, networks of 10 and 100 MB
#   servers.sh tables                4 min    100,000,000 rows of 64 with a million touched; the same beside PyTorch's sparse embedding of
#                                             10,000,000; the numbers of one rank with the whole table
#   servers.sh slow                  2 min    workers that are 3 times slower for random spells, sync beside async
#   servers.sh gpus                  2 min    on 2 GPUs: workers on them, servers on the cores, beside data_parallel on the same GPUs: equal losses, rates
set -uo pipefail
part=${1:?rates, tables, slow or gpus}; shift
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"

{
nproc; lscpu | grep -E "Model name|L3"
case $part in
rates)
  megabytes=("$@"); [ ${#megabytes[@]} -gt 0 ] || megabytes=(10 100)
  for m in "${megabytes[@]}"; do
    LIMIT=140 run python3 tests/bench/server_rates.py bin/trainctl --megabytes "$m" --rounds "${ROUNDS:-3}" --steps "${STEPS:-30}"
  done ;;
tables)
  # A million rows are touched by 4 million ids of a flatter law.
  LIMIT=100 run python3 tests/bench/tables.py bin/trainctl --kinds 0 --rounds 1 --steps 500 --zipf 1.05 --workers 4 --servers 4
  LIMIT=140 run python3 tests/bench/tables.py bin/trainctl --python python3 --rounds "${ROUNDS:-2}" --steps 100 --workers 4 --servers 4
  LIMIT=60 run python3 tests/bench/tables.py bin/trainctl --equal "${EQUAL:-10000000}" --workers 4 --servers 4 ;;
gpus)
  nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader
  for m in 10 100; do
    LIMIT=100 run python3 tests/bench/server_rates.py bin/trainctl --device cuda --workers 2 --servers 1,2,4 --megabytes $m --rounds "${ROUNDS:-2}" --steps 30
  done
  # Convolutions, validation and asynchronous workers.
  lenet="configs/lenet_ps.yaml launch.device=cuda launch.ranks=2 train.epochs=1 train.log_every=1"
  LIMIT=60 run bin/trainctl run $lenet launch.log_dir=$at/served
  LIMIT=60 run bin/trainctl run $lenet parallel.mode=data_parallel launch.log_dir=$at/reduced
  LIMIT=60 run bin/trainctl run $lenet parallel.sync=false launch.log_dir=$at/async
  LIMIT=60 run bin/trainctl run configs/wide_deep_ps.yaml launch.device=cuda launch.ranks=2 train.steps=100 launch.log_dir=$at/tables
  LIMIT=60 run bin/trainctl run configs/wide_deep_ps.yaml launch.device=cuda launch.ranks=2 train.steps=100 parallel.sync=true launch.log_dir=$at/in_step
  python3 - $at/served $at/reduced <<'P'
import json, sys
a, b = ([row["loss"] for row in map(json.loads, open(f"{folder}/1/metrics.jsonl")) if "step" in row and "loss" in row] for folder in sys.argv[1:])
assert len(a) == len(b) > 0, "another number of losses"
print(f"LeNet: {len(a)} losses, served beside data_parallel: at most {max(abs(x / y - 1) for x, y in zip(a, b)):.1e} apart")
P
  ;;
slow)
  LIMIT=200 run python3 tests/bench/parameter_servers.py bin/trainctl ;;
esac
} 2>&1 | tee "$out/servers_$part.log"
