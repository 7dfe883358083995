// Labels i32 [rows] to target probabilities [rows, classes], by the formula of class_targets.h.
#include "engine/ops/class_targets/class_targets.h"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/data_check_cuda.cuh"
#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl {
namespace {

constexpr int kClassTargetsThreads = 256;

__global__ void class_targets_kernel(ClassTargets targets, const int32_t* labels, float* y, int64_t size,
                                     int64_t classes) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kClassTargetsThreads + threadIdx.x;
  if (i >= size) return;
  const int32_t label = labels[i / classes];
  if ((!targets.ignores || label != targets.ignored) && (label < 0 || label >= classes))
    data_is_wrong("the loss: the data contains a class that is out of range");
  y[i] = targets.at(label, i % classes, classes);
}

CudaKernel prepare_class_targets(const CudaKernelCall& call) {
  return [labels = call.in[1].as<const int32_t>(), y = call.out[0].as<float>(), size = call.out[0].size(),
          classes = call.out[0].shape.back(), targets = ClassTargets::of(call.attrs)](CudaStream stream) {
    if (size == 0) return;
    launch(class_targets_kernel, static_cast<unsigned>(ceil_div(size, kClassTargetsThreads)), kClassTargetsThreads, 0,
           stream, "class_targets", targets, labels, y, size, classes);
  };
}

}  // namespace

extern const CudaKernels class_targets_cuda = {{"class_targets", prepare_class_targets}};

}  // namespace trainctl
