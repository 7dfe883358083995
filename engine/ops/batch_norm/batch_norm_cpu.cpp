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

constexpr int64_t kLeastElements = 32768;  ///< that are worth waking a thread for
constexpr int64_t kTile = 256;             ///< features whose values fit the first cache

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
  /// Features of a tile where they are last: as many as a thread's part has, in whole cache lines.
  int64_t tile() const { return std::clamp<int64_t>((c / threads + 15) / 16 * 16, 16, kTile); }
  int64_t least(int64_t elements) const { return kLeastElements / std::max<int64_t>(1, elements); }
};

template <size_t N>
using Sums = std::array<double, N>;

/// For each feature c, the sums over n and s of f(element, feature), N numbers: finish(c, sums).
template <size_t N, class F, class Finish>
void sum_per_feature(const Dims& d, const F& f, const Finish& finish) {
  if (d.s == 1) {
    const int64_t tile = d.tile(), tiles = (d.c + tile - 1) / tile;
    cpu::over_range(d.threads, tiles, d.least(d.n * tile), [&](int64_t begin, int64_t end) {
      for (int64_t first = begin * tile; first < std::min(end * tile, d.c); first += tile) {
        const int64_t count = std::min(tile, d.c - first);
        double total[N][kTile] = {};
        for (int64_t n = 0; n < d.n; ++n) {
          const int64_t row = n * d.c + first;
          for (int64_t i = 0; i < count; ++i) {
            const Sums<N> v = f(row + i, first + i);
            for (size_t k = 0; k < N; ++k) total[k][i] += v[k];
          }
        }
        for (int64_t i = 0; i < count; ++i) {
          Sums<N> sums;
          for (size_t k = 0; k < N; ++k) sums[k] = total[k][i];
          finish(first + i, sums);
        }
      }
    });
    return;
  }
  cpu::over_range(d.threads, d.c, d.least(d.n * d.s), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      Sums<N> total{};
      for (int64_t n = 0; n < d.n; ++n) {
        const int64_t row = (n * d.c + c) * d.s;
        // The other sums' terms are dropped once k is a constant; the second pass reads the row from the cache.
        const auto add = [&]<size_t... k>(std::index_sequence<k...>) {
          ((total[k] += cpu::sum(d.s, [&](int64_t i) { return f(row + i, c)[k]; })), ...);
        };
        add(std::make_index_sequence<N>());
      }
      finish(c, total);
    }
  });
}

/// y[i] = f(i, values of the feature of i) for all elements. `values(c)`: N numbers that a feature's elements share.
template <size_t N, class Values, class F>
void map_per_feature(const Dims& d, float* y, const Values& values, const F& f) {
  if (d.s == 1) {
    cpu::over_range(d.threads, d.n, d.least(d.c), [&](int64_t begin, int64_t end) {
      for (int64_t first = 0; first < d.c; first += kTile) {
        const int64_t count = std::min(kTile, d.c - first);
        float of[N][kTile];
        for (int64_t i = 0; i < count; ++i) {
          const std::array<float, N> v = values(first + i);
          for (size_t k = 0; k < N; ++k) of[k][i] = v[k];
        }
        for (int64_t n = begin; n < end; ++n) {
          const int64_t row = n * d.c + first;
#pragma GCC ivdep
          for (int64_t i = 0; i < count; ++i) {
            std::array<float, N> v;
            for (size_t k = 0; k < N; ++k) v[k] = of[k][i];
            y[row + i] = f(row + i, v);
          }
        }
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
  return [d = Dims(call), x = call.in[0].as<float>(), mean = call.out[0].as<float>(),
          scale = 1.0 / static_cast<double>(call.attrs.integer("count"))] {
    sum_per_feature<1>(
        d, [x](int64_t i, int64_t) { return Sums<1>{x[i]}; },
        [=](int64_t c, const Sums<1>& sum) { mean[c] = static_cast<float>(scale * sum[0]); });
  };
}

CpuKernel prepare_batch_norm_var(const KernelCall& call) {
  return [d = Dims(call), x = call.in[0].as<float>(), mean = call.in[1].as<float>(), var = call.out[0].as<float>(),
          scale = 1.0 / static_cast<double>(call.attrs.integer("count"))] {
    sum_per_feature<1>(
        d,
        [x, mean](int64_t i, int64_t c) {
          const double centred = double{x[i]} - mean[c];
          return Sums<1>{centred * centred};
        },
        [=](int64_t c, const Sums<1>& sum) { var[c] = static_cast<float>(scale * sum[0]); });
  };
}

/// In two passes: the second reads what is left of x in the cache.
CpuKernel prepare_batch_norm_mean_var(const KernelCall& call) {
  KernelCall of_mean = call, of_var = call;
  of_mean.out.pop_back();
  of_var.in.push_back(call.out[0]);
  of_var.out.erase(of_var.out.begin());
  return [mean = prepare_batch_norm_mean(of_mean), var = prepare_batch_norm_var(of_var)] {
    mean();
    var();
  };
}

/// What a feature's elements are normalised with.
struct Normalise {
  const float *mean, *var, *gamma, *beta;  ///< gamma and beta null: not affine
  float eps;

  using Values = std::array<float, 3>;  ///< mean, scale, shift
  Values of(int64_t c) const {
    const float r = inverse_std(var[c], eps);
    return gamma != nullptr ? Values{mean[c], r * gamma[c], beta[c]} : Values{mean[c], r, 0.0f};
  }
  static float normalised(float x, const Values& v) { return (x - v[0]) * v[1] + v[2]; }

  /// gamma and beta are inputs `parameters` and the next, if there are two more than `others` behind.
  static Normalise of_call(const KernelCall& call, size_t mean, size_t parameters, size_t others) {
    const bool affine = call.in.size() >= parameters + 2 + others;
    return {call.in[mean].as<float>(), call.in[mean + 1].as<float>(),
            affine ? call.in[parameters].as<float>() : nullptr, affine ? call.in[parameters + 1].as<float>() : nullptr,
            static_cast<float>(call.attrs.number("eps", 1e-5))};
  }
};

/// use(true_type or false_type)
template <class Use>
CpuKernel with_flag(bool flag, const Use& use) {
  return flag ? use(std::true_type()) : use(std::false_type());
}

CpuKernel prepare_batch_norm(const KernelCall& call) {
  const Epilogue epilogue = epilogue_of(call.attrs);
  check(epilogue.activation == Activation::none || epilogue.activation == Activation::relu,
        "the only activation that batch_norm takes is relu");
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
    return [relu, d, of, dy = call.in[0].as<float>(), x = call.in[1].as<float>(), dbeta = call.out[0].as<float>(),
            dgamma = call.out[1].as<float>(),
            values = std::vector<Normalise::Values>(static_cast<size_t>(relu ? d.c : 0))]() mutable {
      for (int64_t c = 0; c < static_cast<int64_t>(values.size()); ++c) values[c] = of.of(c);
      sum_per_feature<2>(
          d,
          [=, v = values.data()](int64_t i, int64_t c) {
            float g = dy[i];
            if constexpr (relu) g = Normalise::normalised(x[i], v[c]) > 0.0f ? g : 0.0f;
            return Sums<2>{g, double{g} * (x[i] - of.mean[c])};
          },
          [=](int64_t c, const Sums<2>& sum) {
            dbeta[c] = static_cast<float>(sum[0]);
            dgamma[c] = static_cast<float>(sum[1]) * inverse_std(of.var[c], of.eps);
          });
    };
  });
}

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
    {"batch_norm_grad", prepare_batch_norm_grad}};

}  // namespace trainctl
