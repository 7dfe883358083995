// Optimizer states in fewer bytes, for CPUs and GPUs (optimizer.state_type).
//
//   bf16  stochastic rounding: to one of the two neighbors, the nearer the more probable. The random bits are a
//         function of (seed, parameter, state, step, element of the whole parameter), so no plan changes a value.
//   int8  blocks of 256 elements: the largest magnitude of the block, and for each element the index of the nearest
//         value of the dynamic map of bitsandbytes (Dettmers et al., 2021), which is multiplied by that magnitude.
#pragma once

#include <math.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/ops/host_device.h"
#include "engine/ops/random.h"

namespace trainctl {

inline constexpr int64_t kStateBlock = 256;
/// With int8, smaller parameters keep states in fp32.
inline constexpr int64_t kLeastPackedElements = 4096;

/// `random`: 16 bits. A number that is not finite stays so.
TRAINCTL_HOST_DEVICE inline uint16_t round_at_random(float value, uint32_t random) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7F800000u) == 0x7F800000u) return static_cast<uint16_t>(bits >> 16 | ((bits & 0xFFFFu) != 0 ? 1u : 0u));
  return static_cast<uint16_t>((bits + (random & 0xFFFFu)) >> 16);
}

/// The random bits of the elements of one state of a parameter, in one step.
struct RoundingBits {
  uint64_t key = 0, high = 0;

  TRAINCTL_HOST_DEVICE static RoundingBits of(uint64_t seed, int64_t parameter, int64_t state, uint32_t step) {
    return {stream_key(seed, static_cast<uint64_t>(parameter)), uint64_t{step} << 8 | static_cast<uint64_t>(state)};
  }
  TRAINCTL_HOST_DEVICE uint32_t at(int64_t element) const {
    return philox(key, static_cast<uint64_t>(element) >> 2, high).v[element & 3] >> 16;
  }
};

/// The values of the codes, ascending; those of squares are not negative.
struct StateCodes {
  float values[256];

  static StateCodes of(bool is_signed) {
    constexpr int kExponents = 7;
    std::array<float, 256> all{};
    size_t count = 0;
    for (int i = 0; i < kExponents; ++i) {
      const int items = is_signed ? 1 << i : 1 << (i + 1);
      const double scale = std::pow(10.0, i - (kExponents - 1));
      for (int k = 0; k < items; ++k) {
        const double begin = 0.1 + 0.9 * k / items, end = 0.1 + 0.9 * (k + 1) / items;
        const auto value = static_cast<float>(scale * (begin + end) / 2);
        all[count++] = value;
        if (is_signed) all[count++] = -value;
      }
    }
    all[count++] = 0;
    all[count++] = 1;
    std::sort(all.begin(), all.end());
    StateCodes codes;
    std::copy(all.begin(), all.end(), codes.values);
    return codes;
  }
  /// The code of the value nearest to `x`; the lower one of two.
  TRAINCTL_HOST_DEVICE uint8_t nearest(float x) const {
    int low = 0, high = 255;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (x < values[middle] ? high : low) = middle;
    }
    return static_cast<uint8_t>(x - values[low] <= values[high] - x ? low : high);
  }
};

}  // namespace trainctl
