#pragma once

#include <cstdint>

namespace trainctl {

/// The least multiple of `to` that is not less than `n`, both not negative.
constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace trainctl
