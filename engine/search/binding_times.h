// Selects the times of limited_sum.h at which the limit must be looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trainctl {

/// Something is held over first, ..., end - 1, at most this much.
struct HeldInterval {
  int first = 0;
  int end = 0;
  int64_t most = 0;
};

/// Ascending. A time is left out where even the most stays within its limit, or where what is held is also held at a
/// time that stays and whose limit is no higher.
std::vector<size_t> binding_times(const std::vector<int64_t>& limits, const std::vector<HeldInterval>& intervals);

}  // namespace trainctl
