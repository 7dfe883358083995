#!/bin/bash
# Checks of batch_norm's own kernels on a machine with one GPU. Packed by `pack.sh test_op_cases_cuda`; there:
#
#   norms.sh ops       2 min    op cases of batch_norm, fused steps included
#   norms.sh memcheck  3-5 min  compute-sanitizer memcheck, racecheck
#   norms.sh times     2 min    kernels beside PyTorch's batch_norm + add + relu, forward and backward
# Every part writes its log to $OUT too.
set -uo pipefail
part=${1:?ops, memcheck or times}

source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
tests=$at/bin/test_op_cases_cuda
export TRAINCTL_OP_CASES=batch_norm

{
nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader
case $part in
ops) run $tests -d ;;
memcheck)
  check="compute-sanitizer --error-exitcode 9 --print-limit 20"
  LIMIT=300 run $check --tool memcheck $tests -d
  LIMIT=250 run $check --tool racecheck $tests -d -tc="a CUDA kernel run twice*,kernels*" ;;
times)
  # ResNet-50's shapes at batch 256, channels last, bf16. The kernels alone, without what compile() fuses into them:
  # `bench op` knows the plain forms. The step's profile shows the fused ones: `trainctl run` with a profile.
  for s in 256x112x112x64 256x56x56x64 256x56x56x256 256x28x28x512 256x14x14x1024 256x7x7x2048; do
    c=${s##*x}
    run $at/bin/trainctl bench op batch_norm_mean_var --device cuda --dtype bf16 --shape $s --attrs dim=3
    run $at/bin/trainctl bench op batch_norm --device cuda --dtype bf16 --shape $s,$c,$c,$c,$c --attrs dim=3
    run $at/bin/trainctl bench op batch_norm_grad_stats --device cuda --dtype bf16 --shape $s,$s,$c,$c --attrs dim=3
    run $at/bin/trainctl bench op batch_norm_grad --device cuda --dtype bf16 --shape $s,$s,$c,$c,$c,$c,$c --attrs dim=3
  done
  python3 - <<'P'
import torch, torch.nn.functional as F
torch.backends.cudnn.benchmark = True
def time(f):
    for _ in range(5): f()
    ms = []
    for _ in range(30):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record(); f(); b.record(); b.synchronize(); ms.append(a.elapsed_time(b))
    ms.sort(); return "%.3f ms (%.3f .. %.3f)" % (ms[15], ms[3], ms[27])
for n, h, c in ((256, 112, 64), (256, 56, 64), (256, 56, 256), (256, 28, 512), (256, 14, 1024), (256, 7, 2048)):
    image = lambda: torch.randn(n, c, h, h, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    x, r, dy = image().requires_grad_(), image().requires_grad_(), image()
    w, b = (torch.ones(c, device="cuda", requires_grad=True) for _ in range(2))
    norm = lambda x, w, b: F.batch_norm(x, None, None, w, b, True)
    forms = {"norm": norm, "norm+relu": lambda x, w, b: F.relu(norm(x, w, b)),
             "norm+add+relu": lambda x, w, b: F.relu(norm(x, w, b) + r)}
    for name, plain in forms.items():
        for kind, f in (("eager", plain), ("compiled", torch.compile(plain))):
            print(n, h, c, name, kind, "forward", time(lambda: f(x, w, b)),
                  "both", time(lambda: f(x, w, b).backward(dy)), flush=True)
P
  ;;
esac
} 2>&1 | tee "$out/norms_$part.log"
