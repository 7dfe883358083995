// y[.., n, ..] = x[.., n, ..] + b[n] along attr dim.  db[n] = sum of dy over the other dims. Uses the broadcast kernels
// of add and sum_to.
#include "engine/ops/add_bias/bias_shape.h"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {
namespace {

CudaKernel prepare_add_bias(const CudaKernelCall& call) {
  return find_cuda_kernel("add")->prepare(with_broadcast_bias(call));
}
CudaKernel prepare_bias_grad(const CudaKernelCall& call) {
  return find_cuda_kernel("sum_to")->prepare(with_broadcast_sum(call));
}

}  // namespace

extern const CudaKernels add_bias_cuda = {{"add_bias", prepare_add_bias, kTakesF16},
                                          {"bias_grad", prepare_bias_grad, kTakesF16}};

}  // namespace trainctl
