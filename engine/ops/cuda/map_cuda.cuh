// Element-wise kernels over contiguous operands of one size: out[i] = op(in0[i], in1[i], ..).
#pragma once

#include <algorithm>

#include "engine/ops/cuda/vector_cuda.cuh"

namespace trainctl {

// Kernels

inline constexpr int kMapThreads = 256;
/// Packs a thread has in flight for each operand.
template <int V, int N>
inline constexpr int kMapUnroll = V == 1   ? 4
                                  : N == 1 ? 4
                                           : 2;

/// The division of n elements: `head` single elements, `packs` packs of V, and the rest.
struct Span {
  int64_t head = 0, packs = 0, n = 0;
};

/// Computes the packs of this block: all loads first, then op and stores.
template <int V, class T, int N, class Op>
__device__ void map_packs(std::array<Ref<T>, N> in, Ref<T> out, Op op, const Span& span) {
  constexpr int kUnroll = kMapUnroll<V, N>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kUnroll * kMapThreads) + threadIdx.x;
  Raw<T, V> raw[kUnroll][N];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t pack = first + u * kMapThreads;
    if (pack >= span.packs) continue;
#pragma unroll
    for (int k = 0; k < N; ++k) raw[u][k] = fetch<V>(in[k], span.head + pack * V);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t pack = first + u * kMapThreads;
    if (pack >= span.packs) continue;
    float v[N][V], y[V];
#pragma unroll
    for (int k = 0; k < N; ++k) unpack(raw[u][k], v[k]);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if constexpr (N == 1) y[j] = op(v[0][j]);
      if constexpr (N == 2) y[j] = op(v[0][j], v[1][j]);
    }
    store(out, span.head + pack * V, y);
  }
}

template <int V, class T, int N, class Op>
__global__ void __launch_bounds__(kMapThreads) map_kernel(std::array<Ref<T>, N> in, Ref<T> out, Op op, Span span) {
  wait_for_kernel_before();
  let_next_kernel_start();
  map_packs<V, T, N>(in, out, op, span);
  if constexpr (V > 1) {  // fewer than 2 V elements are outside of packs
    const int64_t edges = span.n - span.packs * V;
    if (blockIdx.x != gridDim.x - 1 || threadIdx.x >= edges) return;
    const int64_t i = threadIdx.x < span.head ? threadIdx.x : span.packs * V + threadIdx.x;
    if constexpr (N == 1) set(out, i, op(value(in[0], i)));
    if constexpr (N == 2) set(out, i, op(value(in[0], i), value(in[1], i)));
  }
}

// Launchers

template <int V>
Span span_of(int64_t n, int64_t head) {
  head = std::min(head, n);
  return {head, (n - head) / V, n};
}

template <int V, class T, int N, class Op>
CudaKernel launch_map(std::array<Ref<T>, N> in, Ref<T> out, Op op, const Span& span, const char* name) {
  const int64_t blocks = std::max<int64_t>(1, ceil_div(span.packs, kMapUnroll<V, N> * kMapThreads));
  return [=](CudaStream stream) {
    if (span.n == 0) return;
    launch(map_kernel<V, T, N, Op>, static_cast<unsigned>(blocks), kMapThreads, 0, stream, name, in, out, op, span);
  };
}

template <int V, class T, int N, class Op>
CudaKernel prepare_map(std::array<const TensorArg*, N> in, const TensorArg& out, int64_t head, Op op,
                       const char* name) {
  std::array<Ref<T>, N> refs;
  for (int k = 0; k < N; ++k) refs[k] = ref<T>(*in[k]);
  return launch_map<V, T, N>(refs, ref<T>(out), op, span_of<V>(out.size(), head), name);
}
template <int N, class Op>
CudaKernel prepare_map(std::array<const TensorArg*, N> in, const TensorArg& out, Op op, const char* name) {
  const TensorArg &first = *in[0], &last = *in[N - 1];
  int64_t head = 0;
  const auto fit = [&](int pack) { return (head = elements_before_packs({&first, &last, &out}, pack)) >= 0; };
  return with_access({&first, &last, &out}, fit, [&](auto access) {
    constexpr int V = access.V;
    return prepare_map<V, decltype(element_of(access)), N>(in, out, V > 1 ? head : 0, op, name);
  });
}

/// out = op(in[0]); in[0] may share out's memory.
template <class Op>
CudaKernel map_unary(const CudaKernelCall& call, Op op, const char* name) {
  const TensorArg &x = call.in[0], &y = call.out[0];
  check(x.size() == y.size(), "an element-wise kernel has operands of one size");
  return prepare_map<1>({&x}, y, op, name);
}

/// out = op(in[0], in[1]) of one size; either may share out's memory.
template <class Op>
CudaKernel map_binary(const CudaKernelCall& call, Op op, const char* name) {
  const TensorArg &a = call.in[0], &b = call.in[1], &y = call.out[0];
  check(a.size() == y.size() && b.size() == y.size(), "an element-wise kernel has operands of one size");
  return prepare_map<2>({&a, &b}, y, op, name);
}

/// The same where jobs have operands of different dtypes, as f32 labels of bf16 predictions: these are accessed in
/// packs too.
template <class Op>
CudaKernel map_mixed_binary(const TensorArg& a, const TensorArg& b, const TensorArg& y, Op op, const char* name) {
  check(a.size() == y.size() && b.size() == y.size(), "an element-wise kernel has operands of one size");
  return with_common_type({&a, &b, &y}, [&](auto t) {
    using T = decltype(t);
    const int64_t head = elements_before_packs({&a, &b, &y}, kPack<T>);
    if (head < 0) return prepare_map<1, Mixed, 2>({&a, &b}, y, 0, op, name);
    return prepare_map<kPack<T>, T, 2>({&a, &b}, y, head, op, name);
  });
}

}  // namespace trainctl
