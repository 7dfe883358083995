// Batch normalisation of x [n, c, s], where c is attr dim: s is 1 if channels are last. mean and var are separate
// nodes, so that ranks that share a batch sum them before y = (x - mean) / sqrt(var + eps) * gamma + beta.
//   dbeta = sum dy    dgamma = sum dy * xhat    dx = gamma / sqrt(var + eps) * (dy - (dbeta + xhat * dgamma) / count)
#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/epilogue.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

constexpr int64_t kLeastElements = 32768;  ///< below this, waking a thread takes longer than the work
constexpr int64_t kFeatureTile = 256;      ///< features whose values fit the first cache
constexpr int64_t kShort = 8;              ///< terms that are added in float before double takes their sum
constexpr int64_t kBlockRows = 256;        ///< least rows of a block, and most blocks, of a sum over
constexpr int64_t kMostBlocks = 64;        ///< rows; both are the same for any number of threads, so the bits are

struct Dims {
  int64_t n = 1, c = 1, s = 1;  ///< product of the dims before, features, product of the dims after
  int threads = 1;

  explicit Dims(const KernelCall& call) : threads(call.threads) {
    const Shape& shape = call.in[0].shape;
    const auto dim = static_cast<size_t>(call.attrs.integer("dim", 1));
    for (size_t d = 0; d < dim; ++d) n *= shape[d];
    c = shape[dim];
    for (size_t d = dim + 1; d < shape.size(); ++d) s *= shape[d];
  }
  int64_t least(int64_t elements) const { return kLeastElements / std::max<int64_t>(1, elements); }
  int64_t block_rows() const { return std::max(kBlockRows, (n + kMostBlocks - 1) / kMostBlocks); }
  int64_t blocks() const { return std::max<int64_t>(1, (n + block_rows() - 1) / block_rows()); }
};

template <size_t N>
using Terms = std::array<float, N>;
template <size_t N>
using Sums = std::array<double, N>;

/// Calls f(count). Small counts are constants in it, so that loops over features become a few vectors.
template <class F>
void with_count(int64_t count, const F& f) {
  if (count == 8) return f(std::integral_constant<int64_t, 8>());
  if (count == 16) return f(std::integral_constant<int64_t, 16>());
  if (count == 32) return f(std::integral_constant<int64_t, 32>());
  f(count);
}

/// The sums of rows [begin, end) of features [first, first + count), `count` up to kFeatureTile: total[k][feature].
template <size_t N, class Count, class F>
void sum_block(const Dims& d, int64_t begin, int64_t end, int64_t first, Count count, const F& f,
               double (&total)[N][kFeatureTile]) {
  const int64_t features = count;
  for (int64_t from = begin; from < end; from += kShort) {
    float part[N][kFeatureTile];
    for (size_t k = 0; k < N; ++k) std::fill_n(part[k], count, 0.0f);
    for (int64_t n = from; n < std::min(from + kShort, end); ++n) {
      const int64_t row = n * d.c + first;
#pragma GCC ivdep
      for (int64_t i = 0; i < features; ++i) {
        const Terms<N> v = f(row + i, first + i);
        for (size_t k = 0; k < N; ++k) part[k][i] += v[k];
      }
    }
    for (size_t k = 0; k < N; ++k)
      for (int64_t i = 0; i < count; ++i) total[k][i] += part[k][i];
  }
}

/// Sums a run of elements in several independent partial sums, so that the loop is vectorized.
template <size_t N, class F>
Sums<N> sum_run(int64_t begin, int64_t end, const F& f) {
  constexpr int64_t kLanes = 16;
  double lane[N][kLanes] = {};
  int64_t i = begin;
  for (; i + kLanes * kShort <= end; i += kLanes * kShort) {
    float part[N][kLanes] = {};
    for (int64_t r = 0; r < kShort; ++r) {
#pragma GCC ivdep
      for (int64_t j = 0; j < kLanes; ++j) {
        const Terms<N> v = f(i + r * kLanes + j);
        for (size_t k = 0; k < N; ++k) part[k][j] += v[k];
      }
    }
    for (size_t k = 0; k < N; ++k)
      for (int64_t j = 0; j < kLanes; ++j) lane[k][j] += part[k][j];
  }
  Sums<N> total{};
  for (; i < end; ++i) {
    const Terms<N> v = f(i);
    for (size_t k = 0; k < N; ++k) total[k] += v[k];
  }
  for (size_t k = 0; k < N; ++k)
    for (int64_t j = 0; j < kLanes; ++j) total[k] += lane[k][j];
  return total;
}

/// Sums over the elements of each feature, N at once, in one pass.
template <size_t N>
class FeatureSums {
 public:
  explicit FeatureSums(const Dims& d) : d_(d) {
    if (d.s == 1 && d.blocks() > 1) parts_.resize(static_cast<size_t>(d.blocks() * d.c));
  }

  /// f(element, feature) is called once per element; then finish(feature, sums).
  template <class F, class Finish>
  void run(const F& f, const Finish& finish) {
    if (d_.s > 1) return run_planes(f, finish);
    const int64_t blocks = d_.blocks(), rows = d_.block_rows();
    cpu::over_range(d_.threads, blocks, d_.least(rows * d_.c), [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        for (int64_t first = 0; first < d_.c; first += kFeatureTile) {
          const int64_t count = std::min(kFeatureTile, d_.c - first);
          double total[N][kFeatureTile] = {};
          with_count(count, [&](auto features) {
            sum_block<N>(d_, block * rows, std::min((block + 1) * rows, d_.n), first, features, f, total);
          });
          for (int64_t i = 0; i < count; ++i) {
            Sums<N> sums;
            for (size_t k = 0; k < N; ++k) sums[k] = total[k][i];
            if (blocks > 1)
              parts_[static_cast<size_t>(block * d_.c + first + i)] = sums;
            else
              finish(first + i, sums);
          }
        }
      }
    });
    if (blocks > 1) add_parts(finish);
  }

 private:
  template <class Finish>
  void add_parts(const Finish& finish) {
    for (int64_t c = 0; c < d_.c; ++c) {
      Sums<N> total{};
      for (int64_t at = c; at < static_cast<int64_t>(parts_.size()); at += d_.c)
        for (size_t k = 0; k < N; ++k) total[k] += parts_[static_cast<size_t>(at)][k];
      finish(c, total);
    }
  }

  template <class F, class Finish>
  void run_planes(const F& f, const Finish& finish) {
    cpu::over_range(d_.threads, d_.c, d_.least(d_.n * d_.s), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        Sums<N> total{};
        for (int64_t n = 0; n < d_.n; ++n) {
          const int64_t row = (n * d_.c + c) * d_.s;
          const Sums<N> sums = sum_run<N>(row, row + d_.s, [&](int64_t i) { return f(i, c); });
          for (size_t k = 0; k < N; ++k) total[k] += sums[k];
        }
        finish(c, total);
      }
    });
  }

  Dims d_;
  std::vector<Sums<N>> parts_;  ///< [blocks, c]
};

/// y[i] = f(i, values of the feature of i) for all elements. `values(c)`: N numbers that a feature's elements share.
template <size_t N, class Values, class F>
void map_per_feature(const Dims& d, float* y, const Values& values, const F& f) {
  if (d.s == 1) {
    cpu::over_range(d.threads, d.n, d.least(d.c), [&](int64_t begin, int64_t end) {
      for (int64_t first = 0; first < d.c; first += kFeatureTile) {
        const int64_t count = std::min(kFeatureTile, d.c - first);
        float of[N][kFeatureTile];
        for (int64_t i = 0; i < count; ++i) {
          const std::array<float, N> v = values(first + i);
          for (size_t k = 0; k < N; ++k) of[k][i] = v[k];
        }
        with_count(count, [&](auto constant) {
          const int64_t features = constant;
          for (int64_t n = begin; n < end; ++n) {
            const int64_t row = n * d.c + first;
#pragma GCC ivdep
            for (int64_t i = 0; i < features; ++i) {
              std::array<float, N> v;
              for (size_t k = 0; k < N; ++k) v[k] = of[k][i];
              y[row + i] = f(row + i, v);
            }
          }
        });
      }
    });
    return;
  }
  cpu::over_range(d.threads, d.n * d.c, d.least(d.s), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const std::array<float, N> v = values(row % d.c);
      for (int64_t i = row * d.s; i < (row + 1) * d.s; ++i) y[i] = f(i, v);
    }
  });
}

inline float inverse_std(float var, float eps) { return 1.0f / std::sqrt(var + eps); }

CpuKernel prepare_batch_norm_mean(const KernelCall& call) {
  return [sums = FeatureSums<1>(Dims(call)), x = call.in[0].as<float>(), mean = call.out[0].as<float>(),
          scale = 1.0 / static_cast<double>(call.attrs.integer("count"))]() mutable {
    sums.run([x](int64_t i, int64_t) { return Terms<1>{x[i]}; },
             [=](int64_t c, const Sums<1>& sum) { mean[c] = static_cast<float>(scale * sum[0]); });
  };
}

CpuKernel prepare_batch_norm_var(const KernelCall& call) {
  return [sums = FeatureSums<1>(Dims(call)), x = call.in[0].as<float>(), mean = call.in[1].as<float>(),
          var = call.out[0].as<float>(), scale = 1.0 / static_cast<double>(call.attrs.integer("count"))]() mutable {
    sums.run(
        [x, mean](int64_t i, int64_t c) {
          const float centred = x[i] - mean[c];
          return Terms<1>{centred * centred};
        },
        [=](int64_t c, const Sums<1>& sum) { var[c] = static_cast<float>(scale * sum[0]); });
  };
}

/// The mean of up to 32 elements of feature c, spread over all of them.
float sampled_mean(const Dims& d, const float* x, int64_t c) {
  const int64_t elements = d.n * d.s, samples = std::min<int64_t>(32, elements);
  double sum = 0;
  for (int64_t k = 0; k < samples; ++k) {
    const int64_t at = k * elements / samples;
    sum += x[(at / d.s * d.c + c) * d.s + at % d.s];
  }
  return samples == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(samples));
}

/// Computes the sums of x - p and of (x - p)^2 in one pass, for a p near the mean. Where p is d standard deviations
/// from it, rounding (x - p)^2 costs up to d^2 units in the last place of the variance.
CpuKernel prepare_batch_norm_mean_var(const KernelCall& call) {
  const Dims d(call);
  return [d, sums = FeatureSums<2>(d), near = std::vector<float>(static_cast<size_t>(d.c)), x = call.in[0].as<float>(),
          mean = call.out[0].as<float>(), var = call.out[1].as<float>(),
          scale = 1.0 / static_cast<double>(call.attrs.integer("count"))]() mutable {
    for (int64_t c = 0; c < d.c; ++c) near[static_cast<size_t>(c)] = sampled_mean(d, x, c);
    const float* const p = near.data();
    sums.run(
        [x, p](int64_t i, int64_t c) {
          const float away = x[i] - p[c];
          return Terms<2>{away, away * away};
        },
        [=](int64_t c, const Sums<2>& sum) {
          const double from_p = scale * sum[0];
          mean[c] = static_cast<float>(p[c] + from_p);
          var[c] = static_cast<float>(std::max(scale * sum[1] - from_p * from_p, 0.0));
        });
  };
}

CpuKernel prepare_batch_norm_merge(const KernelCall& call) {
  return [parts = call.in[0].shape[0], c = call.in[0].shape[2], in = call.in[0].as<float>(),
          mean = call.out[0].as<float>(), var = call.out[1].as<float>()] {
    const double share = 1.0 / static_cast<double>(parts);
    for (int64_t i = 0; i < c; ++i) {
      double of_means = 0, of_vars = 0;
      for (int64_t p = 0; p < parts; ++p) of_means += in[2 * p * c + i];
      of_means *= share;
      for (int64_t p = 0; p < parts; ++p) {
        const double away = in[2 * p * c + i] - of_means;
        of_vars += in[(2 * p + 1) * c + i] + away * away;
      }
      mean[i] = static_cast<float>(of_means);
      var[i] = static_cast<float>(share * of_vars);
    }
  };
}

/// The parameters that normalise a feature's elements.
struct Normalise {
  const float *mean, *var, *gamma, *beta;  ///< gamma and beta null: not affine
  float eps;

  using Values = std::array<float, 3>;  ///< mean, scale, shift
  Values of(int64_t c) const {
    const float r = inverse_std(var[c], eps);
    return gamma != nullptr ? Values{mean[c], r * gamma[c], beta[c]} : Values{mean[c], r, 0.0f};
  }
  static float normalised(float x, const Values& v) { return (x - v[0]) * v[1] + v[2]; }

  /// gamma and beta are inputs `parameters` and `parameters` + 1, if they are given. `others`: inputs behind them.
  static Normalise of_call(const KernelCall& call, size_t mean, size_t parameters, size_t others) {
    const bool affine = call.in.size() >= parameters + 2 + others;
    return {call.in[mean].as<float>(), call.in[mean + 1].as<float>(),
            affine ? call.in[parameters].as<float>() : nullptr, affine ? call.in[parameters + 1].as<float>() : nullptr,
            static_cast<float>(call.attrs.number("eps", 1e-5))};
  }
};

/// Calls use with std::true_type or std::false_type, so that the flag is a compile-time constant.
template <class Use>
CpuKernel with_flag(bool flag, const Use& use) {
  return flag ? use(std::true_type()) : use(std::false_type());
}

CpuKernel prepare_batch_norm(const KernelCall& call) {
  const Epilogue epilogue = epilogue_of(call.attrs);
  check(epilogue.activation == Activation::none || epilogue.activation == Activation::relu,
        "relu is the only activation that can be fused into batch_norm");
  const Normalise of = Normalise::of_call(call, 1, 3, epilogue.residual ? 1 : 0);
  return with_flag(epilogue.residual, [&](auto adds) {
    return with_flag(epilogue.activation == Activation::relu, [&](auto relu) -> CpuKernel {
      return [adds, relu, d = Dims(call), of, x = call.in[0].as<float>(), more = call.in.back().as<float>(),
              y = call.out[0].as<float>()] {
        map_per_feature<3>(
            d, y, [=](int64_t c) { return of.of(c); },
            [=](int64_t i, const Normalise::Values& v) {
              float result = Normalise::normalised(x[i], v);
              if constexpr (adds) result += more[i];
              if constexpr (relu) result = result < 0.0f ? 0.0f : result;
              return result;
            });
      };
    });
  });
}

CpuKernel prepare_batch_norm_running(const KernelCall& call) {
  const auto count = static_cast<double>(call.attrs.integer("count"));
  return [c = call.in[0].size(), mean = call.in[0].as<float>(), var = call.in[1].as<float>(),
          running_mean = call.in[2].as<float>(), running_var = call.in[3].as<float>(),
          momentum = static_cast<float>(call.attrs.number("momentum", 0.1)),
          unbias = static_cast<float>(count / std::max(1.0, count - 1.0))] {
    for (int64_t i = 0; i < c; ++i) {
      running_mean[i] += momentum * (mean[i] - running_mean[i]);
      running_var[i] += momentum * (var[i] * unbias - running_var[i]);
    }
  };
}

CpuKernel prepare_batch_norm_grad_stats(const KernelCall& call) {
  const Normalise of = Normalise::of_call(call, 2, 4, 0);
  return with_flag(call.attrs.flag("behind_relu"), [&](auto relu) -> CpuKernel {
    const Dims d(call);
    return [relu, of, sums = FeatureSums<2>(d), dy = call.in[0].as<float>(), x = call.in[1].as<float>(),
            dbeta = call.out[0].as<float>(), dgamma = call.out[1].as<float>(),
            values = std::vector<Normalise::Values>(static_cast<size_t>(relu ? d.c : 0))]() mutable {
      for (size_t c = 0; c < values.size(); ++c) values[c] = of.of(static_cast<int64_t>(c));
      sums.run(
          [=, v = values.data()](int64_t i, int64_t c) {
            float g = dy[i];
            if constexpr (relu) g = Normalise::normalised(x[i], v[c]) > 0.0f ? g : 0.0f;
            return Terms<2>{g, g * (x[i] - of.mean[c])};
          },
          [=](int64_t c, const Sums<2>& sum) {
            dbeta[c] = static_cast<float>(sum[0]);
            dgamma[c] = static_cast<float>(sum[1]) * inverse_std(of.var[c], of.eps);
          });
    };
  });
}

/// dx from dbeta and dgamma, which batch_norm_grad_stats has computed. With behind_relu, dy counts only where relu's
/// input is positive.
CpuKernel prepare_batch_norm_grad(const KernelCall& call) {
  const float* const gamma = call.in.size() > 6 ? call.in[6].as<float>() : nullptr;
  const float* const beta = call.in.size() > 7 ? call.in[7].as<float>() : nullptr;
  return with_flag(call.attrs.flag("behind_relu"), [&](auto relu) -> CpuKernel {
    return
        [relu, d = Dims(call), dy = call.in[0].as<float>(), x = call.in[1].as<float>(), mean = call.in[2].as<float>(),
         var = call.in[3].as<float>(), dbeta = call.in[4].as<float>(), dgamma = call.in[5].as<float>(), gamma, beta,
         dx = call.out[0].as<float>(), eps = static_cast<float>(call.attrs.number("eps", 1e-5)),
         share = static_cast<float>(1.0 / static_cast<double>(call.attrs.integer("count")))] {
          using Values = std::array<float, 5>;  // mean, scale, shift, slope, beta
          map_per_feature<5>(
              d, dx,
              [=](int64_t c) {
                const float r = inverse_std(var[c], eps);
                return Values{mean[c], gamma != nullptr ? gamma[c] * r : r, share * dbeta[c], share * dgamma[c] * r,
                              beta != nullptr ? beta[c] : 0.0f};
              },
              [=](int64_t i, const Values& v) {
                float g = dy[i];
                if constexpr (relu) g = Normalise::normalised(x[i], {v[0], v[1], v[4]}) > 0.0f ? g : 0.0f;
                return v[1] * (g - v[2] - (x[i] - v[0]) * v[3]);
              });
        };
  });
}

}  // namespace

extern const CpuKernels batch_norm_cpu = {
    {"batch_norm_mean", prepare_batch_norm_mean},       {"batch_norm_mean_var", prepare_batch_norm_mean_var},
    {"batch_norm_var", prepare_batch_norm_var},         {"batch_norm", prepare_batch_norm},
    {"batch_norm_running", prepare_batch_norm_running}, {"batch_norm_grad_stats", prepare_batch_norm_grad_stats},
    {"batch_norm_grad", prepare_batch_norm_grad},       {"batch_norm_merge", prepare_batch_norm_merge}};

}  // namespace trainctl
