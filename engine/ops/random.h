// Counter-based random numbers (Philox 4x32-10, Salmon et al. 2011): a value depends on its key and
// index alone, so any rank makes any slice, on any device. Plain functions, safe in .cu files.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define TRAINCTL_HOST_DEVICE __host__ __device__
#else
#define TRAINCTL_HOST_DEVICE
#endif

namespace trainctl {

struct Philox4 {
  uint32_t v[4];
};

TRAINCTL_HOST_DEVICE inline Philox4 philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
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
