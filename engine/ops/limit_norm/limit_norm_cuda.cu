// The median of recent gradient norms (train.on_spike), in one block: each thread finds the ranks of some norms.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/map_cuda.cuh"
#include "engine/ops/limit_norm/limit_norm_rule.h"

namespace trainctl {
namespace {

constexpr int kLimitThreads = 128;

/// Compares the gradient norm with the mean or the median of the last norms (NormRing) and applies the limit. One
/// block.
__global__ void __launch_bounds__(kLimitThreads)
    limit_norm(float* squared_norm, NormRing ring, NormLimit limit, bool is_mean) {
  wait_for_kernel_before();
  let_next_kernel_start();
  __shared__ float middle[2];
  const int count = ring.count();
  for (int i = static_cast<int>(threadIdx.x); i < count && !is_mean; i += kLimitThreads) {
    const int rank = ring.rank_of(i);
    if (rank == (count - 1) / 2) middle[0] = ring.norms()[i];
    if (rank == count / 2) middle[1] = ring.norms()[i];
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  double usual = 0;
  if (is_mean) {
    for (int i = 0; i < count; ++i) usual += ring.norms()[i];
    usual /= count > 0 ? count : 1;
  } else if (count > 0) {
    usual = (static_cast<double>(middle[0]) + middle[1]) / 2;
  }
  limit.apply(squared_norm, static_cast<float>(usual), ring);
}

CudaKernel prepare_limit_norm(const CudaKernelCall& call) {
  const NormRing ring{call.out[1].as<float>(), static_cast<int>(call.out[1].size()) - 2};
  const NormLimit limit_of{static_cast<float>(call.attrs.number("limit")),
                           static_cast<int>(call.attrs.integer("least")), GradientScale::of(call)};
  return [=, norm = call.out[0].as<float>(), is_mean = call.attrs.flag("mean")](CudaStream stream) {
    launch(limit_norm, 1, kLimitThreads, 0, stream, "limit_norm", norm, ring, limit_of, is_mean);
  };
}

}  // namespace

extern const CudaKernels limit_norm_cuda = {{"limit_norm", prepare_limit_norm}};

}  // namespace trainctl
