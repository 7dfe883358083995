// Element-wise kernels with operands that are broadcast: out[i] = op(full[i].., side[where i maps to]..). And the
// index arithmetic of all kernels that walk dims.
#pragma once

#include "engine/ops/cpu_strided.h"
#include "engine/ops/map_cuda.cuh"

namespace trainctl {

/// Division of numbers below 2^31 by a constant: a multiplication (Granlund and Montgomery 1994).
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

/// A nest of loops by its running index: how far each of N operands moves.
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

/// How a side operand goes along the innermost loop.
enum class Along : int { same, packs, elements };

template <int S>
struct Sides {
  std::array<Ref<Mixed>, S> ref;
  std::array<Along, S> along;
  Nest<S> outer;      ///< over rows
  Divisor row_packs;  ///< packs of a row
  int64_t packs = 0;  ///< of all rows
};

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
  constexpr int kUnroll = V == 1 ? 4 : 2;
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t base = static_cast<int64_t>(blockIdx.x) * (kUnroll * kMapThreads);
  const int64_t base_row =
      base < (int64_t{1} << 31) ? sides.row_packs.quotient(static_cast<uint32_t>(base)) : base / sides.row_packs.by;
  const auto base_column = static_cast<uint32_t>(base - base_row * sides.row_packs.by);
  float v[kUnroll][F == 0 ? 1 : F][V], s[kUnroll][S][V];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t local = threadIdx.x + u * kMapThreads;
    if (base + local >= sides.packs) continue;
#pragma unroll
    for (int k = 0; k < F; ++k) load(full[k], (base + local) * V, v[u][k]);
    const uint32_t rows = sides.row_packs.quotient(base_column + local);
    const int64_t column = static_cast<int64_t>(base_column + local - rows * sides.row_packs.by) * V;
    int64_t at[S] = {};
    sides.outer.add_offsets(static_cast<uint32_t>(base_row) + rows, at);
#pragma unroll
    for (int k = 0; k < S; ++k) load_side(sides.ref[k], sides.along[k], at[k], column, s[u][k]);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t local = threadIdx.x + u * kMapThreads;
    if (base + local >= sides.packs) continue;
    float y[V];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      std::array<float, F> of_full;
      std::array<float, S> of_side;
      for (int k = 0; k < F; ++k) of_full[k] = v[u][k][j];
      for (int k = 0; k < S; ++k) of_side[k] = s[u][k][j];
      y[j] = op(of_full, of_side);
    }
    store(out, (base + local) * V, y);
  }
}

// Launchers

template <int V, class T, int F, int S, class Op>
CudaKernel launch_strided(const std::array<Ref<T>, F>& full, Sides<S> sides, Ref<T> out, int64_t row, Op op,
                          const char* name) {
  sides.row_packs = Divisor(row / V);
  sides.packs = sides.outer.count * (row / V);
  const auto blocks = static_cast<unsigned>(ceil_div(sides.packs, (V == 1 ? 4 : 2) * kMapThreads));
  return [=](CudaStream stream) {
    launch(strided_map_kernel<V, T, F, S, Op>, blocks, kMapThreads, 0, stream, name, full, sides, out, op);
  };
}

/// out = op(full operands of out's size, side operands); `strides[k]` are side k's along the dims of `shape`, which
/// has out's elements in order. A full operand may share out's memory.
template <int F, int S, class Op>
CudaKernel map_strided(std::array<const TensorArg*, F> full, std::array<const TensorArg*, S> side, const TensorArg& out,
                       const Shape& shape, const std::array<Shape, S>& strides, Op op, const char* name) {
  if (out.size() == 0) return [](CudaStream) {};
  cpu::Loops<S + 1> loops;  // with out, so that only what is contiguous there is merged
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

  const bool all_f32 = std::all_of(full.begin(), full.end(), [](auto* a) { return a->dtype == DType::f32; });
  const bool all_bf16 = std::all_of(full.begin(), full.end(), [](auto* a) { return a->dtype == DType::bf16; });
  const auto run = [&](auto t) {
    using T = decltype(t);
    bool packs = row % kPack<T> == 0 && packs_are_aligned({&out});
    std::array<Ref<T>, F> refs;
    for (int k = 0; k < F; ++k) {
      refs[k] = ref<T>(*full[k]);
      packs = packs && packs_are_aligned({full[k]});
    }
    Sides<S> sides;
    sides.outer = Nest<S>(outer);
    for (int k = 0; k < S; ++k) {
      sides.ref[k] = ref<Mixed>(*side[k]);
      check(inner[k] == 0 || inner[k] == 1, "a broadcast operand repeats or goes on");
      sides.along[k] = inner[k] == 0                           ? Along::same
                       : packs && packs_are_aligned({side[k]}) ? Along::packs
                                                               : Along::elements;
    }
    if (packs) return launch_strided<kPack<T>, T, F, S>(refs, sides, ref<T>(out), row, op, name);
    return launch_strided<1, T, F, S>(refs, sides, ref<T>(out), row, op, name);
  };
  if (out.dtype == DType::f32 && all_f32) return run(float{});
  if (out.dtype == DType::bf16 && all_bf16) return run(bf16{});
  return run(Mixed{});
}

}  // namespace trainctl
