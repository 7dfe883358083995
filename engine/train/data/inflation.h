// Limits the inflation of compressed data. Data is inflated into memory as a whole, and a file of 3 MB can claim 3 GB,
// so beyond 256 MiB it may inflate at most 100 times. Real arrays are far below; one that is not can be stored
// uncompressed, and is then mapped or read without such a limit.
#pragma once

#include <cstdint>

namespace trainctl {

inline constexpr int64_t kFreelyInflatedBytes = int64_t{256} << 20;
inline constexpr int64_t kMostInflationOfLarge = 100;

/// Returns whether `packed_bytes` may become `bytes`.
constexpr bool may_inflate(int64_t packed_bytes, int64_t bytes) {
  return bytes <= kFreelyInflatedBytes || bytes / kMostInflationOfLarge <= packed_bytes;
}

}  // namespace trainctl
