// Labels i32 [rows] to target probabilities f32 [rows, classes], by the formula of class_targets.h.
#include <string>

#include "engine/base/error.h"
#include "engine/ops/class_targets/class_targets.h"

namespace trainctl {
namespace {

CpuKernel prepare_class_targets(const KernelCall& call) {
  return [labels = call.in[1].as<const int32_t>(), rows = call.in[1].size(), y = call.out[0].as<float>(),
          classes = call.out[0].shape.back(), targets = ClassTargets::of(call.attrs)] {
    for (int64_t row = 0; row < rows; ++row) {
      const int32_t label = labels[row];
      const bool counts = !targets.ignores || label != targets.ignored;
      if (counts && (label < 0 || label >= classes))
        throw EnvError("the loss: the data contains class " + std::to_string(label) + ", but the classes are 0 to " +
                       std::to_string(classes - 1));
      for (int64_t c = 0; c < classes; ++c) y[row * classes + c] = targets.at(label, c, classes);
    }
  };
}

}  // namespace

extern const CpuKernels class_targets_cpu = {{"class_targets", prepare_class_targets}};

}  // namespace trainctl
