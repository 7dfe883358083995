// See the header.
#include "engine/train/trainer/own_values.h"

#include <algorithm>
#include <vector>

#include "engine/base/error.h"
#include "engine/graph/bf16.h"

namespace trainctl {
namespace {

constexpr int64_t kOwnBlock = 1 << 20;  // elements that are in host memory at a time

}  // namespace

void for_each_own_block(const StoredRange& range, Executor& executor,
                        const std::function<void(int64_t first, std::span<const float> values)>& use) {
  const int64_t size = byte_size(range.dtype);
  std::vector<uint16_t> halves;
  std::vector<float> values;
  for (int64_t at = 0; at < range.own_count; at += kOwnBlock) {
    const int64_t elements = std::min(kOwnBlock, range.own_count - at), offset = range.own_offset() + at * size;
    values.resize(static_cast<size_t>(elements));
    if (range.dtype == DType::bf16) {
      halves.resize(values.size());
      executor.read(offset, halves.data(), elements * size);
      std::transform(halves.begin(), halves.end(), values.begin(), from_bf16);
    } else {
      check(range.dtype == DType::f32, "weights, states and gradients are f32 or bf16");
      executor.read(offset, values.data(), elements * size);
    }
    use(range.own_first + at, values);
  }
}

}  // namespace trainctl
