// The outer weights of parallel.local_steps, from which replicas start each round of local steps.
#include "engine/train/trainer/outer_weights.h"

#include <algorithm>
#include <vector>

#include "engine/ops/optimizer_def.h"
#include "engine/runtime/stored_ranges.h"

namespace trainctl {

void begin_outer_weights(const Program& program, Executor& executor) {
  const std::vector<StoredRange> ranges = stored_ranges(program);
  std::vector<std::byte> values;
  for (const StoredRange& outer : ranges) {
    if (outer.slot != kAverageSlot) continue;
    for (const StoredRange& weights : ranges) {
      if (weights.variable != outer.variable || weights.slot != kWeightSlot || weights.is_copy) continue;
      const int64_t begin = std::max(outer.first, weights.first),
                    end = std::min(outer.first + outer.count, weights.first + weights.count);
      if (begin >= end) continue;
      values.resize(static_cast<size_t>((end - begin) * byte_size(DType::f32)));
      const auto bytes = static_cast<int64_t>(values.size());
      executor.read(weights.offset + (begin - weights.first) * byte_size(DType::f32), values.data(), bytes);
      executor.write(outer.offset + (begin - outer.first) * byte_size(DType::f32), values.data(), bytes);
    }
  }
}

}  // namespace trainctl
