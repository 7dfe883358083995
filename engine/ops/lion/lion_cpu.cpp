// The update of Lion (lion_rule.h) on a CPU, for the elements of a bucket.
#include "engine/ops/cpu/optimizer_cpu.h"
#include "engine/ops/lion/lion_rule.h"

namespace trainctl {
namespace {

CpuKernel prepare_lion_update(const KernelCall& call) { return cpu::prepare_optimizer<1>(call, Lion::of(call.attrs)); }

}  // namespace

extern const CpuKernels lion_cpu = {{"lion_update", prepare_lion_update}};

}  // namespace trainctl
