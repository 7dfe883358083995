// Normalises each row (the last dim, n): y = xhat * gamma + beta, xhat = (x - mean) * rstd.
//   g = dy * gamma    dx = rstd * (g - mean(g) - xhat * mean(g * xhat))    dgamma = sum dy * xhat    dbeta = sum dy
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/norm_grads_cuda.cuh"
#include "engine/ops/cuda/sums_cuda.cuh"
#include "engine/ops/op_def.h"

namespace trainctl {

extern const OpDef layer_norm_param_grad_op;

namespace {

// Functions for a row

/// Writes y and the row's statistics.
template <int V, class T, class X, class Scale, class Shift>
__device__ void write_normalised(const RowGroup& group, const RowPart<V>& part, int64_t row, bool valid,
                                 const Moments& moments, Ref<T> y, Ref<float> means, Ref<float> rstds, X& x,
                                 Scale& scale, Shift& shift) {
  write_row(
      part, valid, y,
      [&]<int W>(int, const Pack<W>& a, const Pack<W>& g, const Pack<W>& b) { return moments.normalised(a, g, b); }, x,
      scale, shift);
  if (!valid || group.lane() != 0) return;
  set(means, row, moments.mean);
  set(rstds, row, moments.rstd);
}

/// The sums of g and of g * xhat over the row; the first pass over it.
template <int V, class Grad, class X, class Scale>
__device__ void sum_gradient(RowGroup& group, const RowPart<V>& part, const Moments& moments, float (&sums)[2],
                             Grad& dy, X& x, Scale& scale) {
  read_row(
      part,
      [&]<int W>(int, const Pack<W>& a, const Pack<W>& b, const Pack<W>& s) { moments.add_grad_sums(a, b, s, sums); },
      dy, x, scale);
  group.sum(sums);
}

template <int V, class T, class Grad, class X, class Scale>
__device__ void write_gradient(const RowPart<V>& part, bool valid, const Moments& moments, float of_g, float of_product,
                               Ref<T> dx, Grad& dy, X& x, Scale& scale) {
  write_row(
      part, valid, dx,
      [&]<int W>(int, const Pack<W>& a, const Pack<W>& b, const Pack<W>& s) {
        return moments.grad(a, b, s, of_g, of_product);
      },
      dy, x, scale);
}

// Kernels

template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 3>, kRowBlocks<V, kInRegisters>)
    layer_norm_kernel(Rows rows, Ref<T> x, RowSide<T> gamma, RowSide<T> beta, Ref<T> y, Ref<float> means,
                      Ref<float> rstds, float eps) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters> from(x, rows, group);
  RowSideOperand<V, T> scale(gamma), shift(beta);
  const float share = 1.0f / static_cast<float>(rows.n);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    from.start(part);
    const float mean = sum_of_row(group, part, from) * share;
    const float rstd = 1.0f / sqrtf(squares_about(mean, group, part, from) * share + eps);
    write_normalised(group, part, row, valid, {mean, rstd}, y, means, rstds, from, scale, shift);
  });
}

template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 3>, 1)
    layer_norm_grad_kernel(Rows rows, Ref<T> dy, Ref<T> x, Ref<float> means, Ref<float> rstds, RowSide<T> gamma,
                           Ref<T> dx) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters, 2> grad(dy, rows, group, 0), from(x, rows, group, 1);
  RowSideOperand<V, T> scale(gamma);
  const float share = 1.0f / static_cast<float>(rows.n);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    grad.start(part);
    from.start(part);
    const Moments of_row{value(means, row), value(rstds, row)};
    float sums[2] = {};
    sum_gradient(group, part, of_row, sums, grad, from, scale);
    write_gradient(part, valid, of_row, sums[0] * share, sums[1] * share, dx, grad, from, scale);
  });
}

// Kernels for a part of the rows' elements: two numbers per row.

template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 1>, kRowBlocks<V, kInRegisters>)
    layer_norm_stats_kernel(Rows rows, Ref<T> x, float* stats) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters> from(x, rows, group);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    from.start(part);
    const float mean = sum_of_row(group, part, from) / static_cast<float>(rows.n);
    const float squares = squares_about(mean, group, part, from);
    if (!valid || group.lane() != 0) return;
    stats[2 * row] = mean;
    stats[2 * row + 1] = squares;
  });
}

/// y of a row whose elements are divided over ranks, from stats [parts, rows, 2]: the mean and the sum of squared
/// deviations of each part.
template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 3>, kRowBlocks<V, kInRegisters>)
    layer_norm_apply_kernel(Rows rows, Ref<T> x, RowSide<T> gamma, RowSide<T> beta, const float* stats, int parts,
                            Ref<T> y, Ref<float> means, Ref<float> rstds, float eps) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters> from(x, rows, group);
  RowSideOperand<V, T> scale(gamma), shift(beta);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    from.start(part);
    float mean = 0, squares = 0;
    for (int p = 0; p < parts; ++p) mean += stats[(p * rows.count + row) * 2];
    mean /= static_cast<float>(parts);
    const auto n = static_cast<float>(rows.n);
    for (int p = 0; p < parts; ++p) {
      const float* of_part = stats + (p * rows.count + row) * 2;
      squares += of_part[1] + n * (of_part[0] - mean) * (of_part[0] - mean);
    }
    const float rstd = 1.0f / sqrtf(squares / (n * static_cast<float>(parts)) + eps);
    wait_for_row(part, from);
    write_normalised(group, part, row, valid, {mean, rstd}, y, means, rstds, from, scale, shift);
  });
}

/// stats [rows, 2]: the sums of g and of g * xhat over this rank's part of each row.
template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 3>, 1)
    layer_norm_grad_stats_kernel(Rows rows, Ref<T> dy, Ref<T> x, Ref<float> means, Ref<float> rstds, RowSide<T> gamma,
                                 float* stats) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters, 2> grad(dy, rows, group, 0), from(x, rows, group, 1);
  RowSideOperand<V, T> scale(gamma);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    grad.start(part);
    from.start(part);
    const Moments of_row{value(means, row), value(rstds, row)};
    float sums[2] = {};
    sum_gradient(group, part, of_row, sums, grad, from, scale);
    if (!valid || group.lane() != 0) return;
    stats[2 * row] = sums[0];
    stats[2 * row + 1] = sums[1];
  });
}

/// dx of a row whose elements are divided over ranks, from the stats [parts, rows, 2] of all parts.
template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 3>, 1)
    layer_norm_grad_apply_kernel(Rows rows, Ref<T> dy, Ref<T> x, Ref<float> means, Ref<float> rstds, RowSide<T> gamma,
                                 const float* stats, int parts, Ref<T> dx) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters, 2> grad(dy, rows, group, 0), from(x, rows, group, 1);
  RowSideOperand<V, T> scale(gamma);
  const float share = 1.0f / (static_cast<float>(rows.n) * static_cast<float>(parts));
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    grad.start(part);
    from.start(part);
    const Moments of_row{value(means, row), value(rstds, row)};
    float of_g = 0, of_product = 0;
    for (int p = 0; p < parts; ++p) {
      of_g += stats[(p * rows.count + row) * 2];
      of_product += stats[(p * rows.count + row) * 2 + 1];
    }
    wait_for_row(part, grad, from);
    write_gradient(part, valid, of_row, of_g * share, of_product * share, dx, grad, from, scale);
  });
}

/// dgamma and dbeta as sums over the rows.
template <class T>
struct LayerNormTerm {
  static constexpr int kSums = 2;
  Ref<T> dy, x;
  Ref<float> means, rstds;
  SumOutput dgamma, dbeta;

  template <int V>
  __device__ int begin(int64_t) const {
    return 0;
  }
  template <int V>
  struct Fetched {
    Raw<T, V> dy, x;
    float mean, rstd;
  };
  template <int V>
  __device__ Fetched<V> fetch(int64_t at, uint32_t row) const {
    return {trainctl::fetch<V>(dy, at), trainctl::fetch<V>(x, at), value(means, row), value(rstds, row)};
  }
  template <int V>
  __device__ void terms(int64_t, const Fetched<V>& f, int, float (&v)[2][V]) const {
    unpack(f.x, v[0]);
    unpack(f.dy, v[1]);
#pragma unroll
    for (int j = 0; j < V; ++j) v[0][j] = v[1][j] * ((v[0][j] - f.mean) * f.rstd);
  }
  __device__ void finish(int64_t k, const double (&total)[2]) const {
    dgamma.write(k, total[0]);
    dbeta.write(k, total[1]);
  }
};

// Launchers

CudaKernel prepare_layer_norm(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &y = call.out[0], *gamma = optional_input(call, 1), *beta = optional_input(call, 2);
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(layer_norm_kernel<pack, in_registers, T>, how, "layer_norm", how.rows, ref<T>(x),
                       row_side<T>(gamma, 1.0f, how.rows, pack), row_side<T>(beta, 0.0f, how.rows, pack), ref<T>(y),
                       statistic(call.out[1]), statistic(call.out[2]),
                       static_cast<float>(call.attrs.number("eps", 1e-5)));
  };
  return with_rows({&x, &y, gamma ? gamma : &x, beta ? beta : &x}, rows_of(x), x.shape.back(), 1, {&x, &y}, 2, prepare);
}

CudaKernel prepare_plain_layer_norm_grad(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1], &dx = call.out[0], *gamma = optional_input(call, 4);
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(layer_norm_grad_kernel<pack, in_registers, T>, how, "layer_norm_grad", how.rows, ref<T>(dy),
                       ref<T>(x), statistic(call.in[2]), statistic(call.in[3]),
                       row_side<T>(gamma, 1.0f, how.rows, pack), ref<T>(dx));
  };
  return with_rows({&dy, &x, &dx, gamma ? gamma : &x}, rows_of(x), x.shape.back(), 2, {&dy, &x, &dx}, 1, prepare);
}

CudaKernel prepare_layer_norm_stats(const CudaKernelCall& call) {
  const TensorArg& x = call.in[0];
  float* const stats = statistic(call.out[0]).p;
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(layer_norm_stats_kernel<pack, in_registers, T>, how, "layer_norm_stats", how.rows, ref<T>(x),
                       stats);
  };
  return with_rows({&x}, rows_of(x), x.shape.back(), 1, {&x}, 0, prepare);
}

CudaKernel prepare_layer_norm_apply(const CudaKernelCall& call) {
  const bool affine = call.in.size() > 2;
  const TensorArg &x = call.in[0], &y = call.out[0], &of_parts = call.in.back(),
                  *gamma = affine ? &call.in[1] : nullptr, *beta = affine ? &call.in[2] : nullptr;
  const float* const stats = statistic(of_parts).p;
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(layer_norm_apply_kernel<pack, in_registers, T>, how, "layer_norm_apply", how.rows, ref<T>(x),
                       row_side<T>(gamma, 1.0f, how.rows, pack), row_side<T>(beta, 0.0f, how.rows, pack), stats,
                       parts_of(of_parts), ref<T>(y), statistic(call.out[1]), statistic(call.out[2]),
                       static_cast<float>(call.attrs.number("eps", 1e-5)));
  };
  return with_rows({&x, &y, gamma ? gamma : &x, beta ? beta : &x}, rows_of(x), x.shape.back(), 1, {&x, &y}, 2, prepare);
}

CudaKernel prepare_layer_norm_grad_stats(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1], *gamma = optional_input(call, 4);
  float* const stats = statistic(call.out[0]).p;
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(layer_norm_grad_stats_kernel<pack, in_registers, T>, how, "layer_norm_grad_stats", how.rows,
                       ref<T>(dy), ref<T>(x), statistic(call.in[2]), statistic(call.in[3]),
                       row_side<T>(gamma, 1.0f, how.rows, pack), stats);
  };
  return with_rows({&dy, &x, gamma ? gamma : &x}, rows_of(x), x.shape.back(), 2, {&dy, &x}, 1, prepare);
}

CudaKernel prepare_layer_norm_grad_apply(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1], &dx = call.out[0], &of_parts = call.in.back(),
                  *gamma = call.in.size() > 5 ? &call.in[4] : nullptr;
  const float* const stats = statistic(of_parts).p;
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(layer_norm_grad_apply_kernel<pack, in_registers, T>, how, "layer_norm_grad_apply", how.rows,
                       ref<T>(dy), ref<T>(x), statistic(call.in[2]), statistic(call.in[3]),
                       row_side<T>(gamma, 1.0f, how.rows, pack), stats, parts_of(of_parts), ref<T>(dx));
  };
  return with_rows({&dy, &x, &dx, gamma ? gamma : &x}, rows_of(x), x.shape.back(), 2, {&dy, &x, &dx}, 1, prepare);
}

CudaKernel prepare_layer_norm_param_grad(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1];
  const int64_t n = x.shape.back();
  const auto term_of = [&]<class T>(T) {
    return LayerNormTerm<T>{ref<T>(dy),
                            ref<T>(x),
                            statistic(call.in[2]),
                            statistic(call.in[3]),
                            SumOutput::of(call, 0, 1.0),
                            SumOutput::of(call, 1, 1.0)};
  };
  return prepare_column_sums(call, rows_of(x), n, {&dy, &x}, term_of, "layer_norm_param_grad");
}

CudaKernel prepare_layer_norm_grad(const CudaKernelCall& call) {
  return prepare_norm_grad<true>(call, prepare_plain_layer_norm_grad, layer_norm_param_grad_op.kernel);
}

}  // namespace

extern const CudaKernels layer_norm_cuda = {{"layer_norm", prepare_layer_norm, kTakesF16},
                                            {"layer_norm_grad", prepare_layer_norm_grad, kTakesF16},
                                            {"layer_norm_param_grad", prepare_layer_norm_param_grad, kTakesF16},
                                            {"layer_norm_stats", prepare_layer_norm_stats, kTakesF16},
                                            {"layer_norm_apply", prepare_layer_norm_apply, kTakesF16},
                                            {"layer_norm_grad_stats", prepare_layer_norm_grad_stats, kTakesF16},
                                            {"layer_norm_grad_apply", prepare_layer_norm_grad_apply, kTakesF16}};

}  // namespace trainctl
