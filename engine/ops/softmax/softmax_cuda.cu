// y = e^(x - max) / sum e^(x - max) along one dim.  dx = y * (dy - sum dy * y).
// A tensor is [outer, n, inner] around the dim: rows where inner is 1, otherwise columns of n elements.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/norms_cuda.cuh"
#include "engine/ops/softmax/exponentials_cuda.cuh"
#include "engine/ops/softmax/softmax_dim.h"

namespace trainctl {
namespace {

// Functions for a row

template <int V, class T, class X>
__device__ void write_exponentials(const RowPart<V>& part, bool valid, const Exponentials& e, Ref<T> y, X& x) {
  const float scale = 1.0f / e.sum;
  write_row(
      part, valid, y,
      [&](int, auto a) {
        for (float& v : a.v) v = e.of(v) * scale;
        return a;
      },
      x);
}

/// The sum of dy * y; the first pass over the row.
template <int V, class Grad, class Y>
__device__ float sum_of_products(RowGroup& group, const RowPart<V>& part, Grad& dy, Y& y) {
  float total = 0;
  read_row(
      part,
      [&]<int W>(int, Pack<W> a, const Pack<W>& b) {
        for (int j = 0; j < W; ++j) a.v[j] *= b.v[j];
        total += sum_of_pack(a.v);
      },
      dy, y);
  return group.sum(total);
}

template <int V, class T, class Grad, class Y>
__device__ void write_gradient(const RowPart<V>& part, bool valid, float total, Ref<T> dx, Grad& dy, Y& y) {
  write_row(
      part, valid, dx,
      [&]<int W>(int, Pack<W> a, const Pack<W>& b) {
        for (int j = 0; j < W; ++j) a.v[j] = b.v[j] * (a.v[j] - total);
        return a;
      },
      dy, y);
}

// Kernels

template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 1>, kRowBlocks<V, kInRegisters>)
    softmax_rows(Rows rows, Ref<T> x, Ref<T> y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters> from(x, rows, group);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t, bool valid) {
    from.start(part);
    Exponentials e;
    e.add_row(part, from);
    e.combine(group);
    write_exponentials(part, valid, e, y, from);
  });
}

template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 2>, 1)
    softmax_grad_rows(Rows rows, Ref<T> dy, Ref<T> y, Ref<T> dx) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters, 2> grad(dy, rows, group, 0), from(y, rows, group, 1);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t, bool valid) {
    grad.start(part);
    from.start(part);
    const float total = sum_of_products(group, part, grad, from);
    write_gradient(part, valid, total, dx, grad, from);
  });
}

// Kernels for a part of the dim.

template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 1>) softmax_stats_rows(Rows rows, Ref<T> x, float* stats) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters, 0> from(x, rows, group);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    from.start(part);
    Exponentials e;
    e.sum_row(group, part, from, [](int, auto&) {});
    if (!valid || group.lane() != 0) return;
    stats[2 * row] = e.top;
    stats[2 * row + 1] = e.sum;
  });
}

template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 1>, kRowBlocks<V, kInRegisters>)
    softmax_apply_rows(Rows rows, Ref<T> x, const float* stats, int parts, Ref<T> y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters> from(x, rows, group);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    from.start(part);
    const Exponentials e = exponentials_of_parts(stats, parts, rows.count, 2, row);
    wait_for_row(part, from);
    write_exponentials(part, valid, e, y, from);
  });
}

template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 2>, 1)
    softmax_grad_stats_rows(Rows rows, Ref<T> dy, Ref<T> y, float* stats) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters, 2> grad(dy, rows, group, 0), from(y, rows, group, 1);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    grad.start(part);
    from.start(part);
    const float total = sum_of_products(group, part, grad, from);
    if (valid && group.lane() == 0) stats[row] = total;
  });
}

template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 2>, 1)
    softmax_grad_apply_rows(Rows rows, Ref<T> dy, Ref<T> y, const float* stats, int parts, Ref<T> dx) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters, 2> grad(dy, rows, group, 0), from(y, rows, group, 1);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    grad.start(part);
    from.start(part);
    const float total = total_of_parts(stats, parts, rows.count, row);
    wait_for_row(part, grad, from);
    write_gradient(part, valid, total, dx, grad, from);
  });
}

// Along a dim other than the last.

constexpr int kColumns = 32,
              kDown = 8;  // threads across columns, and down a column

/// Reduces v by f over the threads of a column; all of them get the result.
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

/// A block has kColumns columns of one outer index. The block index iterates over tiles of inner, then over outer.
struct Columns {
  int64_t n, inner, tiles;

  __device__ int64_t column() const { return blockIdx.x % tiles * kColumns + threadIdx.x; }
  __device__ int64_t first() const { return blockIdx.x / tiles * n * inner + column(); }
  __device__ int64_t row() const { return blockIdx.x / tiles * inner + column(); }
  __device__ int64_t rows() const { return gridDim.x / tiles * inner; }
  /// False for threads outside the tensor, and for all but one thread of a column.
  __device__ bool writes() const { return threadIdx.y == 0 && column() < inner; }
};

__global__ void __launch_bounds__(kColumns* kDown) softmax_columns(Columns c, Ref<Mixed> x, Ref<Mixed> y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t n = c.column() < c.inner ? c.n : 0, first = c.first();
  Exponentials e;
  for (int64_t k = threadIdx.y; k < n; k += kDown) {
    const float v[1] = {value(x, first + k * c.inner)};
    e.add(v);
  }
  e.raise(down_the_column(e.top, [](float a, float b) { return fmaxf(a, b); }));
  const float sum = down_the_column(e.sum, [](float a, float b) { return a + b; });
  for (int64_t k = threadIdx.y; k < n; k += kDown) {
    set(y, first + k * c.inner, e.of(value(x, first + k * c.inner)) / sum);
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

// Kernels for a part of the dim.

__global__ void __launch_bounds__(kColumns* kDown) softmax_stats_columns(Columns c, Ref<Mixed> x, float* stats) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t n = c.column() < c.inner ? c.n : 0, first = c.first();
  Exponentials e;
  float high = kLowest;
  for (int64_t k = threadIdx.y; k < n; k += kDown) {
    const float v[1] = {value(x, first + k * c.inner)};
    high = fmaxf(high, v[0]);
    e.add(v);
  }
  const auto larger = [](float a, float b) { return fmaxf(a, b); };
  e.raise(down_the_column(e.top, larger));
  e.sum = down_the_column(e.sum, [](float a, float b) { return a + b; });
  e.raise(down_the_column(high, larger));  // by at most kAhead downwards
  if (!c.writes()) return;
  stats[2 * c.row()] = e.top;
  stats[2 * c.row() + 1] = e.sum;
}

__global__ void __launch_bounds__(kColumns* kDown)
    softmax_apply_columns(Columns c, Ref<Mixed> x, const float* stats, int parts, Ref<Mixed> y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  if (c.column() >= c.inner) return;
  const Exponentials e = exponentials_of_parts(stats, parts, c.rows(), 2, c.row());
  for (int64_t k = threadIdx.y; k < c.n; k += kDown) {
    const int64_t at = c.first() + k * c.inner;
    set(y, at, e.of(value(x, at)) / e.sum);
  }
}

__global__ void __launch_bounds__(kColumns* kDown)
    softmax_grad_stats_columns(Columns c, Ref<Mixed> dy, Ref<Mixed> y, float* stats) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t n = c.column() < c.inner ? c.n : 0, first = c.first();
  float total = 0;
  for (int64_t k = threadIdx.y; k < n; k += kDown) {
    total += value(dy, first + k * c.inner) * value(y, first + k * c.inner);
  }
  total = down_the_column(total, [](float a, float b) { return a + b; });
  if (c.writes()) stats[c.row()] = total;
}

__global__ void __launch_bounds__(kColumns* kDown)
    softmax_grad_apply_columns(Columns c, Ref<Mixed> dy, Ref<Mixed> y, const float* stats, int parts, Ref<Mixed> dx) {
  wait_for_kernel_before();
  let_next_kernel_start();
  if (c.column() >= c.inner) return;
  const float total = total_of_parts(stats, parts, c.rows(), c.row());
  for (int64_t k = threadIdx.y; k < c.n; k += kDown) {
    const int64_t at = c.first() + k * c.inner;
    set(dx, at, value(y, at) * (value(dy, at) - total));
  }
}

// Launchers

template <class... Refs>
CudaKernel launch_columns(void (*kernel)(Columns, Refs...), const SoftmaxDim& a, const char* name,
                          const Refs&... refs) {
  const Columns columns{a.n, a.inner, ceil_div(a.inner, kColumns)};
  check(a.outer * columns.tiles < (int64_t{1} << 31), "softmax takes up to 2^31 tiles of columns");
  const auto blocks = static_cast<unsigned>(a.outer * columns.tiles);
  return [=](CudaStream stream) {
    if (blocks > 0) launch(kernel, blocks, dim3(kColumns, kDown), 0, stream, name, columns, refs...);
  };
}

CudaKernel prepare_softmax(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &y = call.out[0];
  const SoftmaxDim a = softmax_dim(call);
  if (a.inner != 1) return launch_columns(softmax_columns, a, "softmax", ref<Mixed>(x), ref<Mixed>(y));
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(softmax_rows<pack, in_registers, T>, how, "softmax", how.rows, ref<T>(x), ref<T>(y));
  };
  return with_rows({&x, &y}, a.outer, a.n, 1, {&x, &y}, 0, prepare);
}

CudaKernel prepare_softmax_grad(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &y = call.in[1], &dx = call.out[0];
  const SoftmaxDim a = softmax_dim(call);
  if (a.inner != 1) {
    return launch_columns(softmax_grad_columns, a, "softmax_grad", ref<Mixed>(dy), ref<Mixed>(y), ref<Mixed>(dx));
  }
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(softmax_grad_rows<pack, in_registers, T>, how, "softmax_grad", how.rows, ref<T>(dy), ref<T>(y),
                       ref<T>(dx));
  };
  return with_rows({&dy, &y, &dx}, a.outer, a.n, 2, {&dy, &y, &dx}, 0, prepare);
}

CudaKernel prepare_softmax_stats(const CudaKernelCall& call) {
  const TensorArg& x = call.in[0];
  float* const stats = statistic(call.out[0]).p;
  const SoftmaxDim a = softmax_dim(call, x.shape);
  if (a.inner != 1) return launch_columns(softmax_stats_columns, a, "softmax_stats", ref<Mixed>(x), stats);
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(softmax_stats_rows<pack, in_registers, T>, how, "softmax_stats", how.rows, ref<T>(x), stats);
  };
  return with_rows({&x}, a.outer, a.n, 0, {&x}, 0, prepare);
}

CudaKernel prepare_softmax_apply(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &y = call.out[0];
  const float* const stats = statistic(call.in[1]).p;
  const int parts = parts_of(call.in[1]);
  const SoftmaxDim a = softmax_dim(call, x.shape);
  if (a.inner != 1) {
    return launch_columns(softmax_apply_columns, a, "softmax_apply", ref<Mixed>(x), stats, parts, ref<Mixed>(y));
  }
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(softmax_apply_rows<pack, in_registers, T>, how, "softmax_apply", how.rows, ref<T>(x), stats,
                       parts, ref<T>(y));
  };
  return with_rows({&x, &y}, a.outer, a.n, 1, {&x, &y}, 0, prepare);
}

CudaKernel prepare_softmax_grad_stats(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &y = call.in[1];
  float* const stats = statistic(call.out[0]).p;
  const SoftmaxDim a = softmax_dim(call, y.shape);
  if (a.inner != 1) {
    return launch_columns(softmax_grad_stats_columns, a, "softmax_grad_stats", ref<Mixed>(dy), ref<Mixed>(y), stats);
  }
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(softmax_grad_stats_rows<pack, in_registers, T>, how, "softmax_grad_stats", how.rows, ref<T>(dy),
                       ref<T>(y), stats);
  };
  return with_rows({&dy, &y}, a.outer, a.n, 2, {&dy, &y}, 0, prepare);
}

CudaKernel prepare_softmax_grad_apply(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &y = call.in[1], &dx = call.out[0];
  const float* const stats = statistic(call.in[2]).p;
  const int parts = parts_of(call.in[2]);
  const SoftmaxDim a = softmax_dim(call, y.shape);
  if (a.inner != 1) {
    return launch_columns(softmax_grad_apply_columns, a, "softmax_grad_apply", ref<Mixed>(dy), ref<Mixed>(y), stats,
                          parts, ref<Mixed>(dx));
  }
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(softmax_grad_apply_rows<pack, in_registers, T>, how, "softmax_grad_apply", how.rows, ref<T>(dy),
                       ref<T>(y), stats, parts, ref<T>(dx));
  };
  return with_rows({&dy, &y, &dx}, a.outer, a.n, 2, {&dy, &y, &dx}, 0, prepare);
}

}  // namespace

extern const CudaKernels softmax_cuda = {{"softmax", prepare_softmax, kTakesF16},
                                         {"softmax_grad", prepare_softmax_grad, kTakesF16},
                                         {"softmax_stats", prepare_softmax_stats, kTakesF16},
                                         {"softmax_apply", prepare_softmax_apply, kTakesF16},
                                         {"softmax_grad_stats", prepare_softmax_grad_stats, kTakesF16},
                                         {"softmax_grad_apply", prepare_softmax_grad_apply, kTakesF16}};

}  // namespace trainctl
