// y = e^(x - max) / sum e^(x - max) along one dim.  dx = y * (dy - sum dy * y).
// A tensor is [outer, n, inner] around the dim: rows where inner is 1, otherwise columns of n elements.
#include "engine/ops/cuda_kernels.h"
#include "engine/ops/rows_cuda.cuh"
#include "engine/ops/softmax/softmax_dim.h"

namespace trainctl {
namespace {

// Kernels

template <int V, class T>
__global__ void __launch_bounds__(kMaxRowThreads) softmax_rows(Rows rows, Ref<T> x, Ref<T> y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  const Stash stash(rows, group, 0, 1);
  over_rows(group, rows, [&](int64_t row, bool valid) {
    StashedRow<V, T> from(x, row * rows.n, stash);
    Exponentials e;
    read_packs<4>(
        group, rows, [&](int p) { return from.first(p); },
        [&](int p, const Raw<T, V>& raw) {
          float v[V];
          unpack(raw, v);
          from.keep(p, v);
          e.add(v, [](int) { return true; });
        });
    e.combine(group);
    const float scale = 1.0f / e.sum;
    over_packs(group, rows, [&](int p) {
      float v[V];
      from.load_again(p, v);
      for (int j = 0; j < V; ++j) v[j] = __expf(v[j] - e.top) * scale;
      if (valid) store(y, row * rows.n + static_cast<int64_t>(p) * V, v);
    });
  });
}

template <int V, class T>
__global__ void __launch_bounds__(kMaxRowThreads) softmax_grad_rows(Rows rows, Ref<T> dy, Ref<T> y, Ref<T> dx) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  const Stash stash_dy(rows, group, 0, 2), stash_y(rows, group, 1, 2);
  over_rows(group, rows, [&](int64_t row, bool valid) {
    StashedRow<V, T> g(dy, row * rows.n, stash_dy), p(y, row * rows.n, stash_y);
    float total = 0;
    read_packs<2>(
        group, rows,
        [&](int at) {
          return RawPair{g.first(at), p.first(at)};
        },
        [&](int at, const RawPair<Raw<T, V>, Raw<T, V>>& raw) {
          float a[V], b[V];
          unpack(raw.a, a);
          unpack(raw.b, b);
          g.keep(at, a);
          p.keep(at, b);
          for (int j = 0; j < V; ++j) total += a[j] * b[j];
        });
    total = group.sum(total);
    over_packs(group, rows, [&](int at) {
      float a[V], b[V];
      g.load_again(at, a);
      p.load_again(at, b);
      for (int j = 0; j < V; ++j) a[j] = b[j] * (a[j] - total);
      if (valid) store(dx, row * rows.n + static_cast<int64_t>(at) * V, a);
    });
  });
}

constexpr int kColumns = 32,
              kDown = 8;  // threads side by side, and down a column

/// The value of f over the threads of a column, in all of them.
template <class F>
__device__ float down_the_column(float v, F f) {
  __shared__ float of[kDown][kColumns];
  __syncthreads();
  of[threadIdx.y][threadIdx.x] = v;
  __syncthreads();
  v = of[0][threadIdx.x];
  for (int i = 1; i < kDown; ++i) v = f(v, of[i][threadIdx.x]);
  return v;
}

/// A block has kColumns columns of one outer index. The grid counts tiles of inner, then outer.
struct Columns {
  int64_t n, inner, tiles;

  __device__ int64_t column() const { return blockIdx.x % tiles * kColumns + threadIdx.x; }
  __device__ int64_t first() const { return blockIdx.x / tiles * n * inner + column(); }
};

__global__ void __launch_bounds__(kColumns* kDown) softmax_columns(Columns c, Ref<Mixed> x, Ref<Mixed> y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t n = c.column() < c.inner ? c.n : 0, first = c.first();
  Exponentials e;
  for (int64_t k = threadIdx.y; k < n; k += kDown) {
    const float v[1] = {value(x, first + k * c.inner)};
    e.add(v, [](int) { return true; });
  }
  const float top = down_the_column(e.top, [](float a, float b) { return fmaxf(a, b); });
  const float sum = down_the_column(e.sum * __expf(e.top - top), [](float a, float b) { return a + b; });
  for (int64_t k = threadIdx.y; k < n; k += kDown) {
    set(y, first + k * c.inner, __expf(value(x, first + k * c.inner) - top) / sum);
  }
}

__global__ void __launch_bounds__(kColumns* kDown)
    softmax_grad_columns(Columns c, Ref<Mixed> dy, Ref<Mixed> y, Ref<Mixed> dx) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t n = c.column() < c.inner ? c.n : 0, first = c.first();
  float total = 0;
  for (int64_t k = threadIdx.y; k < n; k += kDown) {
    total += value(dy, first + k * c.inner) * value(y, first + k * c.inner);
  }
  total = down_the_column(total, [](float a, float b) { return a + b; });
  for (int64_t k = threadIdx.y; k < n; k += kDown) {
    const int64_t at = first + k * c.inner;
    set(dx, at, value(y, at) * (value(dy, at) - total));
  }
}

// Launchers

template <class... Refs>
CudaKernel launch_columns(void (*kernel)(Columns, Refs...), const SoftmaxDim& a, const char* name,
                          const Refs&... refs) {
  const Columns columns{a.n, a.inner, ceil_div(a.inner, kColumns)};
  const auto blocks = static_cast<unsigned>(a.outer * columns.tiles);
  return [=](CudaStream stream) {
    if (blocks > 0) launch(kernel, blocks, dim3(kColumns, kDown), 0, stream, name, columns, refs...);
  };
}

}  // namespace

CudaKernel prepare_softmax_cuda(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &y = call.out[0];
  const SoftmaxDim a = softmax_dim(call);
  if (a.inner != 1) return launch_columns(softmax_columns, a, "softmax", ref<Mixed>(x), ref<Mixed>(y));
  return with_common_type({&x, &y}, [&](auto t) {
    using T = decltype(t);
    return with_row_pack<T>(a.n, {&x, &y}, [&](auto pack) {
      const RowsLaunch how(a.outer, a.n, pack, 1);
      return launch_rows(softmax_rows<pack, T>, how, "softmax", how.rows, ref<T>(x), ref<T>(y));
    });
  });
}

CudaKernel prepare_softmax_grad_cuda(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &y = call.in[1], &dx = call.out[0];
  const SoftmaxDim a = softmax_dim(call);
  if (a.inner != 1) {
    return launch_columns(softmax_grad_columns, a, "softmax_grad", ref<Mixed>(dy), ref<Mixed>(y), ref<Mixed>(dx));
  }
  return with_common_type({&dy, &y, &dx}, [&](auto t) {
    using T = decltype(t);
    return with_row_pack<T>(a.n, {&dy, &y, &dx}, [&](auto pack) {
      const RowsLaunch how(a.outer, a.n, pack, 2);
      return launch_rows(softmax_grad_rows<pack, T>, how, "softmax_grad", how.rows, ref<T>(dy), ref<T>(y), ref<T>(dx));
    });
  });
}

}  // namespace trainctl
