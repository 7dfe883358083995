#!/bin/bash
# Whole networks on one GPU: speed and memory beside PyTorch compiled, bf16 beside fp32. Packed by pack.sh.
#
#   networks.sh warm                 1 min    compiles the peers once, so that `speed` finds them in PyTorch's cache
#   networks.sh speed [NETWORK …]    1 min a network    two rounds each, in turn with the compiled peer, and with llm.c's
#                                    train_gpt2cu if pack.sh was given that as a peer; ROUNDS and STEPS change how much,
#                                    SETS="gradient_precision=bf16 …" trainctl's job
#   networks.sh profile [NETWORK …]  20 s a network     the step by part, each beside its limit
#   networks.sh follow [NET:BATCH …] 3 min    the loss of bf16, tf32 and fp32 over 100 steps of new samples, GPT-2 124M and ResNet-50
set -uo pipefail
part=${1:?warm, speed, profile or follow}; shift
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
follow=("$@"); [ ${#follow[@]} -gt 0 ] || follow=(gpt2:8 resnet50:256)
networks=("$@"); [ ${#networks[@]} -gt 0 ] || networks=(gpt2 gpt2_350m llama resnet50)

compare_losses() {  # of tf32 and bf16 with fp32: at step 100, in the mean of the last 10 steps, and at the worst step
  python3 - "$1" <<'P'
import json, sys
losses = {}
for p in ("fp32", "tf32", "bf16"):
    rows = [json.loads(line) for line in open(f"{sys.argv[1]}_{p}/1/metrics.jsonl")]
    losses[p] = [r["loss"] for r in rows if "step" in r and "loss" in r]
    assert len(losses[p]) == 100, f"{p}: {len(losses[p])} steps"
    off = [100 * abs(loss / exact - 1) for loss, exact in zip(losses[p], losses["fp32"])]
    mean = 100 * abs(sum(losses[p][-10:]) / sum(losses["fp32"][-10:]) - 1)
    print("%s: %.4f to %.4f, off by %.3f %% at step 100, %.3f %% in the mean of the last 10, at most %.3f %% (step %d)" % (
        p, losses[p][0], losses[p][-1], off[-1], mean, max(off), off.index(max(off)) + 1))
P
}

{
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader
case $part in
warm)
  for n in "${networks[@]}"; do
    LIMIT=150 run python3 -c "
import sys, subprocess; sys.path.insert(0, 'tests/bench'); import networks
_, batch, _, peer, sizes, _ = networks.NETWORKS['$n']
sys.exit(subprocess.run([sys.executable, 'tests/bench/networks_torch.py', peer, '--device', 'cuda', '--compile', '--batch', str(batch), '--steps', '4',
                         *(w for k, v in sizes.items() for w in ('--' + k, str(v)))]).returncode)" &
  done; wait ;;
speed)
  peers=()
  if [ -e peers/train_gpt2cu ]; then
    printf '#!/bin/sh\nLD_LIBRARY_PATH=$TRAINCTL_CUDA_LIBRARY_PATH exec %s "$@"\n' "$at/peers/train_gpt2cu" > $at/llmc.sh
    chmod +x $at/llmc.sh; peers=(--llmc $at/llmc.sh)
  fi
  for n in "${networks[@]}"; do
    LIMIT=200 run python3 tests/bench/networks.py bin/trainctl "$n" --device cuda --rounds "${ROUNDS:-2}" ${STEPS:+--steps "$STEPS"} --no-eager \
      --python python3 "${peers[@]}" ${SETS:+$(printf -- "--set %s " $SETS)}
  done ;;
profile)
  for n in "${networks[@]}"; do
    sets=$(python3 -c "
import sys; sys.path.insert(0, 'tests/bench'); import networks
job, batch, _, _, _, sets = networks.NETWORKS['$n']
print(job, f'dataset.batch={batch}', *sets)")
    LIMIT=90 run bin/trainctl run $sets $one ${SETS:-} train.steps=20 train.log_every=20 launch.log_dir=$at/profile_$n --profile
  done ;;
follow)
  for job in "${follow[@]}"; do
    name=${job%:*}
    for p in fp32 tf32 bf16; do
      run bin/trainctl run templates/$name.yaml $one precision=$p launch.timeout=300 dataset.batch=${job#*:} dataset.samples=$((100 * ${job#*:})) \
        train.steps=100 train.log_every=1 launch.log_dir=$at/follow_${name}_$p > $at/follow_${name}_$p.log 2>&1 || tail -20 $at/follow_${name}_$p.log
    done
    compare_losses $at/follow_$name
  done ;;
esac
} 2>&1 | tee "$out/networks_$part.log"
