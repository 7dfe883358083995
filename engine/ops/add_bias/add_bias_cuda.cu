// y[.., n] = x[.., n] + b[n].  db[n] = sum over the leading dims of dy. Both are broadcasting's.
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {
namespace {

CudaKernel prepare_add_bias(const CudaKernelCall& call) { return prepare_add(call); }
CudaKernel prepare_bias_grad(const CudaKernelCall& call) { return prepare_sum_to(call); }

}  // namespace

extern const CudaKernels add_bias_cuda = {{"add_bias", prepare_add_bias}, {"bias_grad", prepare_bias_grad}};

}  // namespace trainctl
