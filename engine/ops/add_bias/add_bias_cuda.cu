// y[.., n] = x[.., n] + b[n].  db[n] = sum over the leading dims of dy. Both are broadcasting's.
#include "engine/ops/cuda_kernels.h"

namespace trainctl {

CudaKernel prepare_add_bias_cuda(const CudaKernelCall& call) { return prepare_add_cuda(call); }
CudaKernel prepare_bias_grad_cuda(const CudaKernelCall& call) { return prepare_sum_to_cuda(call); }

}  // namespace trainctl
