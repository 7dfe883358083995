// Replaces cudnn_plans_cuda.cpp in a program that is built without NVIDIA's front end of cuDNN, and on the emulated
// GPU.
#include "engine/base/error.h"
#include "engine/ops/cuda/cudnn_plans.h"

namespace trainctl::cuda {

const std::string& cudnn_fault() {
  static const std::string fault = "this program was built without the cuDNN front end (./bootstrap fetches it)";
  return fault;
}

std::string cudnn_version() { return ""; }

CudnnPlanPtr cudnn_plan(const CudnnAttention&) { return nullptr; }

std::unique_ptr<CudnnEngines> cudnn_engines(const CudnnConvolution&, int64_t) { throw EnvError(cudnn_fault()); }

}  // namespace trainctl::cuda
