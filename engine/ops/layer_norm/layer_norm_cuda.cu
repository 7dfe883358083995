// Normalises each row (the last dim, n): y = xhat * gamma + beta, xhat = (x - mean) * rstd.
//   g = dy * gamma    dx = rstd * (g - mean(g) - xhat * mean(g * xhat))    dgamma = sum dy * xhat    dbeta = sum dy
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/norms_cuda.cuh"
#include "engine/ops/cuda/sums_cuda.cuh"

namespace trainctl {
namespace {

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
    float sum = 0;
    read_row(
        part, [&](int, const auto& a) { sum += sum_of_pack(a.v); }, from);
    const float mean = group.sum(sum) * share;
    float squares = 0;
    read_row_again(
        part,
        [&](int, const auto& a) {
          float sum_of_squares = 0;
          for (const float v : a.v) sum_of_squares += (v - mean) * (v - mean);
          squares += sum_of_squares;
        },
        from);
    const float rstd = 1.0f / sqrtf(group.sum(squares) * share + eps);
    write_row(
        part, valid, y,
        [&]<int W>(int, Pack<W> a, const Pack<W>& g, const Pack<W>& b) {
          for (int j = 0; j < W; ++j) a.v[j] = (a.v[j] - mean) * rstd * g.v[j] + b.v[j];
          return a;
        },
        from, scale, shift);
    if (!valid || group.lane() != 0) return;
    set(means, row, mean);
    set(rstds, row, rstd);
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
    const float mean = value(means, row), rstd = value(rstds, row);
    float sums[2] = {};
    read_row(
        part,
        [&]<int W>(int, Pack<W> a, Pack<W> b, const Pack<W>& s) {
          for (int j = 0; j < W; ++j) {
            a.v[j] *= s.v[j];
            b.v[j] = a.v[j] * ((b.v[j] - mean) * rstd);
          }
          sums[0] += sum_of_pack(a.v);
          sums[1] += sum_of_pack(b.v);
        },
        grad, from, scale);
    group.sum(sums);
    const float of_g = sums[0] * share, of_product = sums[1] * share;
    write_row(
        part, valid, dx,
        [&]<int W>(int, Pack<W> a, const Pack<W>& b, const Pack<W>& s) {
          for (int j = 0; j < W; ++j) a.v[j] = rstd * (a.v[j] * s.v[j] - of_g - (b.v[j] - mean) * rstd * of_product);
          return a;
        },
        grad, from, scale);
  });
}

/// dgamma and dbeta as sums over the rows.
template <class T>
struct ParameterTerm {
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
  return with_common_type({&x, &y, gamma ? gamma : &x, beta ? beta : &x}, [&](auto t) {
    using T = decltype(t);
    const auto prepare = [&](auto pack, auto in_registers, const RowsLaunch& how) {
      return launch_rows(layer_norm_kernel<pack, in_registers, T>, how, "layer_norm", how.rows, ref<T>(x),
                         row_side<T>(gamma, 1.0f, how.rows, pack), row_side<T>(beta, 0.0f, how.rows, pack), ref<T>(y),
                         statistic(call.out[1]), statistic(call.out[2]),
                         static_cast<float>(call.attrs.number("eps", 1e-5)));
    };
    return with_rows<T>(rows_of(x), x.shape.back(), 1, {&x, &y}, 2, prepare);
  });
}

CudaKernel prepare_layer_norm_grad(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1], &dx = call.out[0], *gamma = optional_input(call, 4);
  return with_common_type({&dy, &x, &dx, gamma ? gamma : &x}, [&](auto t) {
    using T = decltype(t);
    const auto prepare = [&](auto pack, auto in_registers, const RowsLaunch& how) {
      return launch_rows(layer_norm_grad_kernel<pack, in_registers, T>, how, "layer_norm_grad", how.rows, ref<T>(dy),
                         ref<T>(x), statistic(call.in[2]), statistic(call.in[3]),
                         row_side<T>(gamma, 1.0f, how.rows, pack), ref<T>(dx));
    };
    return with_rows<T>(rows_of(x), x.shape.back(), 2, {&dy, &x, &dx}, 1, prepare);
  });
}

CudaKernel prepare_layer_norm_param_grad(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1];
  const int64_t n = x.shape.back();
  return with_common_type({&dy, &x}, [&](auto t) {
    using T = decltype(t);
    const ParameterTerm<T> term{ref<T>(dy),
                                ref<T>(x),
                                statistic(call.in[2]),
                                statistic(call.in[3]),
                                SumOutput::of(call, 0, 1.0),
                                SumOutput::of(call, 1, 1.0)};
    return prepare_column_sums<kPack<T>>(call, rows_of(x), n, {&dy, &x}, term, "layer_norm_param_grad");
  });
}

}  // namespace

extern const CudaKernels layer_norm_cuda = {{"layer_norm", prepare_layer_norm},
                                            {"layer_norm_grad", prepare_layer_norm_grad},
                                            {"layer_norm_param_grad", prepare_layer_norm_param_grad}};

}  // namespace trainctl
