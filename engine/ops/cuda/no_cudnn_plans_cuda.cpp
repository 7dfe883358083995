// For a program that is built without NVIDIA's front end of cuDNN, and for the emulated GPU.
#include "engine/ops/cuda/cudnn_plans.h"

namespace trainctl::cuda {

const std::string& cudnn_fault() {
  static const std::string fault = "this program was built without cuDNN's front end (./bootstrap fetches it)";
  return fault;
}

CudnnPlanPtr cudnn_plan(const CudnnAttention&) { return nullptr; }
CudnnPlanPtr cudnn_plan(const CudnnConvolution&) { return nullptr; }

}  // namespace trainctl::cuda
