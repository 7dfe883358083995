// y[i] = the index of row i in the whole tensor.
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

CpuKernel prepare_row_index(const KernelCall& call) {
  return [y = call.out[0].as<int32_t>(), n = call.out[0].size(), first = call.out[0].offset[0]] {
    for (int64_t i = 0; i < n; ++i) y[i] = static_cast<int32_t>(first + i);
  };
}

}  // namespace

extern const CpuKernels contrastive_cpu = {{"row_index", prepare_row_index}};

}  // namespace trainctl
