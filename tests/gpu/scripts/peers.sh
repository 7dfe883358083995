#!/bin/bash
# Fine-tuning, long sequences, mixtures of experts, images, generation and kernels beside PyTorch, on a host with two GPUs. Packed by pack.sh.
#
#   peers.sh all                9 min   all parts below: two at a time where a part needs one GPU
#   peers.sh lora|qlora|images|kernels|generate   2 min each, on one GPU;  context|experts: 2 min each, on two
#   peers.sh profile            1 min   the steps of lora and context by part
#   peers.sh methods            1 min   the other ways of attention beside that of context, on two GPUs
# A part that takes longer than LIMIT (150 s) ends; BUDGET (520 s) is that of all, and parts that no longer fit are named.
# Prints a few lines per part; the output of all programs is in $OUT/peers_PART.log.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
export OMP_NUM_THREADS=4 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 TORCHINDUCTOR_COMPILE_THREADS=12 TORCHINDUCTOR_CACHE_DIR=/tmp/inductor
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
py=${PYTHON:-python3} bench=tests/bench folder=$at/llama_8b budget=${BUDGET:-520}
# TINY=1 tries the script on a CPU.
tiny=(); [ -z "${TINY:-}" ] || tiny=(--tiny)
beside=("$py" "$bench/beside_torch.py" bin/trainctl --rounds "${ROUNDS:-1}" "${tiny[@]}")

part() {  # NAME LIMIT COMMAND…
  local name=$1 limit=$2 began=$SECONDS; shift 2
  local left=$((budget - SECONDS)); [ $left -lt 20 ] && { echo "$name: skipped, $left s are left"; return; }
  [ $limit -le $left ] || limit=$left
  timeout "$limit" "$@" > "$out/peers_$name.log" 2>&1
  local rc=$?
  grep -avE "Warning|^W[0-9]{4}|^  return|^$" "$out/peers_$name.log" | cut -c1-400 | tail -n "${LINES_OF_PART:-24}"
  echo "$name: rc $rc, $((SECONDS - began)) s"
}

make_folder() {
  [ -e "$folder/done" ] && return
  local letters; letters=$(mktemp); printf 'a b c d e f g h\n%.0s' {1..50} > "$letters"
  { "$py" $bench/language_peers.py folder "$folder" && bin/trainctl data train-tokenizer "$letters" --vocab 257 -o "$folder" && touch "$folder/done"; } \
    > "$out/peers_folder.log" 2>&1 || tail -3 "$out/peers_folder.log"
}

lora() { part lora "${LIMIT:-170}" "${beside[@]}" lora; }
qlora() {
  make_folder
  part qlora "${LIMIT:-110}" "${beside[@]}" qlora qlora_small --folder "$folder"
}
images() { part images "${LIMIT:-150}" "${beside[@]}" vit unet; }
kernels() {
  part products "${LIMIT:-60}" "$py" $bench/expert_products.py bin/trainctl
  part attention "${LIMIT:-110}" "$py" $bench/attention.py bin/trainctl --device cuda --dtype bf16
}
context() { part context "${LIMIT:-150}" "${beside[@]}" context; }
experts() { part experts "${LIMIT:-150}" "${beside[@]}" experts; }
generate() {  # BATCH …
  make_folder
  part "generate_${1:-}" "${LIMIT:-150}" "$py" $bench/generate.py bin/trainctl "$folder" --batch "${@:-1}"
}

profile_of() {  # NAME JOB SETS…
  LINES_OF_PART=45 part "profile_$1" 60 bin/trainctl run "${@:2}" launch.device=cuda train.steps=8 train.log_every=8 train.checkpoint=none \
    launch.log_dir=$at/profile_$1 --profile
}
profile_lora() { profile_of lora tests/bench/jobs/llama_lora.yaml; }
long=(templates/llama_long.yaml vars.layers=4 vars.heads=32 vars.kv_heads=8 vars.d=4096 vars.hidden=14336 vars.length=32768 launch.ranks=2)
plan_of_long() { echo "parallel={mode: semi_auto_parallel, context: 2, context_method: $1, recompute: [], head_pieces: 4, optimizer_shard: $2}"; }
methods() {  # each way of attention, beside that of the part context
  local method
  for method in gather ulysses; do
    part "context_$method" 60 "${beside[@]}" context --only trainctl --set "$(plan_of_long $method 1)"
  done
  part context_whole 60 "${beside[@]}" context --only trainctl --set "$(plan_of_long ring 0)"
}
profile() { profile_lora; profile_of context "${long[@]}" "$(plan_of_long ring 1)"; }

all() {
  { export CUDA_VISIBLE_DEVICES=0; lora; qlora; } &
  { export CUDA_VISIBLE_DEVICES=1; images; kernels; } &
  wait
  context
  experts
  make_folder
  { export CUDA_VISIBLE_DEVICES=0; generate 32; } &
  { export CUDA_VISIBLE_DEVICES=1; generate 1; } &
  wait
}

{
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader
for name in "${@:-all}"; do
  case $name in
    all | lora | qlora | images | kernels | context | experts | methods | profile) $name ;;
    generate) generate 1 32 ;;
    *) echo "no part $name" ; exit 2 ;;
  esac
done
} 2>&1 | tee "$out/peers.log"
