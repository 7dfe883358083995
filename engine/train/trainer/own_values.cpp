// Reads the elements of a stored range that checkpoints take from this rank, block by block, as f32.
#include "engine/train/trainer/own_values.h"

#include <algorithm>
#include <vector>

#include "engine/base/error.h"
#include "engine/graph/half.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

constexpr int64_t kOwnBlock = 1 << 20;  // elements that are in host memory at a time

}  // namespace

void for_each_own_block(const StoredRange& range, Executor& executor,
                        const std::function<void(int64_t first, std::span<const float> values)>& use, float factor) {
  const int64_t size = byte_size(range.dtype);
  std::vector<uint16_t> halves;
  std::vector<float> values;
  for (int64_t at = 0; at < range.own_count; at += kOwnBlock) {
    const int64_t elements = std::min(kOwnBlock, range.own_count - at), offset = range.own_offset() + at * size;
    values.resize(static_cast<size_t>(elements));
    if (is_half(range.dtype)) {
      halves.resize(values.size());
      executor.read(offset, halves.data(), elements * size);
      halves_to_floats(range.dtype, halves.data(), elements, values.data());
    } else {
      check(range.dtype == DType::f32, "weights, states and gradients are floats");
      executor.read(offset, values.data(), elements * size);
    }
    if (factor != 1)
      for (float& value : values) value *= factor;
    use(range.own_first + at, values);
  }
}

float gradient_factor(const Program& program, Executor& executor) {
  StepScalars scalars;
  executor.read(program.scalars_offset, &scalars, sizeof scalars);
  return scalars.loss_scale > 0 ? 1 / scalars.loss_scale : 1;  // 0: no step has run
}

}  // namespace trainctl
