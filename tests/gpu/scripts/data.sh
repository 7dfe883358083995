#!/bin/bash
# Data sets on a machine of many cores and a GPU. Packed by `pack.sh bench_images bench_autotune /usr/bin/tjbench` (of libjpeg-turbo-progs); there:
#
#   data.sh read       4 min    images/s from 1 worker to all cores, beside tjbench on the same files and PyTorch's DataLoader with torchvision at
#                               its best number of workers
#   data.sh autotune   3 min    autotune beside the best of a grid by hand, for pipelines whose slow stage is known
#   data.sh train      4 min    ResNet-50 from photographs and GPT-2 from a cold file of tokens: what the GPU waits; a step under full load
# Every part writes its log to $OUT too.
set -uo pipefail
part=${1:?read, autotune or train}
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
export PATH=$at/bin:$PATH
cores=$(nproc)

{
echo "$cores cores: $(grep -m1 'model name' /proc/cpuinfo)"
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader
case $part in
read) LIMIT=290 run python3 tests/bench/images.py bin/trainctl bin/bench_images --python python3 --rounds "${ROUNDS:-2}" --seconds 2 \
        --peer-workers "${PEER_WORKERS:-$((cores - 2)),$((cores + cores / 2))}" ;;
autotune) LIMIT=290 run bin/bench_autotune ;;
train) LIMIT=290 run python3 tests/bench/gpu_data.py bin/trainctl bin/bench_images --rounds "${ROUNDS:-2}" ;;
esac
} 2>&1 | tee "$out/data_$part.log"
