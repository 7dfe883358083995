// Element-wise kernels with broadcast operands, out[i] = op(full[i].., side[index of i in side]..), and the index
// arithmetic of all kernels that iterate over dims.
#pragma once

#include "engine/ops/cpu/strided_cpu.h"
#include "engine/ops/cuda/map_cuda.cuh"

namespace trainctl {

/// Divides numbers below 2^31 by a constant, by multiplication (Granlund and Montgomery 1994).
struct Divisor {
  uint32_t by = 1, multiplier = 1, shift = 0;

  Divisor() = default;
  explicit Divisor(int64_t d) : by(static_cast<uint32_t>(d)) {
    check(d > 0 && d < (int64_t{1} << 31), "CUDA kernels take dims of up to 2^31 elements");
    while ((int64_t{1} << shift) < d) ++shift;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - by)) / by + 1);
  }
  __device__ uint32_t quotient(uint32_t n) const { return (__umulhi(n, multiplier) + n) >> shift; }
};

/// A loop nest, addressed by a linear index: the offset of each of N operands.
template <int N>
struct Nest {
  int ndim = 0;
  Divisor size[cpu::kMaxDims];
  int64_t stride[cpu::kMaxDims][N] = {};
  int64_t count = 1;

  Nest() = default;
  explicit Nest(const cpu::Loops<N>& loops) : ndim(loops.ndim) {
    for (int d = 0; d < ndim; ++d) {
      count *= loops.size[d];
      size[d] = Divisor(std::max<int64_t>(1, loops.size[d]));
      for (int k = 0; k < N; ++k) stride[d][k] = loops.stride[d][k];
    }
    check(count < (int64_t{1} << 31), "CUDA kernels take up to 2^31 rows");
  }
  __device__ void add_offsets(uint32_t index, int64_t (&at)[N]) const {
    if (ndim == 1) {
#pragma unroll
      for (int k = 0; k < N; ++k) at[k] += index * stride[0][k];
      return;
    }
#pragma unroll 1
    for (int d = ndim - 1; d >= 0; --d) {
      const uint32_t outer = d == 0 ? 0 : size[d].quotient(index);
      const int64_t here = index - outer * size[d].by;
#pragma unroll
      for (int k = 0; k < N; ++k) at[k] += here * stride[d][k];
      index = outer;
    }
  }
};

// Kernels

/// The access to a side operand along the innermost loop: one value, whole packs, or single elements.
enum class Along : int { same, packs, elements };

template <int S>
struct Sides {
  std::array<Ref<Mixed>, S> ref;
  std::array<Along, S> along;
  Nest<S> outer;                           ///< over rows
  Divisor row_packs;                       ///< packs per row
  uint32_t step_rows = 0, step_packs = 0;  ///< kMapThreads packs as whole rows and the remaining packs
  int64_t packs = 0;                       ///< packs of all rows
};

/// Packs that a thread has in flight.
template <int V, int F, int S>
inline constexpr int kStridedUnroll = V == 1 || F + S == 1 ? 4 : 2;

/// A side operand's values for a pack, in memory format: one number, the pack's bytes, or a word for each number. A
/// thread fetches everything it needs before it converts any of it.
template <int V>
struct SideWords {
  uint32_t w[V];
};
__device__ inline uint32_t word_of(Ref<Mixed> r, int64_t at) {
  return r.is_half() ? static_cast<const uint16_t*>(r.p)[at] : static_cast<const uint32_t*>(r.p)[at];
}
/// The values of the row that starts at `first`, from `column` on.
template <Along kAlong, int V>
__device__ inline SideWords<V> fetch_side(Ref<Mixed> r, int64_t first, int64_t column) {
  SideWords<V> to;
  if constexpr (kAlong == Along::same) {
    to.w[0] = word_of(r, first);
  } else if constexpr (kAlong == Along::elements || V == 1) {
#pragma unroll
    for (int j = 0; j < V; ++j) to.w[j] = word_of(r, first + column + j);
  } else if (r.is_half()) {
    const auto* from = static_cast<const uint16_t*>(r.p) + first + column;
    if constexpr (V == 8) {
      const uint4 q = load_16(from);
      to.w[0] = q.x, to.w[1] = q.y, to.w[2] = q.z, to.w[3] = q.w;
    } else {
      const auto q = *reinterpret_cast<const uint2*>(from);
      to.w[0] = q.x, to.w[1] = q.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < V; i += 4) {
      const uint4 q = load_16(static_cast<const uint32_t*>(r.p) + first + column + i);
      to.w[i] = q.x, to.w[i + 1] = q.y, to.w[i + 2] = q.z, to.w[i + 3] = q.w;
    }
  }
  return to;
}
/// The number of a word of operand r.
__device__ inline float of_word(const Ref<Mixed>& r, uint32_t word) {
  return r.is_f16 ? of_f16_bits(word) : __uint_as_float(r.is_bf16 ? word << 16 : word);
}
template <int V>
__device__ inline void unpack_side(const SideWords<V>& from, Along along, const Ref<Mixed>& r, float (&v)[V]) {
  if (along == Along::same) {
    const float one = of_word(r, from.w[0]);
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = one;
  } else if (V > 1 && along == Along::packs && r.is_half()) {
#pragma unroll
    for (int j = 0; j + 1 < V; j += 2) {
      if (r.is_f16)
        f16_halves(from.w[j / 2], v[j], v[j + 1]);
      else
        halves(from.w[j / 2], v[j], v[j + 1]);
    }
  } else {
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = of_word(r, from.w[j]);
  }
}
/// Calls fetch(along) with `along` as a compile-time constant.
template <class Fetch>
__device__ inline void with_along(Along along, Fetch fetch) {
  if (along == Along::same) return fetch(std::integral_constant<Along, Along::same>{});
  if (along == Along::packs) return fetch(std::integral_constant<Along, Along::packs>{});
  fetch(std::integral_constant<Along, Along::elements>{});
}
/// Loads and converts one pack.
template <int V>
__device__ inline void load_side(Ref<Mixed> r, Along along, int64_t at, int64_t column, float (&v)[V]) {
  if (along == Along::packs) {
    load(r, at + column, v);
    return;
  }
#pragma unroll
  for (int j = 0; j < V; ++j)
    v[j] = j == 0 || along == Along::elements ? value(r, along == Along::same ? at : at + column + j) : v[0];
}

/// Op: float operator()(std::array<float, F>, std::array<float, S>).
template <int V, class T, int F, int S, class Op>
__global__ void __launch_bounds__(kMapThreads)
    strided_map_kernel(std::array<Ref<T>, F> full, Sides<S> sides, Ref<T> out, Op op) {
  constexpr int kUnroll = kStridedUnroll<V, F, S>;
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t base = static_cast<int64_t>(blockIdx.x) * (kUnroll * kMapThreads);
  const auto left = static_cast<int>(min(sides.packs - base, int64_t{kUnroll * kMapThreads}));
  const auto there = [&](int u) { return static_cast<int>(threadIdx.x) + u * kMapThreads < left; };
  Raw<T, V> raw[kUnroll][F == 0 ? 1 : F];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
    for (int k = 0; k < F; ++k) {
      if (there(u)) raw[u][k] = fetch<V>(full[k], (base + threadIdx.x + u * kMapThreads) * V);
    }
  }
  const int64_t base_row =
      base < (int64_t{1} << 31) ? sides.row_packs.quotient(static_cast<uint32_t>(base)) : base / sides.row_packs.by;
  uint32_t pack = static_cast<uint32_t>(base - base_row * sides.row_packs.by) + threadIdx.x;
  uint32_t row = sides.row_packs.quotient(pack);
  pack -= row * sides.row_packs.by;
  row += static_cast<uint32_t>(base_row);
  int64_t at[kUnroll][S] = {}, column[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    sides.outer.add_offsets(row, at[u]);
    column[u] = int64_t{pack} * V;
    row += sides.step_rows;
    pack += sides.step_packs;
    if (pack >= sides.row_packs.by) pack -= sides.row_packs.by, ++row;
  }
  SideWords<V> words[kUnroll][S];
#pragma unroll
  for (int k = 0; k < S; ++k) {
    with_along(sides.along[k], [&](auto way) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (there(u)) words[u][k] = fetch_side<way(), V>(sides.ref[k], at[u][k], column[u]);
      }
    });
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (!there(u)) continue;
    float v[F == 0 ? 1 : F][V], s[S][V], y[V];
#pragma unroll
    for (int k = 0; k < F; ++k) unpack(raw[u][k], v[k]);
#pragma unroll
    for (int k = 0; k < S; ++k) unpack_side(words[u][k], sides.along[k], sides.ref[k], s[k]);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      std::array<float, F> of_full;
      std::array<float, S> of_side;
      for (int k = 0; k < F; ++k) of_full[k] = v[k][j];
      for (int k = 0; k < S; ++k) of_side[k] = s[k][j];
      y[j] = op(of_full, of_side);
    }
    store(out, (base + threadIdx.x + u * kMapThreads) * V, y);
  }
}

// Launchers

template <int V, class T, int F, int S, class Op>
CudaKernel launch_strided(const std::array<Ref<T>, F>& full, Sides<S> sides, Ref<T> out, int64_t row, Op op,
                          const char* name) {
  sides.row_packs = Divisor(row / V);
  sides.step_rows = kMapThreads / sides.row_packs.by;
  sides.step_packs = kMapThreads % sides.row_packs.by;
  sides.packs = sides.outer.count * (row / V);
  const auto blocks = static_cast<unsigned>(ceil_div(sides.packs, kStridedUnroll<V, F, S> * kMapThreads));
  return [=](CudaStream stream) {
    launch(strided_map_kernel<V, T, F, S, Op>, blocks, kMapThreads, 0, stream, name, full, sides, out, op);
  };
}

/// out = op(full operands of out's size, side operands). `shape` is out's, or another with the same elements in order;
/// `strides[k]` are side k's strides along its dims. A full operand may share out's memory.
template <int F, int S, class Op>
CudaKernel map_strided(std::array<const TensorArg*, F> full, std::array<const TensorArg*, S> side, const TensorArg& out,
                       const Shape& shape, const std::array<Shape, S>& strides, Op op, const char* name) {
  if (out.size() == 0) return [](CudaStream) {};
  cpu::Loops<S + 1> loops;  // includes out, so that only dims contiguous in out are merged
  const Shape own = cpu::strides_of(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    std::array<int64_t, S + 1> step{};
    for (int k = 0; k < S; ++k) step[k] = strides[k][d];
    step[S] = own[d];
    loops.add(shape[d], step);
  }
  std::array<int64_t, S + 1> inner{};
  const int64_t row = loops.take_inner(inner);
  cpu::Loops<S> outer;
  outer.ndim = loops.ndim;
  outer.size = loops.size;
  for (int d = 0; d < loops.ndim; ++d) std::copy_n(loops.stride[d].begin(), S, outer.stride[d].begin());

  static_assert(F <= 1);
  const TensorArg& like_out = F == 0 ? out : *full[0];
  const auto fit = [&](int pack) { return row % pack == 0 && packs_are_aligned({&out, &like_out}); };
  return with_access({&out, &like_out}, fit, [&](auto access) {
    using T = decltype(element_of(access));
    constexpr int V = access.V;
    std::array<Ref<T>, F> refs;
    for (int k = 0; k < F; ++k) refs[k] = ref<T>(*full[k]);
    Sides<S> sides;
    sides.outer = Nest<S>(outer);
    for (int k = 0; k < S; ++k) {
      sides.ref[k] = ref<Mixed>(*side[k]);
      check(inner[k] == 0 || inner[k] == 1, "a broadcast operand has inner stride 0 or 1");
      sides.along[k] = inner[k] == 0                           ? Along::same
                       : V > 1 && packs_are_aligned({side[k]}) ? Along::packs
                                                               : Along::elements;
    }
    return launch_strided<V, T, F, S>(refs, sides, ref<T>(out), row, op, name);
  });
}

}  // namespace trainctl
