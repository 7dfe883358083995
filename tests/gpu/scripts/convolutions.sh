#!/bin/bash
# Checks of convolutions and attention on a machine with one GPU: correctness, memory, speed beside a peer.
# Packed by `pack.sh test_op_cases_cuda`; there:
#
#   convolutions.sh start     2 min    ResNet-50 starts, trains, gives the same bits twice; the kept choices of algorithms
#   convolutions.sh ops       3-5 min  op cases of attention, rotary, conv2d, pools with cuDNN
#   convolutions.sh own       1-2 min  the same convolutions in the engine's own kernels (no cuDNN to find)
#   convolutions.sh memcheck  3-5 min  compute-sanitizer memcheck, racecheck
# Every part writes its log to $OUT too. `start` and `ops` first: they fill and show the file of kept choices.
set -uo pipefail
part=${1:?start, ops, own or memcheck}

source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
tests=$at/bin/test_op_cases_cuda
kept() { for f in ~/.cache/trainctl/convolutions/*; do [ -e "$f" ] && echo "$f: $(grep -c . "$f") choices; ways:" && awk 'NF == 2 {split($2, a, ":"); n[a[1]]++} END {for (w in n) print "   ", w, n[w]}' "$f"; done; }

{
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader
case $part in
start)
  for i in 1 2; do  # the first start measures, the second reads the file
    run bin/trainctl run templates/resnet50.yaml $one train.steps=60 train.log_every=20 train.sink_steps=5 launch.log_dir=$at/resnet$i
    grep -h "conv2d\|convolution\|attention" $at/resnet$i/1/rank.0/stderr
    cat $at/resnet$i/1/rank.0/start_up.json 2>/dev/null | tr -d '\n' | cut -c1-1500; echo
  done
  # same bits: the losses of the runs must be equal to the last digit (the first may differ if it measured; then run a third)
  for i in 1 2; do grep -h '"loss"' $at/resnet$i/1/metrics.jsonl | tail -1 | cut -c1-200; done
  kept
  run bin/trainctl plan templates/resnet50.yaml $one | sed -n '/memory per rank/,/^$/p' ;;
ops)
  # cuDNN has what is asked for; then each family alone, so that one that is cut off does not hide the others
  LIMIT=100 run $tests -d -tc="*cuDNN*"
  for f in conv2d attention rotary max_pool2d,avg_pool2d; do TRAINCTL_OP_CASES=$f LIMIT=240 run $tests -d; done
  kept ;;
own)
  export TRAINCTL_CUDA_LIBRARY_PATH=/nowhere
  TRAINCTL_OP_CASES=conv2d LIMIT=200 run $tests -d -tc="matrix products on*,*image networks*,so do some*,*images that begin*"
  TRAINCTL_OP_CASES=attention LIMIT=200 run $tests -d -tc="a forward*,backward*,large*,*twice*" ;;
memcheck)
  check="compute-sanitizer --error-exitcode 9 --print-limit 20"
  TRAINCTL_OP_CASES=conv2d LIMIT=150 run $check --tool memcheck $tests -d -tc="matrix products on*"   # copies, padding, slices; and cuDNN
  export TRAINCTL_CUDA_LIBRARY_PATH=/nowhere
  TRAINCTL_OP_CASES=conv2d LIMIT=120 run $check --tool memcheck $tests -d -tc="matrix products on*"
  TRAINCTL_OP_CASES=conv2d LIMIT=120 run $check --tool racecheck $tests -d -tc="so do some*"
  TRAINCTL_OP_CASES=attention,rotary LIMIT=120 run $check --tool memcheck $tests -d -tc="a forward*,a CUDA kernel run twice*" ;;
esac
} 2>&1 | tee "$out/convolutions_$part.log"
