// Normalises each group of channels: x as rows [n * groups] of k channels of s elements.
//   y = xhat * gamma + beta, xhat = (x - mean) * rstd      g = dy * gamma
//   dx = rstd * (g - mean(g) - xhat * mean(g * xhat))      dgamma = sum dy * xhat      dbeta = sum dy
#include "engine/ops/cuda/norms_cuda.cuh"
#include "engine/ops/cuda/sums_cuda.cuh"

namespace trainctl {
namespace {

/// The division of the elements of a row into channels.
struct Channels {
  Divisor groups;
  Divisor elements;  ///< s
  int of_group = 1;  ///< k

  /// Index of the row's first channel.
  __device__ int64_t first(int64_t row) const {
    const auto r = static_cast<uint32_t>(row);
    return int64_t{r - groups.quotient(r) * groups.by} * of_group;
  }
};

/// A parameter of each channel, or `otherwise`.
template <class T>
struct ChannelSide {
  Ref<T> p;
  float otherwise = 0;

  __device__ float of(int64_t channel) const { return p.p == nullptr ? otherwise : value(p, channel); }
};

/// The values of W elements from `place` of a row on.
template <int W, class T>
__device__ inline Pack<W> of_channels(const ChannelSide<T>& side, const Channels& channels, int64_t first, int place) {
  uint32_t channel = channels.elements.quotient(static_cast<uint32_t>(place));
  int end = static_cast<int>((channel + 1) * channels.elements.by) - place;  // of the channel, in the pack
  Pack<W> pack;
  float v = side.of(first + channel);
#pragma unroll
  for (int j = 0; j < W; ++j) {
    if (j == end) {
      v = side.of(first + ++channel);
      end += static_cast<int>(channels.elements.by);
    }
    pack.v[j] = v;
  }
  return pack;
}

// Kernels

/// y, and the mean and the inverse standard deviation of each group. A row is one group of channels of one sample.
template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 3>, 1)
    group_norm_kernel(Rows rows, Channels channels, Ref<T> x, ChannelSide<T> gamma, ChannelSide<T> beta, Ref<T> y,
                      Ref<float> means, Ref<float> rstds, float eps) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters> from(x, rows, group);
  const float share = 1.0f / static_cast<float>(rows.n);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    from.start(part);
    const float mean = sum_of_row(group, part, from) * share;
    const float rstd = 1.0f / sqrtf(squares_about(mean, group, part, from) * share + eps);
    const Moments of_row{mean, rstd};
    const int64_t first = channels.first(row);
    write_row(
        part, valid, y,
        [&]<int W>(int place, const Pack<W>& a) {
          return of_row.normalised(a, of_channels<W>(gamma, channels, first, place),
                                   of_channels<W>(beta, channels, first, place));
        },
        from);
    if (!valid || group.lane() != 0) return;
    set(means, row, mean);
    set(rstds, row, rstd);
  });
}

/// dx of group_norm, from dy, x and the statistics of each group.
template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 3>, 1)
    group_norm_grad_kernel(Rows rows, Channels channels, Ref<T> dy, Ref<T> x, Ref<float> means, Ref<float> rstds,
                           ChannelSide<T> gamma, Ref<T> dx) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters, 2> grad(dy, rows, group, 0), from(x, rows, group, 1);
  const float share = 1.0f / static_cast<float>(rows.n);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    grad.start(part);
    from.start(part);
    const Moments of_row{value(means, row), value(rstds, row)};
    const int64_t first = channels.first(row);
    float sums[2] = {};
    read_row(
        part,
        [&]<int W>(int place, const Pack<W>& a, const Pack<W>& b) {
          of_row.add_grad_sums(a, b, of_channels<W>(gamma, channels, first, place), sums);
        },
        grad, from);
    group.sum(sums);
    const float of_g = sums[0] * share, of_product = sums[1] * share;
    write_row(
        part, valid, dx,
        [&]<int W>(int place, const Pack<W>& a, const Pack<W>& b) {
          return of_row.grad(a, b, of_channels<W>(gamma, channels, first, place), of_g, of_product);
        },
        grad, from);
  });
}

/// dgamma and dbeta as sums over samples and elements.
template <class T>
struct GroupNormTerm {
  static constexpr int kSums = 2;
  Ref<T> dy, x;
  Ref<float> means, rstds;
  Divisor row;  ///< elements of a row
  SumOutput dgamma, dbeta;

  template <int V>
  __device__ int begin(int64_t) const {
    return 0;
  }
  template <int V>
  struct Fetched {
    Raw<T, V> dy, x;
  };
  template <int V>
  __device__ Fetched<V> fetch(int64_t at, uint32_t) const {
    return {trainctl::fetch<V>(dy, at), trainctl::fetch<V>(x, at)};
  }
  template <int V>
  __device__ void terms(int64_t at, const Fetched<V>& f, int, float (&v)[2][V]) const {
    unpack(f.x, v[0]);
    unpack(f.dy, v[1]);
    int64_t r = at < (int64_t{1} << 31) ? row.quotient(static_cast<uint32_t>(at)) : at / row.by;
    int64_t end = (r + 1) * row.by - at;  // of the row, in the pack
    float mean = value(means, r), rstd = value(rstds, r);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (j == end) {
        ++r, end += row.by;
        mean = value(means, r), rstd = value(rstds, r);
      }
      v[0][j] = v[1][j] * ((v[0][j] - mean) * rstd);
    }
  }
  __device__ void finish(int64_t k, const double (&total)[2]) const {
    dgamma.write(k, total[0]);
    dbeta.write(k, total[1]);
  }
};

// Launchers

/// x as rows [n * groups] of k channels of s elements.
struct Groups {
  int64_t n, c, s = 1, rows, row;
  Channels channels;

  /// `statistic`: [n, groups]
  Groups(const TensorArg& x, const TensorArg& statistic) : n(x.shape[0]), c(x.shape[1]), rows(statistic.size()) {
    for (size_t d = 2; d < x.shape.size(); ++d) s *= x.shape[d];
    const int64_t groups = statistic.shape[1];
    check(rows < (int64_t{1} << 31), "CUDA kernels take up to 2^31 groups");
    row = groups == 0 ? 0 : c / groups * s;
    if (x.size() > 0) channels = {Divisor(groups), Divisor(s), static_cast<int>(c / groups)};
  }
};

template <class T>
ChannelSide<T> channel_side(const TensorArg* arg, float otherwise) {
  return arg == nullptr ? ChannelSide<T>{{}, otherwise} : ChannelSide<T>{ref<T>(*arg)};
}

CudaKernel prepare_group_norm(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &y = call.out[0], *gamma = optional_input(call, 1), *beta = optional_input(call, 2);
  const Groups g(x, call.out[1]);
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(group_norm_kernel<pack, in_registers, T>, how, "group_norm", how.rows, g.channels, ref<T>(x),
                       channel_side<T>(gamma, 1.0f), channel_side<T>(beta, 0.0f), ref<T>(y), statistic(call.out[1]),
                       statistic(call.out[2]), static_cast<float>(call.attrs.number("eps", 1e-5)));
  };
  return with_rows({&x, &y, gamma ? gamma : &x, beta ? beta : &x}, g.rows, g.row, 1, {&x, &y}, 2, prepare);
}

CudaKernel prepare_group_norm_grad(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1], &dx = call.out[0], *gamma = optional_input(call, 4);
  const Groups g(x, call.in[2]);
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(group_norm_grad_kernel<pack, in_registers, T>, how, "group_norm_grad", how.rows, g.channels,
                       ref<T>(dy), ref<T>(x), statistic(call.in[2]), statistic(call.in[3]),
                       channel_side<T>(gamma, 1.0f), ref<T>(dx));
  };
  return with_rows({&dy, &x, &dx, gamma ? gamma : &x}, g.rows, g.row, 2, {&dy, &x, &dx}, 1, prepare);
}

CudaKernel prepare_group_norm_param_grad(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1];
  const Groups g(x, call.in[2]);
  const auto term_of = [&]<class T>(T) {
    return GroupNormTerm<T>{ref<T>(dy),
                            ref<T>(x),
                            statistic(call.in[2]),
                            statistic(call.in[3]),
                            Divisor(std::max<int64_t>(1, g.row)),
                            SumOutput::of(call, 0, 1.0),
                            SumOutput::of(call, 1, 1.0)};
  };
  return prepare_sums(call, {g.n, g.c, g.s}, {0, 1, 0}, {&dy, &x}, term_of, "group_norm_param_grad");
}

}  // namespace

extern const CudaKernels group_norm_cuda = {{"group_norm", prepare_group_norm, kTakesF16},
                                            {"group_norm_grad", prepare_group_norm_grad, kTakesF16},
                                            {"group_norm_param_grad", prepare_group_norm_param_grad, kTakesF16}};

}  // namespace trainctl
