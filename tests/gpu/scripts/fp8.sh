#!/bin/bash
# precision: fp8 on one GPU of compute capability 9.0. Packed by `pack.sh test_op_cases_cuda`.
#
#   fp8.sh cases                    1 min   the kernels against the CPU: quantise, scales of tensors, matmul_fp8, gelu
#   fp8.sh follow [SIZE …]          4 min   the losses of tf32, fp8 and fp8 in the MLPs alone beside bf16 over 500 steps of text: 124m, wide
#   fp8.sh speed [SIZE …]           4 min   ms a step, tokens/s and memory, fp8 beside bf16, in turn: 774m, 1558m
#   fp8.sh profile [SIZE …]         1 min   a step of fp8 by part
#   fp8.sh recipes                  3 min   GPT-2 124M, 60 steps: losses and ms per step of bf16 and of each recipe; on two GPUs beside one
#   fp8.sh all                      9 min   cases, follow and speed
set -uo pipefail
part=${1:?cases, follow, speed, recipes, profile or all}; shift
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"

declare -A sizes=([124m]="12 12 768" [350m]="24 16 1024" [774m]="36 20 1280" [1558m]="48 25 1600" [wide]="6 16 2048")
sets_of() { read -r layers heads d <<< "${sizes[$1]}"; echo "vars.layers=$layers vars.heads=$heads vars.d=$d"; }

text_job() {  # GPT on the bytes of Python's own library: about 5 MB of text
  local text; text=$(python3 -c "import sysconfig; print(sysconfig.get_paths()['stdlib'])")
  sed -e 's/^  type: random.*/  type: text/' -e "s#^  shape: .*#  path: '$text/*.py'#" \
    -e 's/^  dtype: i32/  length: "${length}"/' -e '/^  label_shape\|^  label_dtype\|^  classes/d' templates/gpt2.yaml > $at/fp8_text.yaml
}

compare_losses() {  # FOLDER: each beside bf16, and tf32 too, which says how far bf16 itself is off
  python3 - "$1" <<'P'
import json, sys
losses = {}
for p in ("bf16", "tf32", "fp8", "fp8_mlp"):
    rows = [json.loads(line) for line in open(f"{sys.argv[1]}_{p}/1/metrics.jsonl")]
    losses[p] = [r["loss"] for r in rows if "step" in r and "loss" in r]
n = min(map(len, losses.values()))
print("%d steps, bf16 %.4f to %.4f" % (n, losses["bf16"][0], losses["bf16"][-1]))
for p in ("tf32", "fp8", "fp8_mlp"):
    off = lambda width: [(sum(losses[p][i:i + width]) / sum(losses["bf16"][i:i + width]) - 1) * 100 for i in range(0, n - width + 1, width)]
    tens, fifties, last = off(10), off(50), sum(losses[p][-50:]) / sum(losses["bf16"][-50:]) - 1
    worst = max(range(len(tens)), key=lambda i: abs(tens[i]))
    print("  %s ends at %.4f; means of 10 steps are off by %.2f %% at most (steps %d to %d), of 50 by %.2f %% at most, the last 50 by %.2f %%" % (
        p, losses[p][-1], max(map(abs, tens)), worst * 10, worst * 10 + 9, max(map(abs, fifties)), 100 * last))
P
}

follow() {
  text_job
  declare -A runs=([bf16]=precision=bf16 [tf32]=precision=tf32 [fp8]=precision=fp8 [fp8_mlp]="precision=fp8 fp8.layers=['h.*.up','h.*.down']")
  for size in "$@"; do
    for p in bf16 tf32 fp8 fp8_mlp; do
      run bin/trainctl run $at/fp8_text.yaml $one ${runs[$p]} $(sets_of $size) vars.vocab=256 vars.length=512 dataset.batch=8 train.steps=500 \
        train.log_every=1 parallel.recompute=[] launch.log_dir=$at/fp8_${size}_$p > $at/fp8_${size}_$p.log 2>&1 || tail -20 $at/fp8_${size}_$p.log
    done
    echo "$size: $(compare_losses $at/fp8_$size)"
  done
}

speed() {
  for size in "$@"; do
    for round in 1 2; do
      for p in bf16 fp8; do
        log=$at/fp8_speed_${size}_$p
        timeout 120 bin/trainctl run templates/gpt2.yaml $one precision=$p $(sets_of $size) dataset.batch=16 train.steps=25 \
          train.log_every=25 train.sink_steps=5 ${RECOMPUTE-parallel.recompute=[]} launch.log_dir=$log.$round > $log.log 2>&1 || tail -20 $log.log
        python3 - $log.$round "$size $p round $round" <<'P'
import glob, json, statistics, sys
rows = [json.loads(l) for l in open(sorted(glob.glob(sys.argv[1] + "/*/metrics.jsonl"))[-1])]
times = [r["seconds"] for r in rows if "step" in r and "seconds" in r]
s = statistics.median(times[len(times) // 2:])
losses = [r["loss"] for r in rows if "step" in r and "loss" in r]
print("%s: %.1f ms a step, %.0f tokens/s, loss %s" % (sys.argv[2], s * 1e3, 16 * 1024 / s, " to ".join("%.4f" % l for l in losses[:1] + losses[1:][-1:])))
P
      done
    done
    for p in bf16 fp8; do
      bin/trainctl plan templates/gpt2.yaml $one precision=$p $(sets_of $size) ${RECOMPUTE-parallel.recompute=[]} --json |
        python3 -c "import json, sys; r = json.load(sys.stdin); print('$size $p: arena', r['rank_classes'][0]['arena_bytes'] >> 20, 'MiB')"
    done
  done
}

cases() {
  TRAINCTL_OP_CASES=quantise,fp8_scale,matmul,gelu timeout 200 bin/test_op_cases_cuda -d \
    -tc="kernels that only compiled*,every kernel has*,a forward CUDA kernel*,backward CUDA kernels*"
  echo "rc $?"
}

recipe_run() {  # NAME RANKS OVERRIDE …: prints the losses and the median of the last steps
  local log=$at/fp8_recipe_$1_$2 name=$1 ranks=$2; shift 2
  timeout 150 bin/trainctl run templates/gpt2.yaml launch.device=cuda launch.ranks=$ranks parallel.mode=data_parallel "$@" dataset.batch=16 train.steps=60 \
    train.log_every=1 train.checkpoint=none parallel.recompute=[] launch.log_dir=$log > $log.log 2>&1 || tail -15 $log.log
  python3 - $log "$name, $ranks GPUs" $at/fp8_recipe_${name}_1 <<'P'
import glob, json, statistics, sys
def rows_of(folder):
    files = sorted(glob.glob(folder + "/*/metrics.jsonl"))
    return [r for r in map(json.loads, open(files[-1])) if "step" in r and "loss" in r] if files else []
rows, one = rows_of(sys.argv[1]), rows_of(sys.argv[3])
if not rows:
    sys.exit(sys.argv[2] + ": no losses")
s = statistics.median(r["seconds"] for r in rows[len(rows) // 2:])
off = max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(rows, one))
print("%s: %.1f ms per step, loss %.5f to %.5f, at most %.2g from one GPU" % (sys.argv[2], s * 1e3, rows[0]["loss"], rows[-1]["loss"], off))
P
}

recipes() {
  local ranks
  for ranks in 1 $( [ "$(nvidia-smi -L | wc -l)" -gt 1 ] && echo 2 ); do
    recipe_run bf16 $ranks precision=bf16
    for recipe in block tensor delayed; do recipe_run $recipe $ranks precision=fp8 fp8.recipe=$recipe; done
  done
}

profile() {
  for size in "$@"; do
    run bin/trainctl run templates/gpt2.yaml $one precision=fp8 $(sets_of $size) train.steps=40 train.sink_steps=5 parallel.recompute=[] \
      --profile --profile-steps 30-31 launch.log_dir=$at/fp8_profile_$size | tail -60
  done
}

{
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader
case $part in
cases) cases ;;
follow) [ $# -gt 0 ] || set -- 124m wide; follow "$@" ;;
speed) [ $# -gt 0 ] || set -- 774m 1558m; speed "$@" ;;
recipes) recipes ;;
profile) [ $# -gt 0 ] || set -- 774m; profile "$@" ;;
all) cases; follow 124m wide; speed 774m 1558m ;;
esac
} 2>&1 | tee "$out/fp8_$part.log"
