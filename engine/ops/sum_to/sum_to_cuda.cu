// Undoes a broadcast: y = sum of x over the dims in which y's shape is 1 or missing. With the attr descend it is a
// bias's gradient fused with its SGD step.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/sums_cuda.cuh"

namespace trainctl {
namespace {

CudaKernel prepare_sum_to(const CudaKernelCall& call) {
  return prepare_plain_sum(call, cpu::broadcast_strides(call.out[0].shape, call.in[0].shape), 1.0, "sum_to");
}

}  // namespace

extern const CudaKernels sum_to_cuda = {{"sum_to", prepare_sum_to, kTakesF16}};

}  // namespace trainctl
