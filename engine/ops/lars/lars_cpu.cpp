// The update of LARS (lars_rule.h) on a CPU, for the parameters of a bucket.
#include "engine/ops/cpu/layerwise_cpu.h"
#include "engine/ops/lars/lars_rule.h"

namespace trainctl {
namespace {

CpuKernel prepare_lars_update(const KernelCall& call) { return cpu::prepare_layerwise<1>(call, Lars::of(call.attrs)); }

}  // namespace

extern const CpuKernels lars_cpu = {{"lars_update", prepare_lars_update}};

}  // namespace trainctl
