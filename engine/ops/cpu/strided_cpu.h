// Loops over tensors whose dims are broadcast, permuted or summed: each operand has a stride a dim. Sizes are fixed
// when a kernel is prepared, so a run allocates nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "engine/base/error.h"
#include "engine/graph/shape.h"
#include "engine/ops/cpu/threads_cpu.h"

namespace trainctl::cpu {

inline constexpr int kMaxDims = 8;

/// A loop nest, outermost first, with each loop's strides of N operands.
template <int N>
struct Loops {
  int ndim = 0;
  std::array<int64_t, kMaxDims> size{};
  std::array<std::array<int64_t, N>, kMaxDims> stride{};

  /// Adds an innermost loop; merges it with the one around it if all operands are contiguous across both.
  void add(int64_t count, const std::array<int64_t, N>& strides) {
    if (count == 1) return;
    if (ndim > 0) {
      bool merges = true;
      for (int k = 0; k < N; ++k) merges &= stride[ndim - 1][k] == strides[k] * count;
      if (merges) {
        size[ndim - 1] *= count;
        stride[ndim - 1] = strides;
        return;
      }
    }
    check(ndim < kMaxDims, "CPU kernels take tensors of up to 8 dims that cannot be merged");
    size[ndim] = count;
    stride[ndim++] = strides;
  }

  /// Removes the innermost loop and returns its size; 1, with strides 0, if there is none.
  int64_t take_inner(std::array<int64_t, N>& strides) {
    strides = {};
    if (ndim == 0) return 1;
    --ndim;
    strides = stride[ndim];
    return size[ndim];
  }

  /// Calls f(offset of each operand) for each iteration, in order. A nest without loops has one iteration.
  template <class F>
  void run(F f) const {
    std::array<int64_t, N> at{};
    std::array<int64_t, kMaxDims> index{};
    for (int d = 0; d < ndim; ++d) {
      if (size[d] == 0) return;
    }
    for (;;) {
      f(at);
      int d = ndim - 1;
      for (; d >= 0; --d) {
        for (int k = 0; k < N; ++k) at[k] += stride[d][k];
        if (++index[d] < size[d]) break;
        for (int k = 0; k < N; ++k) at[k] -= stride[d][k] * size[d];
        index[d] = 0;
      }
      if (d < 0) return;
    }
  }
};

/// Calls f(offset of each operand) as loops.run(f) does, with the outermost loop split over threads; `elements`: of one
/// call of f. Iterations of the outermost loop must write to different memory.
template <int N, class F>
void over_outermost(int threads, const Loops<N>& loops, int64_t elements, const F& f) {
  if (threads <= 1 || loops.ndim == 0) return loops.run(f);
  for (int d = 1; d < loops.ndim; ++d) elements *= loops.size[d];
  over_rows(threads, loops.size[0], elements, [&](int64_t begin, int64_t end) {
    if (begin == end) return;
    Loops<N> part = loops;
    part.size[0] = end - begin;
    part.run([&](std::array<int64_t, N> at) {
      for (int k = 0; k < N; ++k) at[k] += begin * loops.stride[0][k];
      f(at);
    });
  });
}

/// Strides of a contiguous tensor, in elements.
inline Shape strides_of(const Shape& shape) {
  Shape strides(shape.size());
  int64_t step = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = step;
    step *= shape[d];
  }
  return strides;
}

/// Strides of `shape` as it is broadcast to `to` (numpy: aligned at the last dim, size 1 repeats).
inline Shape broadcast_strides(const Shape& shape, const Shape& to) {
  check(shape.size() <= to.size(), "an operand has more dims than the shape it is broadcast to");
  const Shape own = strides_of(shape);
  const size_t missing = to.size() - shape.size();
  Shape strides(to.size(), 0);
  for (size_t d = 0; d < shape.size(); ++d) {
    check(shape[d] == to[missing + d] || shape[d] == 1, "an operand does not broadcast to the output's shape");
    strides[missing + d] = shape[d] == 1 ? 0 : own[d];
  }
  return strides;
}

/// Strides of a reduction's result for each dim of its input: 0 for the dims that are summed, whether the result keeps
/// them with size 1 or not.
inline Shape kept_strides(const Shape& large, const Shape& small, std::span<const int64_t> summed_dims) {
  const Shape own = strides_of(small);
  const bool keeps = small.size() == large.size();
  Shape strides(large.size(), 0);
  size_t next = 0;
  for (size_t d = 0; d < large.size(); ++d) {
    const bool summed = std::find(summed_dims.begin(), summed_dims.end(), static_cast<int64_t>(d)) != summed_dims.end();
    if (!summed) strides[d] = own[next];
    if (!summed || keeps) ++next;
  }
  return strides;
}

}  // namespace trainctl::cpu
