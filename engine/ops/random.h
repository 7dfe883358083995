// Counter-based random numbers (Philox 4x32-10, Salmon et al. 2011): a value depends only on its key and index, so
// any rank computes any slice, on any device. Plain functions, safe in .cu files.
#pragma once

#include <cstdint>

#include "engine/ops/host_device.h"

namespace trainctl {

struct Philox4 {
  uint32_t v[4];
};

/// The 64 bits of a * b, in one instruction on the device: otherwise the compiler uses 64-bit arithmetic for whole
/// rounds, with three times as many instructions.
TRAINCTL_HOST_DEVICE inline void wide_product(uint32_t a, uint32_t b, uint32_t& high, uint32_t& low) {
#if defined(__CUDA_ARCH__)
  asm("{ .reg .b64 p; mul.wide.u32 p, %2, %3; mov.b64 {%1, %0}, p; }" : "=r"(high), "=r"(low) : "r"(a), "r"(b));
#else
  const uint64_t product = uint64_t{a} * b;
  high = static_cast<uint32_t>(product >> 32);
  low = static_cast<uint32_t>(product);
#endif
}

inline constexpr int kPhiloxRounds = 10;

/// The two words of the key that one round uses.
struct PhiloxRoundKey {
  uint32_t k0, k1;
};
TRAINCTL_HOST_DEVICE inline PhiloxRoundKey philox_round_key(uint64_t key, int round) {
  const auto r = static_cast<uint32_t>(round);
  return {static_cast<uint32_t>(key) + r * 0x9E3779B9u, static_cast<uint32_t>(key >> 32) + r * 0xBB67AE85u};
}

/// key_of(round) is the round's key.
template <class KeyOf>
TRAINCTL_HOST_DEVICE inline Philox4 philox_rounds(KeyOf key_of, uint64_t counter_low, uint64_t counter_high) {
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const PhiloxRoundKey key = key_of(round);
    uint32_t high0, low0, high1, low1;
    wide_product(0xD2511F53u, c0, high0, low0);
    wide_product(0xCD9E8D57u, c2, high1, low1);
    c0 = high1 ^ c1 ^ key.k0;
    c2 = high0 ^ c3 ^ key.k1;
    c1 = low1;
    c3 = low0;
  }
  return {{c0, c1, c2, c3}};
}
TRAINCTL_HOST_DEVICE inline Philox4 philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  const auto key_of = [key](int round) { return philox_round_key(key, round); };
  return philox_rounds(key_of, counter_low, counter_high);
}

/// Uniform in [0, 1) with 24 bits, for element `index` of the stream (key, high).
TRAINCTL_HOST_DEVICE inline float philox_uniform(uint64_t key, uint64_t index, uint64_t high) {
  return static_cast<float>(philox(key, index >> 2, high).v[index & 3] >> 8) * 0x1p-24f;
}

/// The key of a named stream of a job: weights "w", dropout masks and shuffles each use their own name.
TRAINCTL_HOST_DEVICE inline uint64_t stream_key(uint64_t seed, uint64_t name_hash) {
  const Philox4 p = philox(seed, name_hash, 0x7472616963746cull);
  return (uint64_t{p.v[1]} << 32) | p.v[0];
}

}  // namespace trainctl
