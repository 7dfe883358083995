#!/bin/bash
# Predicted steps and memory beside measured ones, and the plan that auto_parallel takes beside its rivals. Packed by pack.sh.
#
#   predict.sh calibrate   up to 340 s   measures this machine into $OUT/lab.json; again: continues where it stopped
#   predict.sh one         up to 270 s   23 plans on one GPU: errors, order, intervals, memory (tests/bench/predictions.py --suite one)
#   predict.sh two         up to 300 s   29 plans on two GPUs, two rounds, or ROUNDS
#   predict.sh regret      up to 270 s   the chosen plan and about 90 rivals on two GPUs (tests/bench/regret.py); again: more rounds
#
# `one`, `two` and `regret` need a calibration: that of this machine if it is still there, a lab.json beside this script, or they
# begin with one of 100 s. Figures of what was measured are kept in $OUT as JSON.
set -uo pipefail
part=${1:?calibrate, one, two or regret}; shift
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
begin=$SECONDS
export XDG_CONFIG_HOME=$at/config
lab=$XDG_CONFIG_HOME/trainctl/machines/lab.json
mkdir -p "$(dirname "$lab")"
[ -e "$lab" ] || { [ -e "$here/lab.json" ] && cp "$here/lab.json" "$lab"; }

calibrate() {  # seconds at most: the kernels of the networks that predictions.py runs, of GPTs with fewer blocks
  mkdir -p configs/calibrated
  local jobs=()
  job() { bin/trainctl plan "$2" "${@:3}" $one launch.machine=h200x8 --write "configs/calibrated/$1.yaml" > /dev/null && jobs+=("configs/calibrated/$1.yaml"); }
  job gpt768 templates/gpt2.yaml vars.layers=4 dataset.batch=8
  job gpt1024 templates/gpt2.yaml vars.layers=3 vars.d=1024 vars.heads=16 dataset.batch=16
  job gpt768_fp32 templates/gpt2.yaml vars.layers=4 dataset.batch=8 precision=fp32
  job mlp templates/mlp.yaml 'dataset.shape=[4096]' dataset.batch=4096 dataset.samples=4096 'network[1].units=4096' 'network[3].units=4096'
  job mlp_bf16 configs/calibrated/mlp.yaml precision=bf16
  job lenet configs/lenet.yaml dataset.batch=1000 validation=null 'metrics=[]' "dataset.path=$at/configs/data/mnist"
  LIMIT=$1 run bin/trainctl calibrate "${jobs[@]}" --name lab --device cuda --samples 9 --most 8
  cp "$lab" "$out/lab.json"
}

left() { echo $((${1:-265} - (SECONDS - begin))); }
{
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader
case $part in
calibrate) calibrate 330 ;;
one)
  [ -e "$lab" ] || CUDA_VISIBLE_DEVICES=0 calibrate 110
  CUDA_VISIBLE_DEVICES=0 LIMIT=$(left) run python3 tests/bench/predictions.py bin/trainctl --machine lab --device cuda --suite one --gpus 1 \
    --rounds 2 --seconds 1 --budget $(($(left) - 15)) --json "$out/predicted_one.json" ;;
two)
  [ -e "$lab" ] || calibrate 110
  LIMIT=$(left 295) run python3 tests/bench/predictions.py bin/trainctl --machine lab --device cuda --suite two --gpus 2 \
    --rounds "${ROUNDS:-2}" --seconds 1 --budget $(($(left 295) - 15)) --json "$out/predicted_two.json" ;;
regret)
  [ -e "$lab" ] || calibrate 110
  LIMIT=$(left) run python3 tests/bench/regret.py bin/trainctl templates/gpt2.yaml vars.layers=6 dataset.batch=16 --ranks 2 --device cuda --machine lab \
    --steps 60 --budget $(($(left) - 15)) --json $at/regret.json
  cp $at/regret.json "$out/" ;;
esac
} 2>&1 | tee "$out/predict_$part.log"
