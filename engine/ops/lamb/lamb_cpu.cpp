// The update of LAMB (lamb_rule.h) on a CPU, for the parameters of a bucket.
#include "engine/ops/cpu/layerwise_cpu.h"
#include "engine/ops/lamb/lamb_rule.h"

namespace trainctl {
namespace {

CpuKernel prepare_lamb_update(const KernelCall& call) { return cpu::prepare_layerwise<2>(call, Lamb::of(call.attrs)); }

}  // namespace

extern const CpuKernels lamb_cpu = {{"lamb_update", prepare_lamb_update}};

}  // namespace trainctl
