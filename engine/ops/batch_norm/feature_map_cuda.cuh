// Element-wise kernels over x [n, c, s] with operands of one number per feature, [c]: out = op(of(numbers), full..). In
// bf16 the time of a copy allows some 25 instructions per element, and a reciprocal square root alone takes 10. So an
// op's values for a feature are computed once per pack or, if features are contiguous, once per thread.
//
// An Op defines what is computed:
//   struct Feature                                    values that all elements of a feature share
//   Feature of(std::array<float, S + 2>)              computes them from S statistics, scale and shift
//   float operator()(const Feature&, float full..)    computes an element
#pragma once

#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/strided_cuda.cuh"

namespace trainctl {

/// S statistics, a scale and a shift for each feature.
template <class T, int S>
struct FeatureSides {
  std::array<Ref<float>, S> statistics;
  Ref<T> scale, shift;  ///< null: 1 and 0

  __device__ std::array<float, S + 2> at(int64_t feature) const {
    std::array<float, S + 2> of;
#pragma unroll
    for (int k = 0; k < S; ++k) of[k] = value(statistics[k], feature);
    of[S] = scale.p == nullptr ? 1.0f : value(scale, feature);
    of[S + 1] = shift.p == nullptr ? 0.0f : value(shift, feature);
    return of;
  }
};

/// Maps elements of x to features.
struct Planes {
  Divisor elements;  ///< s
  Divisor features;  ///< c

  __device__ uint32_t feature(uint32_t plane) const { return plane - features.quotient(plane) * features.by; }
};

// Kernels

/// Packs that a thread has in flight for each operand.
inline constexpr int kFeatureUnroll = 2;

template <class Op, int F, int V, class T>
__device__ inline float of_element(const Op& op, const typename Op::Feature& feature, const Raw<T, V> (&raw)[F],
                                   int j) {
  float v[F][V];
#pragma unroll
  for (int k = 0; k < F; ++k) unpack(raw[k], v[k]);
  if constexpr (F == 1) return op(feature, v[0][j]);
  if constexpr (F == 2) return op(feature, v[0][j], v[1][j]);
}

/// x as consecutive planes of s elements. A pack may begin in one and end in the next: s >= V.
template <int V, class T, int F, int S, class Op>
__global__ void __launch_bounds__(kMapThreads, 1)
    planes_kernel(std::array<Ref<T>, F> full, FeatureSides<T, S> sides, Ref<T> out, Op op, Planes planes, Span span) {
  constexpr int kUnroll = kMapUnroll<V, F>;
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kUnroll * kMapThreads);
  const int64_t base = span.head + first * V;
  const uint32_t base_plane = base < (int64_t{1} << 31) ? planes.elements.quotient(static_cast<uint32_t>(base))
                                                        : static_cast<uint32_t>(base / planes.elements.by);
  const auto base_element = static_cast<uint32_t>(base - static_cast<int64_t>(base_plane) * planes.elements.by);
  const auto packs = static_cast<int>(min(span.packs - first, int64_t{kUnroll * kMapThreads}));
  Raw<T, V> raw[kUnroll][F];
  std::array<float, S + 2> of[kUnroll];
  uint32_t plane[kUnroll];
  int here[kUnroll];  // elements from the pack's start to the end of its plane
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {  // no branch, so that all loads are in flight together
    const int pack = min(static_cast<int>(threadIdx.x) + u * kMapThreads, packs - 1);
    const uint32_t element = base_element + pack * V, quotient = planes.elements.quotient(element);
#pragma unroll
    for (int k = 0; k < F; ++k) raw[u][k] = fetch<V>(full[k], base + pack * V);
    plane[u] = base_plane + quotient;
    here[u] = static_cast<int>((quotient + 1) * planes.elements.by - element);
    of[u] = sides.at(planes.feature(plane[u]));
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int pack = static_cast<int>(threadIdx.x) + u * kMapThreads;
    if (pack >= packs) continue;
    const typename Op::Feature feature = op.of(of[u]);
    float y[V];
    if (here[u] >= V) {
#pragma unroll
      for (int j = 0; j < V; ++j) y[j] = of_element<Op, F, V, T>(op, feature, raw[u], j);
    } else {
      const typename Op::Feature next = op.of(sides.at(planes.feature(plane[u] + 1)));
#pragma unroll
      for (int j = 0; j < V; ++j) y[j] = of_element<Op, F, V, T>(op, j < here[u] ? feature : next, raw[u], j);
    }
    store(out, base + pack * V, y);
  }
  if constexpr (V > 1) {  // fewer than 2 V elements are outside of packs
    const int64_t edges = span.n - span.packs * V;
    if (blockIdx.x != gridDim.x - 1 || threadIdx.x >= edges) return;
    const int64_t i = threadIdx.x < span.head ? threadIdx.x : span.packs * V + threadIdx.x;
    Raw<T, 1> one[F];
    for (int k = 0; k < F; ++k) one[k] = fetch<1>(full[k], i);
    set(out, i, of_element<Op, F, 1, T>(op, op.of(sides.at(i / planes.elements.by % planes.features.by)), one, 0));
  }
}

/// x [rows, c]: a thread has a pack of columns of every `step`-th row.
struct FeatureColumns {
  int64_t rows = 0, columns = 0;
  int lanes = 32;     ///< threads across columns, a power of 2
  int64_t split = 0;  ///< rows of one of gridDim.y blocks
};

/// x [rows, c]: one pack of columns per thread, whose features' values are computed once. Blocks: (packs of columns,
/// ranges of rows).
template <int V, class T, int F, int S, class Op>
__global__ void __launch_bounds__(kMapThreads)
    features_kernel(std::array<Ref<T>, F> full, FeatureSides<T, S> sides, Ref<T> out, Op op, FeatureColumns g) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int lane = static_cast<int>(threadIdx.x) & (g.lanes - 1), step = kMapThreads / g.lanes;
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * g.lanes + lane) * V;
  if (column >= g.columns) return;
  typename Op::Feature feature[V];
#pragma unroll
  for (int j = 0; j < V; ++j) feature[j] = op.of(sides.at(column + j));
  const int64_t end = min(g.rows, (blockIdx.y + 1) * g.split);
  for (int64_t r = blockIdx.y * g.split + threadIdx.x / g.lanes; r < end; r += kFeatureUnroll * step) {
    Raw<T, V> raw[kFeatureUnroll][F];
#pragma unroll
    for (int u = 0; u < kFeatureUnroll; ++u) {
#pragma unroll
      for (int k = 0; k < F; ++k) raw[u][k] = fetch<V>(full[k], min(r + u * step, end - 1) * g.columns + column);
    }
#pragma unroll
    for (int u = 0; u < kFeatureUnroll; ++u) {
      if (r + u * step >= end) continue;
      float y[V];
#pragma unroll
      for (int j = 0; j < V; ++j) y[j] = of_element<Op, F, V, T>(op, feature[j], raw[u], j);
      store(out, (r + u * step) * g.columns + column, y);
    }
  }
}

// Launchers

template <int V, class T, int F, int S, class Op>
CudaKernel launch_features(const std::array<Ref<T>, F>& full, const FeatureSides<T, S>& sides, Ref<T> out, Op op,
                           FeatureColumns g, const char* name) {
  const int64_t packs = g.columns / V;
  while (g.lanes > 1 && g.lanes / 2 >= packs) g.lanes /= 2;
  const int64_t least = kMapThreads / g.lanes * 16;  // 16 rows per thread pay for computing its features' values
  g.split = std::max(least, ceil_div(g.rows, 65535));
  const dim3 grid(static_cast<unsigned>(ceil_div(packs, g.lanes)), static_cast<unsigned>(ceil_div(g.rows, g.split)));
  return [=](CudaStream stream) {
    launch(features_kernel<V, T, F, S, Op>, grid, kMapThreads, 0, stream, name, full, sides, out, op, g);
  };
}

template <int V, class T, int F, int S, class Op>
CudaKernel launch_planes(const std::array<Ref<T>, F>& full, const FeatureSides<T, S>& sides, Ref<T> out, Op op,
                         const Planes& planes, const Span& span, const char* name) {
  const int64_t of_block = kMapUnroll<V, F> * kMapThreads;
  const auto blocks = static_cast<unsigned>(std::max<int64_t>(1, ceil_div(span.packs, of_block)));
  return [=](CudaStream stream) {
    launch(planes_kernel<V, T, F, S, Op>, blocks, kMapThreads, 0, stream, name, full, sides, out, op, planes, span);
  };
}

/// Inputs: F of out's size, S statistics (f32), and a scale and a shift unless they are left out. A full operand may
/// share out's memory. `dims`: out as [n, c, s].
template <int F, int S, class Op>
CudaKernel map_features(const CudaKernelCall& call, const Shape& dims, Op op, const char* name) {
  const TensorArg& out = call.out[0];
  const int64_t c = dims[1], n = out.size(), s = dims[2], planes = dims[0] * c;
  if (n == 0) return [](CudaStream) {};
  check(planes < (int64_t{1} << 31), "CUDA kernels take up to 2^31 planes");
  const auto input = [&](int k) -> const TensorArg& { return call.in[static_cast<size_t>(k)]; };
  for (int k = 0; k < S; ++k) check(input(F + k).dtype == DType::f32, "a feature's statistics are f32");
  const bool has_scale = call.in.size() > F + S, has_shift = call.in.size() > F + S + 1;
  const TensorArg &first = input(0), &second = input(F - 1), &scale = has_scale ? input(F + S) : first,
                  &shift = has_shift ? input(F + S + 1) : first;
  int64_t head = 0;
  const auto fit = [&](int pack) {
    head = elements_before_packs({&first, &second, &out}, pack);
    return s == 1 ? head == 0 && c % pack == 0 : head >= 0 && s >= pack && n >= head + pack;
  };
  return with_access<true>({&first, &second, &out, &scale, &shift}, fit, [&](auto access) {
    using T = decltype(element_of(access));
    constexpr int V = access.V;
    std::array<Ref<T>, F> full;
    FeatureSides<T, S> sides;
    for (int k = 0; k < F; ++k) full[k] = ref<T>(input(k));
    for (int k = 0; k < S; ++k) sides.statistics[k] = ref<float>(input(F + k));
    if (has_scale) sides.scale = ref<T>(scale);
    if (has_shift) sides.shift = ref<T>(shift);
    if (s == 1) return launch_features<V, T, F, S>(full, sides, ref<T>(out), op, FeatureColumns{dims[0], c}, name);
    const Planes of{Divisor(s), Divisor(c)};
    return launch_planes<V, T, F, S>(full, sides, ref<T>(out), op, of, span_of<V>(n, V > 1 ? head : 0), name);
  });
}

}  // namespace trainctl
