// Normalises each group of channels: x as rows [n * groups] of k channels of s elements.
//   y = xhat * gamma + beta, xhat = (x - mean) * rstd      g = dy * gamma
//   dx = rstd * (g - mean(g) - xhat * mean(g * xhat))      dgamma = sum dy * xhat      dbeta = sum dy
#include <algorithm>
#include <cmath>

#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

constexpr int64_t kLeastGroupElements = 32768;  ///< below this, waking a thread takes longer than the work

struct Groups {
  int64_t n, groups, k, s, m;  ///< m = k * s, elements of a group
  int threads;

  /// `statistic`: [n, groups]
  Groups(const KernelCall& call, const TensorArg& x, const TensorArg& statistic)
      : n(x.shape[0]),
        groups(statistic.shape[1]),
        k(x.shape[1] / std::max<int64_t>(1, groups)),
        s(1),
        threads(call.threads) {
    for (size_t d = 2; d < x.shape.size(); ++d) s *= x.shape[d];
    m = k * s;
  }
  /// Calls f(row, first channel of its group) for all rows.
  template <class F>
  void each(const F& f) const {
    const int64_t least = kLeastGroupElements / std::max<int64_t>(1, m);
    cpu::over_range(threads, n * groups, least, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) f(r, r % groups * k);
    });
  }
  /// Calls f(i, gamma, beta) for the elements of a row; they are 1 and 0 without parameters.
  template <class F>
  void each_element(int64_t first, const float* gamma, const float* beta, const F& f) const {
    if (gamma == nullptr) {
      for (int64_t i = 0; i < m; ++i) f(i, 1.0f, 0.0f);
    } else if (s == 1) {
      for (int64_t i = 0; i < m; ++i) f(i, gamma[first + i], beta[first + i]);
    } else {
      for (int64_t c = 0; c < k; ++c) {
        const float a = gamma[first + c], b = beta[first + c];
        for (int64_t i = c * s; i < (c + 1) * s; ++i) f(i, a, b);
      }
    }
  }
};

CpuKernel prepare_group_norm(const KernelCall& call) {
  const bool affine = call.in.size() > 1;
  return [g = Groups(call, call.in[0], call.out[1]), x0 = call.in[0].as<float>(),
          gamma = affine ? call.in[1].as<float>() : nullptr, beta = affine ? call.in[2].as<float>() : nullptr,
          y0 = call.out[0].as<float>(), means = call.out[1].as<float>(), rstds = call.out[2].as<float>(),
          eps = call.attrs.number("eps", 1e-5)] {
    const auto count = static_cast<double>(g.m);
    g.each([&](int64_t r, int64_t first) {
      const float* x = x0 + r * g.m;
      float* y = y0 + r * g.m;
      const double mean = cpu::sum(g.m, [x](int64_t i) { return double{x[i]}; }) / count;
      const double var = cpu::sum(g.m, [=](int64_t i) { return (x[i] - mean) * (x[i] - mean); }) / count;
      const auto centre = means[r] = static_cast<float>(mean);
      const auto rstd = rstds[r] = static_cast<float>(1.0 / std::sqrt(var + eps));
      g.each_element(first, gamma, beta, [=](int64_t i, float a, float b) { y[i] = (x[i] - centre) * rstd * a + b; });
    });
  };
}

/// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * gamma; means are over a group.
CpuKernel prepare_group_norm_grad(const KernelCall& call) {
  return [g = Groups(call, call.in[0], call.in[2]), dy0 = call.in[0].as<float>(), x0 = call.in[1].as<float>(),
          means = call.in[2].as<float>(), rstds = call.in[3].as<float>(),
          gamma = call.in.size() > 4 ? call.in[4].as<float>() : nullptr, dx0 = call.out[0].as<float>()] {
    g.each([&](int64_t r, int64_t first) {
      const float *dy = dy0 + r * g.m, *x = x0 + r * g.m;
      float* dx = dx0 + r * g.m;
      const float mean = means[r], rstd = rstds[r];
      const auto xhat = [=](int64_t i) { return (x[i] - mean) * rstd; };
      // A channel's elements have one gamma, so their sums are weighted by it.
      double of_g = 0, of_product = 0;
      const int64_t parts = gamma == nullptr ? 1 : g.k, size = g.m / parts;
      for (int64_t c = 0; c < parts; ++c) {
        const int64_t at = c * size;
        const double weight = gamma == nullptr ? 1.0 : gamma[first + c];
        of_g += weight * cpu::sum(size, [&](int64_t i) { return double{dy[at + i]}; });
        of_product += weight * cpu::sum(size, [&](int64_t i) { return double{dy[at + i]} * xhat(at + i); });
      }
      const auto a = static_cast<float>(of_g / static_cast<double>(g.m));
      const auto b = static_cast<float>(of_product / static_cast<double>(g.m));
      g.each_element(first, gamma, gamma,
                     [=](int64_t i, float scale, float) { dx[i] = rstd * (dy[i] * scale - a - xhat(i) * b); });
    });
  };
}

CpuKernel prepare_group_norm_param_grad(const KernelCall& call) {
  return [g = Groups(call, call.in[0], call.in[2]), dy = call.in[0].as<float>(), x = call.in[1].as<float>(),
          means = call.in[2].as<float>(), rstds = call.in[3].as<float>(), dgamma = call.out[0].as<float>(),
          dbeta = call.out[1].as<float>(), add_gamma = call.out[0].accumulate, add_beta = call.out[1].accumulate] {
    const int64_t channels = g.groups * g.k, least = kLeastGroupElements / std::max<int64_t>(1, g.n * g.s);
    cpu::over_range(g.threads, channels, least, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        double gamma = 0, beta = 0;
        for (int64_t n = 0; n < g.n; ++n) {
          const float *dy_of = dy + (n * channels + c) * g.s, *x_of = x + (n * channels + c) * g.s;
          const int64_t r = n * g.groups + c / g.k;
          const float mean = means[r], rstd = rstds[r];
          gamma += cpu::sum(g.s, [=](int64_t i) { return double{dy_of[i]} * ((x_of[i] - mean) * rstd); });
          beta += cpu::sum(g.s, [=](int64_t i) { return double{dy_of[i]}; });
        }
        dgamma[c] = static_cast<float>((add_gamma ? dgamma[c] : 0.0) + gamma);
        dbeta[c] = static_cast<float>((add_beta ? dbeta[c] : 0.0) + beta);
      }
    });
  };
}

}  // namespace

extern const CpuKernels group_norm_cpu = {{"group_norm", prepare_group_norm},
                                          {"group_norm_grad", prepare_group_norm_grad},
                                          {"group_norm_param_grad", prepare_group_norm_param_grad}};

}  // namespace trainctl
