// Finds by measurement the fastest of several ways to compute the same thing.
#include "engine/ops/cuda/fastest.h"

namespace trainctl::cuda {

size_t fastest(size_t candidates, const std::function<float(size_t)>& measure) {
  size_t best = 0;
  float best_time = -1;
  for (size_t i = 0; i < candidates; ++i) {
    const float time = measure(i);
    // A later suggestion must be faster by more than noise; otherwise the library's order decides. An algorithm that
    // wins a trial by 1 % may take more power, which slows long runs of large products by 3 %.
    if (time < 0 || (best_time >= 0 && time > 0.98f * best_time)) continue;
    best = i;
    best_time = time;
  }
  return best;
}

}  // namespace trainctl::cuda
