// On a GPU the keys of a row of queries are split among blocks, because a generated token has few rows.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trainctl {

inline constexpr int64_t kKeysOfPart = 256, kMostKeyParts = 32;

/// The number of parts into which `positions` keys are split. It depends on nothing else, so that the results of a row
/// do not depend on other rows.
constexpr int64_t key_parts(int64_t positions) {
  return std::clamp<int64_t>((positions + kKeysOfPart - 1) / kKeysOfPart, 1, kMostKeyParts);
}

/// Bytes of the partial results: `elements` of the output, and the largest score and the sum of exponentials of each of
/// `rows` rows of heads (at most), all in f32.
constexpr int64_t key_parts_bytes(int64_t elements, int64_t rows, int64_t positions) {
  return key_parts(positions) * 4 * (elements + 2 * rows);
}

}  // namespace trainctl
