// y[t, c] = 1 where c = ids[t], else 0, for this rank's classes.
#include <algorithm>
#include <string>

#include "engine/base/error.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

CpuKernel prepare_one_hot(const KernelCall& call) {
  const TensorArg& out = call.out[0];
  return [ids = call.in[0].as<int32_t>(), n = call.in[0].size(), y = out.as<float>(), classes = out.shape.back(),
          first = out.offset.back(), all = out.global_shape.back()] {
    std::fill_n(y, n * classes, 0.0f);
    for (int64_t t = 0; t < n; ++t) {
      if (ids[t] < 0 || ids[t] >= all) {
        throw EnvError("one_hot: the data contains class " + std::to_string(ids[t]) + ", but the classes are 0 to " +
                       std::to_string(all - 1) + "\n  set classes to a number greater than the largest class");
      }
      const int64_t place = ids[t] - first;
      if (place >= 0 && place < classes) y[t * classes + place] = 1.0f;
    }
  };
}

}  // namespace

extern const CpuKernels one_hot_cpu = {{"one_hot", prepare_one_hot}};

}  // namespace trainctl
