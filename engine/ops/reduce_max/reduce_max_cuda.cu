// y = the largest of x over dims; dx = dy / count where x = y, count = the number of such elements.
//
// A block has `lanes` outputs and `depth` threads for each. If the innermost dim of x is reduced, lanes is 1 or as many
// as short rows allow, and consecutive threads share an output; else consecutive threads have consecutive outputs. So
// a warp reads consecutive elements of x either way.
#include <algorithm>

#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/strided_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kMaxUnroll = 4;

/// Outputs and the elements of x that each is the largest of.
struct Reduction {
  Nest<2> kept;     ///< offsets in x and in y
  Nest<1> reduced;  ///< in x
  int lanes = 1;    ///< outputs of a block, a power of 2
  bool along_rows = false;

  __device__ int depth() const { return kMaxThreads / lanes; }
  __device__ int lane() const { return along_rows ? threadIdx.x / depth() : threadIdx.x % lanes; }
  __device__ int part() const { return along_rows ? threadIdx.x % depth() : threadIdx.x / lanes; }
};

// Kernels

__device__ inline float larger(float a, float b) { return b > a || b != b ? b : a; }

/// Combines the values of an output's threads; all of them get the result. Every thread of the block takes part.
template <class V, class Op>
__device__ inline V over_parts(const Reduction& g, V v, Op op) {
  __shared__ V shared[kMaxThreads];
  const int depth = g.depth(), own = g.lane() * depth + g.part();
  __syncthreads();
  shared[own] = v;
  for (int away = depth / 2; away > 0; away /= 2) {
    __syncthreads();
    if (g.part() < away) shared[own] = op(shared[own], shared[own + away]);
  }
  __syncthreads();
  return shared[g.lane() * depth];
}

/// Calls f(offset in x) for this thread's elements of the output at `base`, several loads at a time.
template <class T, class F>
__device__ inline void each_element(const Reduction& g, const Ref<T>& x, int64_t base, F f) {
  const auto step = static_cast<uint32_t>(g.depth()), count = static_cast<uint32_t>(g.reduced.count);
  uint32_t r = g.part();
  for (; r < count; r += kMaxUnroll * step) {
    int64_t at[kMaxUnroll][1];
    Raw<T, 1> raw[kMaxUnroll];
#pragma unroll
    for (int u = 0; u < kMaxUnroll; ++u) {
      at[u][0] = base;
      g.reduced.add_offsets(min(r + u * step, count - 1), at[u]);
    }
#pragma unroll
    for (int u = 0; u < kMaxUnroll; ++u) raw[u] = fetch<1>(x, at[u][0]);
#pragma unroll
    for (int u = 0; u < kMaxUnroll; ++u) {
      float v[1];
      unpack(raw[u], v);
      if (r + u * step < count) f(at[u][0], v[0]);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kMaxThreads) reduce_max_kernel(Reduction g, Ref<T> x, Ref<T> y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t k = static_cast<int64_t>(blockIdx.x) * g.lanes + g.lane();
  int64_t at[2] = {};
  g.kept.add_offsets(static_cast<uint32_t>(min(k, g.kept.count - 1)), at);
  float top = -INFINITY;
  each_element(g, x, at[0], [&](int64_t, float v) { top = larger(top, v); });
  top = over_parts(g, top, [](float a, float b) { return larger(a, b); });
  if (k < g.kept.count && g.part() == 0) set(y, at[1], top);
}

template <class T>
__global__ void __launch_bounds__(kMaxThreads)
    reduce_max_grad_kernel(Reduction g, Ref<T> dy, Ref<T> x, Ref<T> y, Ref<T> dx) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t k = static_cast<int64_t>(blockIdx.x) * g.lanes + g.lane();
  int64_t at[2] = {};
  g.kept.add_offsets(static_cast<uint32_t>(min(k, g.kept.count - 1)), at);
  const float top = value(y, at[1]);
  unsigned equal = 0;
  each_element(g, x, at[0], [&](int64_t, float v) { equal += v == top ? 1u : 0u; });
  equal = over_parts(g, equal, [](unsigned a, unsigned b) { return a + b; });
  if (k >= g.kept.count) return;
  const float share = value(dy, at[1]) / static_cast<float>(max(1u, equal));
  each_element(g, x, at[0], [&](int64_t i, float v) { set(dx, i, v == top ? share : 0.0f); });
}

// Launchers

/// The order in which the elements of x are visited for each output, and the number of threads that share an output.
Reduction reduction(const TensorArg& x, const TensorArg& y, const Ints& dims) {
  const Shape strides = cpu::strides_of(x.shape), out = cpu::kept_strides(x.shape, y.shape, dims);
  cpu::Loops<2> kept;
  cpu::Loops<1> reduced;
  for (size_t d = 0; d < x.shape.size(); ++d) {
    const bool is_reduced = std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end();
    if (is_reduced) reduced.add(x.shape[d], {strides[d]});
    if (!is_reduced) kept.add(x.shape[d], {strides[d], out[d]});
  }
  Reduction g;
  g.along_rows = reduced.ndim > 0 && reduced.stride[reduced.ndim - 1][0] == 1;
  g.kept = Nest<2>(kept);
  g.reduced = Nest<1>(reduced);
  if (g.along_rows) {
    while (g.lanes < kMaxThreads / 8 && kMaxThreads / g.lanes >= 2 * g.reduced.count) g.lanes *= 2;
  } else {  // fewer lanes where rows are many and outputs few
    for (g.lanes = 32; g.lanes < kMaxThreads && kMaxThreads / g.lanes >= 2 * g.reduced.count;) g.lanes *= 2;
  }
  return g;
}

unsigned blocks_of(const Reduction& g) { return static_cast<unsigned>(ceil_div(g.kept.count, g.lanes)); }

CudaKernel prepare_reduce_max(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &y = call.out[0];
  if (x.size() == 0) return [](CudaStream) {};
  const Reduction g = reduction(x, y, call.attrs.ints("dims"));
  return with_common_type({&x, &y}, [&](auto t) {
    using T = decltype(t);
    return CudaKernel([=, from = ref<T>(x), to = ref<T>(y)](CudaStream stream) {
      launch(reduce_max_kernel<T>, blocks_of(g), kMaxThreads, 0, stream, "reduce_max", g, from, to);
    });
  });
}

CudaKernel prepare_reduce_max_grad(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1], &y = call.in[2], &dx = call.out[0];
  if (x.size() == 0) return [](CudaStream) {};
  const Reduction g = reduction(x, y, call.attrs.ints("dims"));
  return with_common_type({&dy, &x, &y, &dx}, [&](auto t) {
    using T = decltype(t);
    return CudaKernel([=, of_y = ref<T>(dy), from = ref<T>(x), top = ref<T>(y), to = ref<T>(dx)](CudaStream stream) {
      launch(reduce_max_grad_kernel<T>, blocks_of(g), kMaxThreads, 0, stream, "reduce_max_grad", g, of_y, from, top,
             to);
    });
  });
}

}  // namespace

extern const CudaKernels reduce_max_cuda = {{"reduce_max", prepare_reduce_max, kTakesF16},
                                            {"reduce_max_grad", prepare_reduce_max_grad, kTakesF16}};

}  // namespace trainctl
