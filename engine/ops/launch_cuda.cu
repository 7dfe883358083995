#include "engine/ops/launch_cuda.h"

namespace trainctl {
namespace {

constexpr int kFirstToWait = 90;  ///< of architectures

__global__ void built_as_all_are() {}

}  // namespace

bool kernels_wait() {
  static const bool wait = [] {
    cudaFuncAttributes attributes{};
    cuda_check(cudaFuncGetAttributes(&attributes, built_as_all_are), "cudaFuncGetAttributes");
    return attributes.ptxVersion >= kFirstToWait;
  }();
  return wait;
}

}  // namespace trainctl
