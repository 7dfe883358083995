#!/bin/bash
# Whole networks on one GPU: speed and memory beside PyTorch compiled, bf16 beside fp32. Packed by pack.sh.
#
#   networks.sh warm                 1 min    compiles the peers once, so that `speed` finds them in PyTorch's cache
#   networks.sh speed [NETWORK …]    1 min a network    two rounds each, in turn with the compiled peer
#   networks.sh follow               1 min    the loss of bf16 and of fp32 over 100 steps, GPT-2 124M and ResNet-50
set -uo pipefail
part=${1:?warm, speed or follow}; shift
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
networks=("$@"); [ ${#networks[@]} -gt 0 ] || networks=(gpt2 gpt2_350m llama resnet50)

last_losses() {  # of the last 10 of 100 steps, as f32's and bf16's means and how far they are apart
  python3 - "$1" <<'P'
import json, sys
mean = {}
for p in ("fp32", "bf16"):
    rows = [json.loads(line) for line in open(f"{sys.argv[1]}_{p}/1/metrics.jsonl")]
    losses = [r["loss"] for r in rows if "step" in r and "loss" in r]
    mean[p] = sum(losses[-10:]) / 10
    print(p, "first", losses[0], "steps", len(losses))
print(mean, "bf16 is off by %.3f %%" % (100 * abs(mean["bf16"] / mean["fp32"] - 1)))
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
  for n in "${networks[@]}"; do
    LIMIT=200 run python3 tests/bench/networks.py bin/trainctl "$n" --device cuda --rounds "${ROUNDS:-2}" --no-eager --python python3
  done ;;
follow)
  for job in gpt2:8 resnet50:64; do
    name=${job%:*}
    for p in fp32 bf16; do
      run bin/trainctl run templates/$name.yaml $one precision=$p dataset.batch=${job#*:} train.steps=100 train.log_every=100 launch.log_dir=$at/follow_${name}_$p
    done
    last_losses $at/follow_$name
  done ;;
esac
} 2>&1 | tee "$out/networks_$part.log"
