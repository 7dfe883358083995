#!/bin/bash
# Runs of one job have the same bits (repeats.py). Packed by pack.sh.
#
#   repeats.sh [one] [two]     4 min   on one GPU, on two GPUs; without a part: both
# Prints what the program prints; all of it is in $OUT/repeats.log.
set -uo pipefail
parts=("$@")
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
{
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader
run python3 "$here/repeats.py" bin/trainctl "${parts[@]}"
} 2>&1 | tee "$out/repeats.log"
