// Divides each row (the last dim, n) by its root mean square: y = xhat * gamma, xhat = x * rstd. gamma has the attr
// offset added to it.
//   g = dy * gamma    dx = rstd * (g - xhat * mean(g * xhat))    dgamma = sum dy * xhat
#include "engine/ops/cuda/norm_grads_cuda.cuh"
#include "engine/ops/cuda/sums_cuda.cuh"
#include "engine/ops/op_def.h"

namespace trainctl {

extern const OpDef rms_norm_param_grad_op;

namespace {

// Functions for a row

/// The sum of x^2; the first pass over the row.
template <int V, class X>
__device__ float squares_of_row(RowGroup& group, const RowPart<V>& part, X& x) {
  float squares = 0;
  read_row(
      part,
      [&]<int W>(int, Pack<W> a) {
        for (float& v : a.v) v *= v;
        squares += sum_of_pack(a.v);
      },
      x);
  return group.sum(squares);
}

/// Writes y and rstd.
template <int V, class T, class X, class Scale>
__device__ void write_scaled(const RowGroup& group, const RowPart<V>& part, int64_t row, bool valid, float rstd,
                             Ref<T> y, Ref<float> rstds, X& x, Scale& scale) {
  write_row(
      part, valid, y,
      [&]<int W>(int, Pack<W> a, const Pack<W>& g) {
        for (int j = 0; j < W; ++j) a.v[j] = a.v[j] * rstd * g.v[j];
        return a;
      },
      x, scale);
  if (valid && group.lane() == 0) set(rstds, row, rstd);
}

/// The sum of g * xhat; the first pass over the row.
template <int V, class Grad, class X, class Scale>
__device__ float sum_along(RowGroup& group, const RowPart<V>& part, float rstd, Grad& dy, X& x, Scale& scale) {
  float along = 0;
  read_row(
      part,
      [&]<int W>(int, Pack<W> a, const Pack<W>& b, const Pack<W>& s) {
        for (int j = 0; j < W; ++j) a.v[j] *= s.v[j] * (b.v[j] * rstd);
        along += sum_of_pack(a.v);
      },
      dy, x, scale);
  return group.sum(along);
}

/// `mean` is that of g * xhat.
template <int V, class T, class Grad, class X, class Scale>
__device__ void write_gradient(const RowPart<V>& part, bool valid, float rstd, float mean, Ref<T> dx, Grad& dy, X& x,
                               Scale& scale) {
  write_row(
      part, valid, dx,
      [&]<int W>(int, Pack<W> a, const Pack<W>& b, const Pack<W>& s) {
        for (int j = 0; j < W; ++j) a.v[j] = rstd * (a.v[j] * s.v[j] - b.v[j] * rstd * mean);
        return a;
      },
      dy, x, scale);
}

// Kernels

template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 2>, kRowBlocks<V, kInRegisters>)
    rms_norm_kernel(Rows rows, Ref<T> x, RowSide<T> gamma, Ref<T> y, Ref<float> rstds, float eps) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters> from(x, rows, group);
  RowSideOperand<V, T> scale(gamma);
  const float share = 1.0f / static_cast<float>(rows.n);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    from.start(part);
    const float rstd = 1.0f / sqrtf(squares_of_row(group, part, from) * share + eps);
    write_scaled(group, part, row, valid, rstd, y, rstds, from, scale);
  });
}

template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 3>, 1)
    rms_norm_grad_kernel(Rows rows, Ref<T> dy, Ref<T> x, Ref<float> rstds, RowSide<T> gamma, Ref<T> dx) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters, 2> grad(dy, rows, group, 0), from(x, rows, group, 1);
  RowSideOperand<V, T> scale(gamma);
  const float share = 1.0f / static_cast<float>(rows.n);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    grad.start(part);
    from.start(part);
    const float rstd = value(rstds, row);
    const float mean = sum_along(group, part, rstd, grad, from, scale) * share;
    write_gradient(part, valid, rstd, mean, dx, grad, from, scale);
  });
}

// Kernels for a part of the rows' elements: one number per row.

template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 1>)
    rms_norm_stats_kernel(Rows rows, Ref<T> x, float* stats) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters, 0> from(x, rows, group);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    from.start(part);
    const float squares = squares_of_row(group, part, from);
    if (valid && group.lane() == 0) stats[row] = squares;
  });
}

template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 2>, kRowBlocks<V, kInRegisters>)
    rms_norm_apply_kernel(Rows rows, Ref<T> x, RowSide<T> gamma, const float* stats, int parts, Ref<T> y,
                          Ref<float> rstds, float eps) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters> from(x, rows, group);
  RowSideOperand<V, T> scale(gamma);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    from.start(part);
    const float rstd = 1.0f / sqrtf(mean_of_parts(stats, parts, rows, row) + eps);
    wait_for_row(part, from);
    write_scaled(group, part, row, valid, rstd, y, rstds, from, scale);
  });
}

template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 3>, 1)
    rms_norm_grad_stats_kernel(Rows rows, Ref<T> dy, Ref<T> x, Ref<float> rstds, RowSide<T> gamma, float* stats) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters, 2> grad(dy, rows, group, 0), from(x, rows, group, 1);
  RowSideOperand<V, T> scale(gamma);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    grad.start(part);
    from.start(part);
    const float rstd = value(rstds, row);
    const float along = sum_along(group, part, rstd, grad, from, scale);
    if (valid && group.lane() == 0) stats[row] = along;
  });
}

template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 3>, 1)
    rms_norm_grad_apply_kernel(Rows rows, Ref<T> dy, Ref<T> x, Ref<float> rstds, RowSide<T> gamma, const float* stats,
                               int parts, Ref<T> dx) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters, 2> grad(dy, rows, group, 0), from(x, rows, group, 1);
  RowSideOperand<V, T> scale(gamma);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    grad.start(part);
    from.start(part);
    const float rstd = value(rstds, row), mean = mean_of_parts(stats, parts, rows, row);
    wait_for_row(part, grad, from);
    write_gradient(part, valid, rstd, mean, dx, grad, from, scale);
  });
}

/// dgamma as a sum over the rows.
template <class T>
struct RmsNormTerm {
  static constexpr int kSums = 1;
  Ref<T> dy, x;
  Ref<float> rstds;
  SumOutput dgamma;

  template <int V>
  __device__ int begin(int64_t) const {
    return 0;
  }
  template <int V>
  struct Fetched {
    Raw<T, V> dy, x;
    float rstd;
  };
  template <int V>
  __device__ Fetched<V> fetch(int64_t at, uint32_t row) const {
    return {trainctl::fetch<V>(dy, at), trainctl::fetch<V>(x, at), value(rstds, row)};
  }
  template <int V>
  __device__ void terms(int64_t, const Fetched<V>& f, int, float (&v)[1][V]) const {
    float g[V];
    unpack(f.x, v[0]);
    unpack(f.dy, g);
#pragma unroll
    for (int j = 0; j < V; ++j) v[0][j] = g[j] * (v[0][j] * f.rstd);
  }
  __device__ void finish(int64_t k, const double (&total)[1]) const { dgamma.write(k, total[0]); }
};

// Launchers

/// gamma + the attr offset, or ones.
template <class T>
RowSide<T> scale_of(const CudaKernelCall& call, const TensorArg* gamma, const Rows& rows, int pack) {
  return row_side<T>(gamma, 1.0f, rows, pack, static_cast<float>(call.attrs.number("offset", 0)));
}

CudaKernel prepare_rms_norm(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &y = call.out[0], *gamma = optional_input(call, 1);
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(rms_norm_kernel<pack, in_registers, T>, how, "rms_norm", how.rows, ref<T>(x),
                       scale_of<T>(call, gamma, how.rows, pack), ref<T>(y), statistic(call.out[1]),
                       static_cast<float>(call.attrs.number("eps", 1e-5)));
  };
  return with_rows({&x, &y, gamma ? gamma : &x}, rows_of(x), x.shape.back(), 1, {&x, &y}, 1, prepare);
}

CudaKernel prepare_plain_rms_norm_grad(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1], &dx = call.out[0], *gamma = optional_input(call, 3);
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(rms_norm_grad_kernel<pack, in_registers, T>, how, "rms_norm_grad", how.rows, ref<T>(dy),
                       ref<T>(x), statistic(call.in[2]), scale_of<T>(call, gamma, how.rows, pack), ref<T>(dx));
  };
  return with_rows({&dy, &x, &dx, gamma ? gamma : &x}, rows_of(x), x.shape.back(), 2, {&dy, &x, &dx}, 1, prepare);
}

CudaKernel prepare_rms_norm_stats(const CudaKernelCall& call) {
  const TensorArg& x = call.in[0];
  float* const stats = statistic(call.out[0]).p;
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(rms_norm_stats_kernel<pack, in_registers, T>, how, "rms_norm_stats", how.rows, ref<T>(x), stats);
  };
  return with_rows({&x}, rows_of(x), x.shape.back(), 0, {&x}, 0, prepare);
}

CudaKernel prepare_rms_norm_apply(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &y = call.out[0], &of_parts = call.in.back(),
                  *gamma = call.in.size() > 2 ? &call.in[1] : nullptr;
  const float* const stats = statistic(of_parts).p;
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(rms_norm_apply_kernel<pack, in_registers, T>, how, "rms_norm_apply", how.rows, ref<T>(x),
                       scale_of<T>(call, gamma, how.rows, pack), stats, parts_of(of_parts), ref<T>(y),
                       statistic(call.out[1]), static_cast<float>(call.attrs.number("eps", 1e-5)));
  };
  return with_rows({&x, &y, gamma ? gamma : &x}, rows_of(x), x.shape.back(), 1, {&x, &y}, 1, prepare);
}

CudaKernel prepare_rms_norm_grad_stats(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1], *gamma = optional_input(call, 3);
  float* const stats = statistic(call.out[0]).p;
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(rms_norm_grad_stats_kernel<pack, in_registers, T>, how, "rms_norm_grad_stats", how.rows,
                       ref<T>(dy), ref<T>(x), statistic(call.in[2]), scale_of<T>(call, gamma, how.rows, pack), stats);
  };
  return with_rows({&dy, &x, gamma ? gamma : &x}, rows_of(x), x.shape.back(), 2, {&dy, &x}, 1, prepare);
}

CudaKernel prepare_rms_norm_grad_apply(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1], &dx = call.out[0], &of_parts = call.in.back(),
                  *gamma = call.in.size() > 4 ? &call.in[3] : nullptr;
  const float* const stats = statistic(of_parts).p;
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(rms_norm_grad_apply_kernel<pack, in_registers, T>, how, "rms_norm_grad_apply", how.rows,
                       ref<T>(dy), ref<T>(x), statistic(call.in[2]), scale_of<T>(call, gamma, how.rows, pack), stats,
                       parts_of(of_parts), ref<T>(dx));
  };
  return with_rows({&dy, &x, &dx, gamma ? gamma : &x}, rows_of(x), x.shape.back(), 2, {&dy, &x, &dx}, 1, prepare);
}

CudaKernel prepare_rms_norm_param_grad(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1];
  const auto term_of = [&]<class T>(T) {
    return RmsNormTerm<T>{ref<T>(dy), ref<T>(x), statistic(call.in[2]), SumOutput::of(call, 0, 1.0)};
  };
  return prepare_column_sums(call, rows_of(x), x.shape.back(), {&dy, &x}, term_of, "rms_norm_param_grad");
}

CudaKernel prepare_rms_norm_grad(const CudaKernelCall& call) {
  return prepare_norm_grad<false>(call, prepare_plain_rms_norm_grad, rms_norm_param_grad_op.kernel);
}

}  // namespace

extern const CudaKernels rms_norm_cuda = {{"rms_norm", prepare_rms_norm, kTakesF16},
                                          {"rms_norm_grad", prepare_rms_norm_grad, kTakesF16},
                                          {"rms_norm_param_grad", prepare_rms_norm_param_grad, kTakesF16},
                                          {"rms_norm_stats", prepare_rms_norm_stats, kTakesF16},
                                          {"rms_norm_apply", prepare_rms_norm_apply, kTakesF16},
                                          {"rms_norm_grad_stats", prepare_rms_norm_grad_stats, kTakesF16},
                                          {"rms_norm_grad_apply", prepare_rms_norm_grad_apply, kTakesF16}};

}  // namespace trainctl
