#!/bin/bash
# An 8B Llama on sequences of 65,536 to 262,144 tokens, on a host with two GPUs of 141 GB. Packed by pack.sh.
#
#   long.sh 131072 | 65536    2 min, 1 min   three steps each, beside the prediction of plan
#   long.sh 262144            4 min          two steps
#   long.sh kept              2 min          131,072 tokens, with the outputs of attention kept
# LIMIT (seconds) ends a run; what it has printed by then counts. Results: $OUT/long_NAME.txt
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
export PYTHONUNBUFFERED=1 NCCL_NVLS_ENABLE=0
for name in "${@:-131072}"; do
  more=(--steps 3 --profile "$name")
  [ "$name" = 262144 ] && more=(--steps 2 "$name")
  [ "$name" = kept ] && more=(--steps 3 --keep 131072)
  {
    nvidia-smi --query-gpu=name,driver_version,memory.used,clocks.sm --format=csv,noheader
    "${PYTHON:-python3}" tests/bench/long_context.py bin/trainctl --limit "${LIMIT:-240}" "${more[@]}"
    nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv,noheader
  } 2>&1 | tee "$out/long_$name.txt"
done
