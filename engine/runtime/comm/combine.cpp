// The inner loop of every collective: sum some buffers (or copy one) into others. One pass reads each element from
// every source and writes it to every destination; the sum stays in registers. Compiled for the kernels' processor
// level.
#include "engine/runtime/comm/combine.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "engine/graph/bf16.h"
#include "engine/graph/f16.h"

namespace trainctl::comm {
namespace {

constexpr int64_t kBlock = 1024;  // elements: partial sums between two passes stay in the first-level cache
constexpr size_t kStreams = 8;    // the hardware prefetcher gives up on more streams than these

/// to[j][i] = the sum over k of from[k][i], added in the order of k; 4 vectors of 32 bytes at a time.
template <typename T>
void sum_pass(std::span<const std::byte* const> from, std::span<std::byte* const> to, int64_t count) {
  typedef T Vector __attribute__((vector_size(32), aligned(4), may_alias));
  constexpr int64_t step = 4 * sizeof(Vector) / sizeof(T);
  int64_t i = 0;
  for (; i + step <= count; i += step) {
    const auto* first = reinterpret_cast<const Vector*>(from[0] + i * 4);
    Vector s0 = first[0], s1 = first[1], s2 = first[2], s3 = first[3];
    for (size_t k = 1; k < from.size(); ++k) {
      const auto* x = reinterpret_cast<const Vector*>(from[k] + i * 4);
      s0 += x[0], s1 += x[1], s2 += x[2], s3 += x[3];
    }
    for (std::byte* out : to) {
      auto* y = reinterpret_cast<Vector*>(out + i * 4);
      y[0] = s0, y[1] = s1, y[2] = s2, y[3] = s3;
    }
  }
  for (; i < count; ++i) {
    T total = reinterpret_cast<const T*>(from[0])[i];
    for (size_t k = 1; k < from.size(); ++k) total += reinterpret_cast<const T*>(from[k])[i];
    for (std::byte* out : to) reinterpret_cast<T*>(out)[i] = total;
  }
}

/// Sums for a type T of four bytes, f32 or i32.
template <typename T>
void sum(std::span<const std::byte* const> from, std::span<std::byte* const> to, int64_t count) {
  if (from.size() <= kStreams) return sum_pass<T>(from, to, count);
  alignas(64) T totals[kBlock];
  auto* const between = reinterpret_cast<std::byte*>(totals);
  const std::byte* pass[kStreams];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    for (size_t done = 0; done < from.size();) {
      size_t streams = 0;
      if (done > 0) pass[streams++] = between;
      while (streams < kStreams && done < from.size()) pass[streams++] = from[done++] + begin * 4;
      sum_pass<T>({pass, streams}, {&between, 1}, n);
    }
    for (std::byte* out : to) std::memcpy(out + begin * 4, totals, static_cast<size_t>(n) * 4);
  }
}

/// Sums for 16-bit floats: computed in f32 and rounded once. kLoad and kStore convert from and to f32.
template <float (*kLoad)(uint16_t), uint16_t (*kStore)(float)>
void sum_halves(std::span<const std::byte* const> from, std::span<std::byte* const> to, int64_t count) {
  alignas(64) float totals[kBlock];
  alignas(64) uint16_t rounded[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    const auto source = [&](size_t k) { return reinterpret_cast<const uint16_t*>(from[k]) + begin; };
    const uint16_t* first = source(0);
    for (int64_t i = 0; i < n; ++i) totals[i] = kLoad(first[i]);
    for (size_t k = 1; k < from.size(); ++k) {
      const uint16_t* x = source(k);
      for (int64_t i = 0; i < n; ++i) totals[i] += kLoad(x[i]);
    }
    for (int64_t i = 0; i < n; ++i) rounded[i] = kStore(totals[i]);
    for (std::byte* out : to) std::memcpy(out + begin * 2, rounded, static_cast<size_t>(n) * 2);
  }
}

void copy(const std::byte* from, std::span<std::byte* const> to, int64_t bytes) {
  constexpr int64_t block = 8192;
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
      return sum<float>(from, to, count);
    case DType::i32:
      return sum<uint32_t>(from, to, count);
    case DType::bf16:
      return sum_halves<from_bf16, to_bf16>(from, to, count);
    case DType::f16:
      return sum_halves<from_f16, to_f16>(from, to, count);
  }
}

}  // namespace trainctl::comm
