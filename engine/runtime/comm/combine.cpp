// See combine.h. Sources are read block by block, so that a block's sum stays in the first-level cache
// until every destination has it. Compiled for the kernels' processor level.
#include "engine/runtime/comm/combine.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

namespace trainctl::comm {
namespace {

constexpr int64_t kBlock = 2048;  // elements: 8 KiB of sums

struct F32 {
  using Stored = float;
  using Sum = float;
  static Sum load(Stored x) { return x; }
  static Stored store(Sum x) { return x; }
};

struct I32 {
  using Stored = uint32_t;
  using Sum = uint32_t;
  static Sum load(Stored x) { return x; }
  static Stored store(Sum x) { return x; }
};

struct Bf16 {
  using Stored = uint16_t;
  using Sum = float;
  static Sum load(Stored x) { return std::bit_cast<float>(uint32_t{x} << 16); }
  static Stored store(Sum x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<Stored>((bits >> 16) | 0x40u);  // stay a NaN
    return static_cast<Stored>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);                  // to nearest even
  }
};

template <typename T>
void sum(std::span<const std::byte* const> from, std::span<std::byte* const> to, int64_t count) {
  using Stored = typename T::Stored;
  alignas(64) typename T::Sum total[kBlock];
  alignas(64) Stored rounded[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    const auto* a = reinterpret_cast<const Stored*>(from[0]) + begin;
    const auto* b = reinterpret_cast<const Stored*>(from[1]) + begin;
    for (int64_t i = 0; i < n; ++i) total[i] = T::load(a[i]) + T::load(b[i]);
    for (size_t s = 2; s < from.size(); ++s) {
      const auto* x = reinterpret_cast<const Stored*>(from[s]) + begin;
      for (int64_t i = 0; i < n; ++i) total[i] += T::load(x[i]);
    }
    const void* result = total;
    if constexpr (sizeof(Stored) != sizeof(typename T::Sum)) {
      for (int64_t i = 0; i < n; ++i) rounded[i] = T::store(total[i]);
      result = rounded;
    }
    for (std::byte* out : to) {
      std::memcpy(reinterpret_cast<Stored*>(out) + begin, result, static_cast<size_t>(n) * sizeof(Stored));
    }
  }
}

void copy(const std::byte* from, std::span<std::byte* const> to, int64_t bytes) {
  constexpr int64_t block = kBlock * 4;
  for (int64_t begin = 0; begin < bytes; begin += block) {
    const auto n = static_cast<size_t>(std::min(block, bytes - begin));
    for (std::byte* out : to) {
      if (out != from) std::memcpy(out + begin, from + begin, n);
    }
  }
}

}  // namespace

void combine(std::span<const std::byte* const> from, std::span<std::byte* const> to, int64_t count, DType dtype) {
  if (from.size() == 1) return copy(from[0], to, count * byte_size(dtype));
  switch (dtype) {
    case DType::f32:
      return sum<F32>(from, to, count);
    case DType::i32:
      return sum<I32>(from, to, count);
    case DType::bf16:
      return sum<Bf16>(from, to, count);
  }
}

}  // namespace trainctl::comm
