#!/bin/bash
# Audits on two GPUs of one host (audits.py). Packed by pack.sh.
#
#   audits.sh [sound] [fault] [cost]     3 min   without a part: all
# Prints what the program prints; all of it is in $OUT/audits.log.
set -uo pipefail
parts=("$@")
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
{
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader
run python3 "$here/audits.py" bin/trainctl "${parts[@]}"
} 2>&1 | tee "$out/audits.log"
