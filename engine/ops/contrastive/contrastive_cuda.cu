// y[i] = the index of row i in the whole tensor.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl {
namespace {

constexpr int kIndexThreads = 256;

__global__ void __launch_bounds__(kIndexThreads) row_index_kernel(int32_t* y, int64_t n, int64_t first) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kIndexThreads + threadIdx.x;
  if (i < n) y[i] = static_cast<int32_t>(first + i);
}

CudaKernel prepare_row_index(const CudaKernelCall& call) {
  const TensorArg& y = call.out[0];
  if (y.size() == 0) return [](CudaStream) {};
  return [to = y.as<int32_t>(), n = y.size(), first = y.offset[0]](CudaStream stream) {
    const auto blocks = static_cast<unsigned>(ceil_div(n, kIndexThreads));
    launch(row_index_kernel, blocks, kIndexThreads, 0, stream, "row_index", to, n, first);
  };
}

}  // namespace

extern const CudaKernels contrastive_cuda = {{"row_index", prepare_row_index}};

}  // namespace trainctl
