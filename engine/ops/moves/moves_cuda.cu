// Moves of whole tensors on the device: kernels that only compiled programs use.
#include "engine/ops/cuda_kernels.h"
#include "engine/ops/launch_cuda.h"

namespace trainctl {

CudaKernel prepare_zero_cuda(const CudaKernelCall& call) {
  void* out = call.out[0].data;
  const auto bytes = static_cast<size_t>(call.out[0].size() * byte_size(call.out[0].dtype));
  return [=](CudaStream stream) { cuda_check(cudaMemsetAsync(out, 0, bytes, stream), "zero"); };
}

}  // namespace trainctl
