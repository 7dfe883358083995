#!/bin/bash
# Numbers of whole runs on the GPUs of this machine. Packed by `pack.sh dump_job -- snake.so examples/plugin/job.yaml`, where snake.so is the
# example plugin with its CUDA kernels (docs/plugins.md).
#
#   oracles.sh torch     8 min   the tests that compare CPU runs with PyTorch, transformers and PEFT, on GPUs (on_gpus.py)
#   oracles.sh random    4 min   random jobs, networks, contexts and experts under plans of 1 and 2 ranks; SEED, SECONDS_OF_JOBS
#   oracles.sh jobs      1 min   the jobs of configs/ and the cookbook on a GPU and on the CPU (jobs.py), and the plugin
# A GPU adds in another order than a CPU, so the limits of these tests are 3e-4 here (TRAINCTL_TOLERANCE). AT_ONCE programs run at a time.
# Prints a line per program and the end of the output of those that fail; all logs are in $OUT/oracles_PART.tar.gz.
set -uo pipefail
part=${1:?torch, random or jobs}; shift
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
cp "$here"/*.py $at/
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $(($(nvidia-smi -L | wc -l) - 1)))}
printf '#!/bin/sh\nexec python3 %s/on_gpus.py %s/bin/trainctl "$@"\n' $at $at > $at/bin/on_gpus; chmod +x $at/bin/on_gpus
export TRAINCTL_TOLERANCE=3e-4  # limits.py
logs=$at/oracles_$part; rm -rf $logs; mkdir -p $logs

start() {  # NAME COMMAND…: in the background
  local name=$1; shift
  while [ $(jobs -rp | wc -l) -ge ${AT_ONCE:-6} ]; do wait -n; done  # processes that share a GPU take turns
  { local began=$SECONDS
    ON_GPUS_LOG=$logs/$name.commands timeout "${LIMIT:-480}" "$@" > $logs/$name.log 2>&1
    local rc=$? cuda=0
    [ -e $logs/$name.commands ] && cuda=$(grep -c ^cuda $logs/$name.commands)
    echo "$name: rc $rc, $((SECONDS - began)) s, $cuda runs on GPUs"
    [ $rc = 0 ] || [ $rc = 77 ] || tail -c 900 $logs/$name.log; } &
}

case $part in
torch)
  ours=$at/bin/on_gpus torch=tests/equivalence/torch folders=tests/model_folders
  for g in optimizers averages schedules losses layers recurrent skips; do start training.$g python3 $torch/training.py $ours $g; done
  for g in layers losses sequences dlrm; do start composed.$g python3 $torch/composed.py $ours $g; done
  for g in plateau spikes states fp16; do start stability.$g python3 $torch/stability.py $ours $g; done
  for s in 1 2; do start attention.$s python3 $torch/attention.py $ours --jobs 6 --seed $s; done
  start layers python3 $torch/layers.py $ours
  start experts python3 $torch/experts.py $ours $at/bin/dump_job
  start cookbook python3 $torch/cookbook.py $ours
  start weights python3 $torch/weights.py $ours
  for t in model_folders generate peft adapters distillation; do start $t python3 $folders/${t}_test.py $ours; done ;;
random)
  seconds=${SECONDS_OF_JOBS:-200} seed=${SEED:-$RANDOM}
  start random_jobs python3 tests/random_jobs/random_jobs.py --trainctl bin/trainctl --device cuda --gpus 2 --share 4 --ranks 1,2 --jobs 500 \
    --seconds $seconds --seed $seed --keep $logs/random_jobs.failed
  for s in 1 2; do start context.$s timeout $((seconds + 60)) python3 tests/random_jobs/context.py --trainctl $at/bin/on_gpus --jobs 8 --seed $seed$s; done
  start torch_networks timeout $((seconds + 60)) python3 tests/random_jobs/torch_networks.py --trainctl $at/bin/on_gpus --jobs 30 --seed $seed
  start expert_plans timeout $((seconds + 60)) python3 tests/random_jobs/expert_plans.py --trainctl $at/bin/on_gpus --plans 10 --seed $seed ;;
jobs)
  # The jobs of the checkout, whose data are its files.
  start jobs python3 $at/jobs.py bin/trainctl $(ls "$here"/../configs/*.yaml "$here"/../configs/cookbook/*.yaml |
    grep -vE "allgather|any_program|ddp|bn_matmul|_ps|server")
  if [ -e peers/snake.so ]; then  # row_dot has no CUDA kernel, so snake alone
    cp peers/snake.so .
    sed '/row_dot/d; s/label_shape: \[1\]/label_shape: [24]/; /score:/d; s/type: dense, units: 24, inputs: data/type: dense, units: 24/; s/ranks: 4/ranks: 2/' peers/job.yaml > job.yaml
    start plugin.check bin/trainctl check --plugin ./snake.so
    for device in cpu cuda; do
      start plugin.$device bin/trainctl run job.yaml launch.device=$device train.log_every=8 launch.log_dir=plugin_$device
    done
  fi ;;
esac
wait
tar czf "$out/oracles_$part.tar.gz" -C $at "oracles_$part"
