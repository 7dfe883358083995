// Looks for nan and infinities in the state of a run.
#include "engine/train/checkpoint/finite_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/runtime/stored_ranges.h"

namespace trainctl {
namespace {

/// Finds the first element that is nan or infinite: its exponent has all bits set.
template <class Bits>
std::optional<int64_t> first_with_exponent(std::span<const std::byte> values, Bits exponent) {
  constexpr size_t kAtOnce = 4096;  // Number of elements that are tested without branches before the results are looked
                                    // at.
  const size_t count = values.size() / sizeof(Bits);
  const auto at = [&](size_t i) {
    Bits bits;
    std::memcpy(&bits, values.data() + i * sizeof(Bits), sizeof(Bits));
    return bits;
  };
  for (size_t first = 0; first < count; first += kAtOnce) {
    const size_t end = std::min(count, first + kAtOnce);
    bool found = false;
    for (size_t i = first; i < end; ++i) found |= (at(i) & exponent) == exponent;
    for (size_t i = first; found && i < end; ++i)
      if ((at(i) & exponent) == exponent) return static_cast<int64_t>(i);
  }
  return {};
}

}  // namespace

std::optional<int64_t> first_not_finite(std::span<const std::byte> values, DType type) {
  if (type == DType::f32) return first_with_exponent<uint32_t>(values, 0x7F800000u);
  if (type == DType::bf16) return first_with_exponent<uint16_t>(values, uint16_t{0x7F80});
  if (type == DType::f16) return first_with_exponent<uint16_t>(values, uint16_t{0x7C00});
  return {};
}

void require_finite_state(const Program& program, Executor& executor, int64_t steps) {
  constexpr int64_t kAtOnce = int64_t{4} << 20;
  std::vector<std::byte> block;
  for (const StoredRange& range : stored_ranges(program)) {
    const int64_t width = byte_size(range.dtype);
    for (int64_t first = 0; first < range.own_count; first += kAtOnce) {
      const int64_t count = std::min(kAtOnce, range.own_count - first);
      block.resize(static_cast<size_t>(count * width));
      executor.read(range.own_offset() + first * width, block.data(), static_cast<int64_t>(block.size()));
      if (!first_not_finite(block, range.dtype)) continue;
      const bool is_optimizer = range.slot != kWeightSlot && range.slot != kStateSlot;
      throw StateNotFinite(
          fmt::format("{}{} contains values that are not finite after the last step, {}; reduce "
                      "optimizer.learning_rate, set optimizer.clip_norm, check the data, or set train.on_nan: warn "
                      "to keep this state",
                      range.variable->name, is_optimizer ? fmt::format(" ({})", range.slot) : "", steps),
          steps);
    }
  }
}

}  // namespace trainctl
