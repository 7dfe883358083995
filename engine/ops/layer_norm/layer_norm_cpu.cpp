// Normalises each row (the last dim, n): y = xhat * gamma + beta, xhat = (x - mean) * rstd.
//   g = dy * gamma    dx = rstd * (g - mean(g) - xhat * mean(g * xhat))    dgamma = sum dy * xhat    dbeta = sum dy
#include <algorithm>
#include <cmath>

#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/cpu/norm_grad_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/op_def.h"

namespace trainctl {

extern const OpDef layer_norm_param_grad_op;

namespace {

struct NormRows {
  int64_t count, n;
  int threads;

  template <class F>
  void each(const F& f) const {
    cpu::each_row(threads, count, n, f);
  }
};

NormRows norm_rows_of(const KernelCall& call) {
  const TensorArg& x = call.in[0];
  const int64_t n = x.shape.back();
  return {n == 0 ? 0 : x.size() / n, n, call.threads};
}

CpuKernel prepare_layer_norm(const KernelCall& call) {
  const bool affine = call.in.size() > 1;
  return [rows = norm_rows_of(call), x0 = call.in[0].as<float>(), gamma = affine ? call.in[1].as<float>() : nullptr,
          beta = affine ? call.in[2].as<float>() : nullptr, y0 = call.out[0].as<float>(),
          means = call.out[1].as<float>(), rstds = call.out[2].as<float>(), eps = call.attrs.number("eps", 1e-5)] {
    const auto n = static_cast<double>(rows.n);
    rows.each([&](int64_t r) {
      const float* x = x0 + r * rows.n;
      float* y = y0 + r * rows.n;
      const double mean = cpu::sum(rows.n, [x](int64_t i) { return double{x[i]}; }) / n;
      const double var = cpu::sum(rows.n, [=](int64_t i) { return (x[i] - mean) * (x[i] - mean); }) / n;
      const auto m = means[r] = static_cast<float>(mean);
      const auto rstd = rstds[r] = static_cast<float>(1.0 / std::sqrt(var + eps));
      if (gamma != nullptr) {
        for (int64_t i = 0; i < rows.n; ++i) y[i] = (x[i] - m) * rstd * gamma[i] + beta[i];
      } else {
        for (int64_t i = 0; i < rows.n; ++i) y[i] = (x[i] - m) * rstd;
      }
    });
  };
}

/// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * gamma; means are over a row.
CpuKernel prepare_plain_layer_norm_grad(const KernelCall& call) {
  return [rows = norm_rows_of(call), dy0 = call.in[0].as<float>(), x0 = call.in[1].as<float>(),
          means = call.in[2].as<float>(), rstds = call.in[3].as<float>(),
          gamma = call.in.size() > 4 ? call.in[4].as<float>() : nullptr, dx0 = call.out[0].as<float>()] {
    rows.each([&](int64_t r) {
      const float *dy = dy0 + r * rows.n, *x = x0 + r * rows.n;
      float* dx = dx0 + r * rows.n;
      const float mean = means[r], rstd = rstds[r];
      const auto normalise = [&](auto g) {
        const auto n = static_cast<double>(rows.n);
        const auto a = static_cast<float>(cpu::sum(rows.n, [&](int64_t i) { return double{g(i)}; }) / n);
        const auto b =
            static_cast<float>(cpu::sum(rows.n, [&](int64_t i) { return double{g(i)} * ((x[i] - mean) * rstd); }) / n);
        for (int64_t i = 0; i < rows.n; ++i) dx[i] = rstd * (g(i) - a - (x[i] - mean) * rstd * b);
      };
      if (gamma != nullptr) {
        normalise([=](int64_t i) { return dy[i] * gamma[i]; });
      } else {
        normalise([=](int64_t i) { return dy[i]; });
      }
    });
  };
}

// Kernels for ranks that each have a part of every row.

CpuKernel prepare_layer_norm_stats(const KernelCall& call) {
  return [rows = norm_rows_of(call), x0 = call.in[0].as<float>(), stats = call.out[0].as<float>()] {
    rows.each([&](int64_t r) {
      const float* x = x0 + r * rows.n;
      const double mean = cpu::sum(rows.n, [x](int64_t i) { return double{x[i]}; }) / static_cast<double>(rows.n);
      stats[2 * r] = static_cast<float>(mean);
      stats[2 * r + 1] = static_cast<float>(cpu::sum(rows.n, [=](int64_t i) { return (x[i] - mean) * (x[i] - mean); }));
    });
  };
}

/// The mean and the variance of row `row`, from those of its parts: stats [parts, rows, 2], parts of n elements.
struct MeanAndVariance {
  double mean = 0, var = 0;

  static MeanAndVariance of(const float* stats, int64_t parts, int64_t rows, int64_t n, int64_t row) {
    MeanAndVariance all;
    const auto part = [=](int64_t p) { return stats + (p * rows + row) * 2; };
    const auto ways = static_cast<double>(parts);
    for (int64_t p = 0; p < parts; ++p) all.mean += double{part(p)[0]} / ways;
    for (int64_t p = 0; p < parts; ++p) {
      const double off = double{part(p)[0]} - all.mean;
      all.var += (double{part(p)[1]} / static_cast<double>(n) + off * off) / ways;
    }
    return all;
  }
};

CpuKernel prepare_layer_norm_apply(const KernelCall& call) {
  const bool affine = call.in.size() > 2;
  return [rows = norm_rows_of(call), x0 = call.in[0].as<float>(), gamma = affine ? call.in[1].as<float>() : nullptr,
          beta = affine ? call.in[2].as<float>() : nullptr, stats = call.in.back().as<float>(),
          parts = call.in.back().shape[0], y0 = call.out[0].as<float>(), means = call.out[1].as<float>(),
          rstds = call.out[2].as<float>(), eps = call.attrs.number("eps", 1e-5)] {
    rows.each([&](int64_t r) {
      const float* x = x0 + r * rows.n;
      float* y = y0 + r * rows.n;
      const auto all = MeanAndVariance::of(stats, parts, rows.count, rows.n, r);
      const auto m = means[r] = static_cast<float>(all.mean);
      const auto rstd = rstds[r] = static_cast<float>(1.0 / std::sqrt(all.var + eps));
      if (gamma != nullptr) {
        for (int64_t i = 0; i < rows.n; ++i) y[i] = (x[i] - m) * rstd * gamma[i] + beta[i];
      } else {
        for (int64_t i = 0; i < rows.n; ++i) y[i] = (x[i] - m) * rstd;
      }
    });
  };
}

/// Calls f(g, x, row) for each row, where g(i) is element i of dy * gamma in the row.
template <class F>
void for_each_row(const NormRows& rows, const float* dy0, const float* x0, const float* gamma, F f) {
  rows.each([&](int64_t r) {
    const float *dy = dy0 + r * rows.n, *x = x0 + r * rows.n;
    if (gamma != nullptr) {
      f([=](int64_t i) { return dy[i] * gamma[i]; }, x, r);
    } else {
      f([=](int64_t i) { return dy[i]; }, x, r);
    }
  });
}

CpuKernel prepare_layer_norm_grad_stats(const KernelCall& call) {
  return [rows = norm_rows_of(call), dy = call.in[0].as<float>(), x0 = call.in[1].as<float>(),
          means = call.in[2].as<float>(), rstds = call.in[3].as<float>(),
          gamma = call.in.size() > 4 ? call.in[4].as<float>() : nullptr, stats = call.out[0].as<float>()] {
    for_each_row(rows, dy, x0, gamma, [&](auto g, const float* x, int64_t r) {
      const float mean = means[r], rstd = rstds[r];
      stats[2 * r] = static_cast<float>(cpu::sum(rows.n, [&](int64_t i) { return double{g(i)}; }));
      stats[2 * r + 1] =
          static_cast<float>(cpu::sum(rows.n, [&](int64_t i) { return double{g(i)} * ((x[i] - mean) * rstd); }));
    });
  };
}

CpuKernel prepare_layer_norm_grad_apply(const KernelCall& call) {
  return [rows = norm_rows_of(call), dy = call.in[0].as<float>(), x0 = call.in[1].as<float>(),
          means = call.in[2].as<float>(), rstds = call.in[3].as<float>(),
          gamma = call.in.size() > 5 ? call.in[4].as<float>() : nullptr, stats = call.in.back().as<float>(),
          parts = call.in.back().shape[0], dx0 = call.out[0].as<float>()] {
    for_each_row(rows, dy, x0, gamma, [&](auto g, const float* x, int64_t r) {
      const float mean = means[r], rstd = rstds[r];
      double of_g = 0, of_product = 0;
      for (int64_t p = 0; p < parts; ++p) {
        of_g += stats[(p * rows.count + r) * 2];
        of_product += stats[(p * rows.count + r) * 2 + 1];
      }
      const auto n = static_cast<double>(parts * rows.n);
      const auto a = static_cast<float>(of_g / n), b = static_cast<float>(of_product / n);
      float* dx = dx0 + r * rows.n;
      for (int64_t i = 0; i < rows.n; ++i) dx[i] = rstd * (g(i) - a - (x[i] - mean) * rstd * b);
    });
  };
}

/// dgamma (+)= sum dy * xhat and dbeta (+)= sum dy over the rows, a tile of columns at a time.
CpuKernel prepare_layer_norm_param_grad(const KernelCall& call) {
  return [rows = norm_rows_of(call), dy = call.in[0].as<float>(), x = call.in[1].as<float>(),
          means = call.in[2].as<float>(), rstds = call.in[3].as<float>(), dgamma = call.out[0].as<float>(),
          dbeta = call.out[1].as<float>(), add_gamma = call.out[0].accumulate, add_beta = call.out[1].accumulate] {
    constexpr int64_t kTileElements = 32;
    const int64_t tiles = (rows.n + kTileElements - 1) / kTileElements;
    cpu::over_rows(rows.threads, tiles, kTileElements * rows.count, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin * kTileElements; first < std::min(rows.n, end * kTileElements);
           first += kTileElements) {
        const int64_t count = std::min(kTileElements, rows.n - first);
        double gamma[kTileElements] = {}, beta[kTileElements] = {};
        for (int64_t r = 0; r < rows.count; ++r) {
          const float* g = dy + r * rows.n + first;
          const float* from = x + r * rows.n + first;
          const float mean = means[r], rstd = rstds[r];
          for (int64_t i = 0; i < count; ++i) {
            gamma[i] += g[i] * ((from[i] - mean) * rstd);
            beta[i] += g[i];
          }
        }
        for (int64_t i = 0; i < count; ++i) {
          float &to_gamma = dgamma[first + i], &to_beta = dbeta[first + i];
          to_gamma = static_cast<float>((add_gamma ? to_gamma : 0.0) + gamma[i]);
          to_beta = static_cast<float>((add_beta ? to_beta : 0.0) + beta[i]);
        }
      }
    });
  };
}

CpuKernel prepare_layer_norm_grad(const KernelCall& call) {
  return cpu::prepare_norm_grad(call, prepare_plain_layer_norm_grad, layer_norm_param_grad_op.kernel, 2);
}

}  // namespace

extern const CpuKernels layer_norm_cpu = {{"layer_norm", prepare_layer_norm},
                                          {"layer_norm_grad", prepare_layer_norm_grad},
                                          {"layer_norm_param_grad", prepare_layer_norm_param_grad},
                                          {"layer_norm_stats", prepare_layer_norm_stats},
                                          {"layer_norm_apply", prepare_layer_norm_apply},
                                          {"layer_norm_grad_stats", prepare_layer_norm_grad_stats},
                                          {"layer_norm_grad_apply", prepare_layer_norm_grad_apply}};

}  // namespace trainctl
