#!/bin/bash
# Plans of experts on two GPUs of one host (experts.py), 1 min. Packed by pack.sh. Prints what the program prints; all of it is in $OUT/experts.log.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
{
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader
run python3 "$here/experts.py" bin/trainctl
} 2>&1 | tee "$out/experts.log"
