// CLOCK_MONOTONIC, which the processes of one host share.
#pragma once

#include <chrono>
#include <cstdint>

namespace trainctl {

inline int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace trainctl
