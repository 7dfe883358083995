#!/bin/bash
# Op cases on one GPU, many processes beside each other: most of the time is the reference in double, on the CPU.
# Packed by `pack.sh test_op_cases_cuda`.
#
#   ops.sh cases [FAMILY …]   5 min   of conv2d, attention and rotary, unless others are named; 16 cores
#   ops.sh rest               5 min   of all other families, and the tests that belong to no family
#   ops.sh sanitize           5 min   memcheck and racecheck of own kernels: conv2d, batch_norm, attention, rotary
#   ops.sh race               1 min   memcheck and racecheck of single calls of own kernels: convolutions, gradient of attention
# Prints a line a process, with its slowest tests, and the end of those that fail. All of it is in $OUT/ops_PART.log.
set -uo pipefail
part=${1:?cases, rest, sanitize or race}; shift
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
tests="stdbuf -oL $at/bin/test_op_cases_cuda -d"
mkdir -p $at/ops
slow=(conv2d attention rotary)
rest=$(sed -n 's/^OP_FAMILY(\(.*\))$/\1/p' $at/tests/all_ops.def | grep -vxE "$(IFS='|'; echo "${slow[*]}")" | paste -sd,)

# The tests that walk the rows of families.
declare -A walks=([forward]="a forward CUDA*" [backward]="backward CUDA*" [cuts]="every cut*" [sizes]="large and odd*"
  [again]="a CUDA kernel*,an op that*" [others]="kernels that*,kernels over*,ids whose*,some rows*")
conv="convolutions of*,so do some*,a convolution*,*cuDNN*,cuda: weight gradients in*,cuda: large weight*"

start() {  # NAME FAMILIES COMMAND…: in the background
  local name=$1 families=$2; shift 2
  { local began=$SECONDS log=$at/ops/$part.$name
    TRAINCTL_OP_CASES=$families timeout "${LIMIT:-290}" "$@" > $log 2>&1
    local rc=$?
    echo "$name: rc $rc, $((SECONDS - began)) s, $(grep -a "test cases:\|ERROR SUMMARY\|RACECHECK SUMMARY" $log | tail -2 | tr '\n' ' ')"
    grep -a "^[0-9.]* s: " $log | sort -rn | head -3
    [ $rc = 0 ] || [ $rc = 77 ] || tail -c 1500 $log; } &  # 77: no family has rows for it
}

{
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader
case $part in
cases)
  [ $# -gt 0 ] || set -- "${slow[@]}"
  for f in "$@"; do
    for w in "${!walks[@]}"; do start $f.$w $f $tests -tc="${walks[$w]}"; done
    [ $f != conv2d ] || { start conv2d.products $f $tests -tc="matrix products on*"; start conv2d.networks $f $tests -tc="$conv"; }
  done ;;
rest)
  # Processes that share a GPU take turns, so a few of them, each with its share of the families.
  all=$(IFS=,; echo "${walks[*]}") gpus=$(nvidia-smi -L | wc -l) groups=${GROUPS_OF_FAMILIES:-12}
  for ((g = 0; g < groups; g++)); do
    start rest.$g "$(tr , '\n' <<< "$rest" | awk -v g=$g -v n=$groups 'NR % n == g' | paste -sd,)" \
      env CUDA_VISIBLE_DEVICES=$((g % gpus)) $tests -tc="$all"
  done
  start rest.alone "$rest" $tests -tce="$all,$conv" ;;
sanitize)
  check="compute-sanitizer --error-exitcode 9 --print-limit 20"
  start conv_library conv2d $check --tool memcheck $tests -tc="matrix products on*"
  start conv_race conv2d env TRAINCTL_CUDA_LIBRARY_PATH=/nowhere $check --tool racecheck $tests -tc="so do some*"
  start conv_own conv2d env TRAINCTL_CUDA_LIBRARY_PATH=/nowhere $check --tool memcheck $tests -tc="matrix products on*"
  start norm_memory batch_norm $check --tool memcheck $tests -tc="a forward*,backward*,a CUDA kernel run twice*"
  start norm_race batch_norm $check --tool racecheck $tests -tc="a CUDA kernel run twice*,kernels*"
  start attention_memory attention,rotary $check --tool memcheck $tests -tc="a forward*,a CUDA kernel run twice*" ;;
race)
  call() {  # NAME SHAPES ATTRS [VARIABLE=VALUE]: one op, in bf16
    local name=$1 shapes=$2 attrs=$3 tool; shift 3
    for tool in memcheck racecheck; do
      start $name.$tool - env "$@" compute-sanitizer --error-exitcode 9 --print-limit 20 --tool $tool $at/bin/trainctl bench op ${name%%.*} \
        --device cuda --dtype bf16 --repeat 1 --shape $shapes --attrs $attrs
    done
  }
  own=TRAINCTL_CUDA_LIBRARY_PATH=/nowhere
  call conv2d 2x24x13x11,40x24x3x3 groups=1 $own
  call conv2d_input_grad 2x40x13x11,40x24x3x3 size=[13,11] $own
  call conv2d_weight_grad 2x24x13x11,2x40x13x11 groups=1 $own
  call conv2d_weight_grad.last 2x13x11x24,2x13x11x40 channels_last=true $own
  call attention_grad.causal 2x300x128,2x300x384,2x300x128,2x2x1x300 head_dim=64,causal=true
  call attention_grad.grouped 1x200x192,1x200x320,1x200x192,1x1x3x200 head_dim=64,group=3,causal=false
  call attention_grad.one_pass 1x300x256,1x300x512,1x300x256,1x1x2x300 head_dim=128,group=2,causal=true ;;
esac
wait
} 2>&1 | tee "$out/ops_$part.log"
