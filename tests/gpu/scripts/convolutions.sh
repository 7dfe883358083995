#!/bin/bash
# Checks of convolutions and attention on a machine with one GPU: correctness, memory, speed beside a peer.
#
#   here, in the checkout that goes to that machine (built: ninja -C build/release trainctl test_op_cases_cuda):
#     bash tests/gpu/scripts/convolutions.sh pack PEER_resnet.py          # writes .gpu/ (about 35 MB), ignored by git
#   there, with carry [".gpu"] (one call each; 1 to 4 in this order; times are estimates, nothing here was run on a GPU):
#     1  bash .gpu/gpu_conv.sh resnet    # 3 min   the template starts, trains, same bits; then beside PyTorch
#     2  bash .gpu/gpu_conv.sh ops       # 3-5 min op cases attention, rotary, conv2d, pools on cuDNN
#     3  bash .gpu/gpu_conv.sh own       # 1-2 min the same convolutions in the engine's own kernels (no cuDNN to find)
#     4  bash .gpu/gpu_conv.sh memcheck  # 3-5 min compute-sanitizer memcheck, racecheck
#     5  bash .gpu/gpu_conv.sh llama     # 2 min   Llama and GPT-2 beside PyTorch
#     6  bash .gpu/gpu_conv.sh follow    # 2 min   resnet50 bf16 and fp32, 100 steps, last losses
# timeout_s 600 each. Every part writes its log to $OUT too. `resnet` and `ops` first: they fill and show the file of
# kept choices.
set -uo pipefail
part=${1:?pack, resnet, ops, own, memcheck, llama or follow}

if [ "$part" = pack ]; then
  set -e
  to=.gpu; rm -rf $to; mkdir -p $to/lib
  grep -qx '/.gpu/' "$(git rev-parse --git-common-dir)/info/exclude" || echo '/.gpu/' >> "$(git rev-parse --git-common-dir)/info/exclude"
  for b in trainctl test_op_cases_cuda; do strip -o $to/$b build/release/bin/$b; done
  # the libraries that `./bootstrap install` puts into lib/, under the names that the binaries look for
  ldd build/release/bin/{trainctl,test_op_cases_cuda} | awk '$3 ~ /^\// {print $3}' | sort -u |
    grep -vE '/lib(c|m|dl|rt|pthread|resolv)\.so|ld-linux|libcuda|libnvidia' | while read -r f; do cp -L "$f" $to/lib/; done
  cp -r templates tests/bench $to/
  cp "${2:?the peer, resnet.py}" $to/peer_resnet.py
  cp "${BASH_SOURCE[0]}" $to/gpu_conv.sh
  (cd $to && tar c trainctl test_op_cases_cuda lib | xz -1 -T0 > binaries.tar.xz && rm -rf trainctl test_op_cases_cuda lib)
  du -sh $to; exit 0
fi

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
at=/tmp/gpu_conv; out=${OUT:-/tmp}
if [ ! -e $at/done ]; then mkdir -p $at/bin && tar xJf "$here/binaries.tar.xz" -C $at && mv $at/trainctl $at/bin/ && cp -r "$here/templates" "$here/bench" $at/ && touch $at/done; fi
mkdir -p $at/tests && [ -e $at/tests/bench ] || mv $at/bench $at/tests/bench   # networks.py finds templates/ two folders up
export LD_LIBRARY_PATH=$at/lib
libs=$(python3 - <<'P'
import glob, os, site, sys
roots = {os.path.dirname(os.path.dirname(__import__("torch").__file__)), *site.getsitepackages()}
print(":".join(d for r in roots for d in glob.glob(r + "/nvidia/*/lib")))
P
)
export TRAINCTL_CUDA_LIBRARY_PATH=$libs
tests=$at/test_op_cases_cuda
one="launch.device=cuda launch.ranks=1 parallel.mode=stand_alone"
run() { echo "--- $*"; timeout "${LIMIT:-500}" "$@"; echo "rc $?"; }
kept() { for f in ~/.cache/trainctl/convolutions/*; do [ -e "$f" ] && echo "$f: $(grep -c . "$f") choices; ways:" && awk 'NF == 2 {split($2, a, ":"); n[a[1]]++} END {for (w in n) print "   ", w, n[w]}' "$f"; done; }

{
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader
case $part in
resnet)
  cd $at
  for i in 1 2; do  # the first start measures, the second reads the file
    run bin/trainctl run templates/resnet50.yaml $one train.steps=60 train.log_every=20 train.sink_steps=5 launch.log_dir=$at/resnet$i
    grep -h "conv2d\|convolution\|attention" $at/resnet$i/1/rank.0/stderr
    cat $at/resnet$i/1/rank.0/start_up.json 2>/dev/null | tr -d '\n' | cut -c1-1500; echo
  done
  # same bits: the losses of the runs must be equal to the last digit (the first may differ if it measured; then run a third)
  for i in 1 2; do grep -h '"loss"' $at/resnet$i/1/metrics.jsonl | tail -1 | cut -c1-200; done
  kept
  run bin/trainctl plan templates/resnet50.yaml $one | sed -n '/memory a rank/,/^$/p'
  LIMIT=200 run python3 tests/bench/networks.py bin/trainctl resnet50 --device cuda --rounds 2 --python python3
  LIMIT=120 run python3 "$here/peer_resnet.py" 256 1 ;;
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
llama)
  cd $at
  LIMIT=280 run python3 tests/bench/networks.py bin/trainctl llama gpt2 --device cuda --rounds 2 --python python3 ;;
follow)
  cd $at
  for p in bf16 fp32; do
    run bin/trainctl run templates/resnet50.yaml $one precision=$p dataset.batch=64 train.steps=100 train.log_every=100 launch.log_dir=$at/follow_$p
    grep -h "conv2d" $at/follow_$p/1/rank.0/stderr
    grep -h '"loss"' $at/follow_$p/1/metrics.jsonl | tail -3 | cut -c1-160
  done
  python3 - $at <<'P'
import json, sys
last = {p: [r["loss"] for r in map(json.loads, open(f"{sys.argv[1]}/follow_{p}/1/metrics.jsonl")) if "step" in r and "loss" in r][-10:] for p in ("bf16", "fp32")}
mean = {p: sum(v) / len(v) for p, v in last.items()}
print(mean, "bf16 is off by %.2f %%" % (100 * abs(mean["bf16"] / mean["fp32"] - 1)))
P
  ;;
esac
} 2>&1 | tee "$out/gpu_conv_$part.log"
