// Rounds a number up to a multiple of another one.
#pragma once
#include <cstdint>

namespace trainctl {

/// The smallest multiple of `to` that is >= n. n >= 0, to > 0.
constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace trainctl
