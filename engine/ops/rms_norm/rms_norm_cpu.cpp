// Divides each row (the last dim, n) by its root mean square: y = xhat * gamma, xhat = x * rstd. gamma has the attr
// offset added to it.
//   g = dy * gamma    dx = rstd * (g - xhat * mean(g * xhat))    dgamma = sum dy * xhat
#include <algorithm>
#include <cmath>

#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/cpu/norm_grad_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/op_def.h"

namespace trainctl {

extern const OpDef rms_norm_param_grad_op;

namespace {

constexpr int64_t kLeastRmsElements = 32768;  ///< below this, waking a thread takes longer than the work

float offset_of_scale(const KernelCall& call) { return static_cast<float>(call.attrs.number("offset", 0)); }

struct RmsRows {
  int64_t count, n;
  int threads;

  RmsRows(const KernelCall& call, const TensorArg& x) : n(x.shape.back()), threads(call.threads) {
    count = n == 0 ? 0 : x.size() / n;
  }
  template <class F>
  void each(const F& f) const {
    cpu::over_range(threads, count, kLeastRmsElements / std::max<int64_t>(1, n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) f(r);
    });
  }
};

CpuKernel prepare_rms_norm(const KernelCall& call) {
  return [rows = RmsRows(call, call.in[0]), x0 = call.in[0].as<float>(),
          gamma = call.in.size() > 1 ? call.in[1].as<float>() : nullptr, y0 = call.out[0].as<float>(),
          rstds = call.out[1].as<float>(), eps = call.attrs.number("eps", 1e-5), offset = offset_of_scale(call)] {
    rows.each([&](int64_t r) {
      const float* x = x0 + r * rows.n;
      float* y = y0 + r * rows.n;
      const double squares = cpu::sum(rows.n, [x](int64_t i) { return double{x[i]} * x[i]; });
      const auto rstd = rstds[r] = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(rows.n) + eps));
      if (gamma != nullptr) {
        for (int64_t i = 0; i < rows.n; ++i) y[i] = x[i] * rstd * (gamma[i] + offset);
      } else {
        for (int64_t i = 0; i < rows.n; ++i) y[i] = x[i] * rstd;
      }
    });
  };
}

CpuKernel prepare_plain_rms_norm_grad(const KernelCall& call) {
  return [rows = RmsRows(call, call.in[0]), dy0 = call.in[0].as<float>(), x0 = call.in[1].as<float>(),
          rstds = call.in[2].as<float>(), gamma = call.in.size() > 3 ? call.in[3].as<float>() : nullptr,
          dx0 = call.out[0].as<float>(), offset = offset_of_scale(call)] {
    rows.each([&](int64_t r) {
      const float *dy = dy0 + r * rows.n, *x = x0 + r * rows.n;
      float* dx = dx0 + r * rows.n;
      const float rstd = rstds[r];
      const auto divide = [&](auto g) {
        const double along = cpu::sum(rows.n, [&](int64_t i) { return double{g(i)} * (x[i] * rstd); });
        const auto mean = static_cast<float>(along / static_cast<double>(rows.n));
        for (int64_t i = 0; i < rows.n; ++i) dx[i] = rstd * (g(i) - x[i] * rstd * mean);
      };
      if (gamma != nullptr) {
        divide([=](int64_t i) { return dy[i] * (gamma[i] + offset); });
      } else {
        divide([=](int64_t i) { return dy[i]; });
      }
    });
  };
}

// Kernels for a part of the rows' elements. Statistics of all parts are [parts, rows, 1].

double sum_of_parts(const float* stats, int64_t parts, int64_t rows, int64_t row) {
  double total = 0;
  for (int64_t p = 0; p < parts; ++p) total += stats[p * rows + row];
  return total;
}

CpuKernel prepare_rms_norm_stats(const KernelCall& call) {
  return [rows = RmsRows(call, call.in[0]), x0 = call.in[0].as<float>(), stats = call.out[0].as<float>()] {
    rows.each([&](int64_t r) {
      const float* x = x0 + r * rows.n;
      stats[r] = static_cast<float>(cpu::sum(rows.n, [x](int64_t i) { return double{x[i]} * x[i]; }));
    });
  };
}

CpuKernel prepare_rms_norm_apply(const KernelCall& call) {
  return [rows = RmsRows(call, call.in[0]), x0 = call.in[0].as<float>(),
          gamma = call.in.size() > 2 ? call.in[1].as<float>() : nullptr, stats = call.in.back().as<float>(),
          parts = call.in.back().shape[0], y0 = call.out[0].as<float>(), rstds = call.out[1].as<float>(),
          eps = call.attrs.number("eps", 1e-5), offset = offset_of_scale(call)] {
    rows.each([&](int64_t r) {
      const float* x = x0 + r * rows.n;
      float* y = y0 + r * rows.n;
      const double mean = sum_of_parts(stats, parts, rows.count, r) / static_cast<double>(parts * rows.n);
      const auto rstd = rstds[r] = static_cast<float>(1.0 / std::sqrt(mean + eps));
      if (gamma != nullptr) {
        for (int64_t i = 0; i < rows.n; ++i) y[i] = x[i] * rstd * (gamma[i] + offset);
      } else {
        for (int64_t i = 0; i < rows.n; ++i) y[i] = x[i] * rstd;
      }
    });
  };
}

CpuKernel prepare_rms_norm_grad_stats(const KernelCall& call) {
  return [rows = RmsRows(call, call.in[0]), dy0 = call.in[0].as<float>(), x0 = call.in[1].as<float>(),
          rstds = call.in[2].as<float>(), gamma = call.in.size() > 3 ? call.in[3].as<float>() : nullptr,
          stats = call.out[0].as<float>(), offset = offset_of_scale(call)] {
    rows.each([&](int64_t r) {
      const float *dy = dy0 + r * rows.n, *x = x0 + r * rows.n;
      const float rstd = rstds[r];
      const auto sum = [&](auto g) {
        return static_cast<float>(cpu::sum(rows.n, [&](int64_t i) { return double{g(i)} * (x[i] * rstd); }));
      };
      stats[r] = gamma != nullptr ? sum([=](int64_t i) { return dy[i] * (gamma[i] + offset); })
                                  : sum([=](int64_t i) { return dy[i]; });
    });
  };
}

CpuKernel prepare_rms_norm_grad_apply(const KernelCall& call) {
  return [rows = RmsRows(call, call.in[0]), dy0 = call.in[0].as<float>(), x0 = call.in[1].as<float>(),
          rstds = call.in[2].as<float>(), gamma = call.in.size() > 4 ? call.in[3].as<float>() : nullptr,
          stats = call.in.back().as<float>(), parts = call.in.back().shape[0], dx0 = call.out[0].as<float>(),
          offset = offset_of_scale(call)] {
    rows.each([&](int64_t r) {
      const float *dy = dy0 + r * rows.n, *x = x0 + r * rows.n;
      float* dx = dx0 + r * rows.n;
      const float rstd = rstds[r];
      const auto mean =
          static_cast<float>(sum_of_parts(stats, parts, rows.count, r) / static_cast<double>(parts * rows.n));
      if (gamma != nullptr) {
        for (int64_t i = 0; i < rows.n; ++i) dx[i] = rstd * (dy[i] * (gamma[i] + offset) - x[i] * rstd * mean);
      } else {
        for (int64_t i = 0; i < rows.n; ++i) dx[i] = rstd * (dy[i] - x[i] * rstd * mean);
      }
    });
  };
}

/// dgamma (+)= sum over the rows of dy * x * rstd, a tile of columns at a time.
CpuKernel prepare_rms_norm_param_grad(const KernelCall& call) {
  return [rows = RmsRows(call, call.in[0]), dy = call.in[0].as<float>(), x = call.in[1].as<float>(),
          rstds = call.in[2].as<float>(), dgamma = call.out[0].as<float>(), add = call.out[0].accumulate] {
    constexpr int64_t kTile = 64;
    const int64_t tiles = (rows.n + kTile - 1) / kTile;
    const int64_t least = kLeastRmsElements / std::max<int64_t>(1, rows.count * kTile);
    cpu::over_range(rows.threads, tiles, least, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin * kTile; first < std::min(end * kTile, rows.n); first += kTile) {
        const int64_t count = std::min(kTile, rows.n - first);
        double gamma[kTile] = {};
        for (int64_t r = 0; r < rows.count; ++r) {
          const float *g = dy + r * rows.n + first, *from = x + r * rows.n + first;
          const float rstd = rstds[r];
          for (int64_t i = 0; i < count; ++i) gamma[i] += g[i] * (from[i] * rstd);
        }
        for (int64_t i = 0; i < count; ++i) {
          float& to = dgamma[first + i];
          to = static_cast<float>((add ? to : 0.0) + gamma[i]);
        }
      }
    });
  };
}

CpuKernel prepare_rms_norm_grad(const KernelCall& call) {
  return cpu::prepare_norm_grad(call, prepare_plain_rms_norm_grad, rms_norm_param_grad_op.kernel, 1);
}

}  // namespace

extern const CpuKernels rms_norm_cpu = {{"rms_norm", prepare_rms_norm},
                                        {"rms_norm_grad", prepare_rms_norm_grad},
                                        {"rms_norm_param_grad", prepare_rms_norm_param_grad},
                                        {"rms_norm_stats", prepare_rms_norm_stats},
                                        {"rms_norm_apply", prepare_rms_norm_apply},
                                        {"rms_norm_grad_stats", prepare_rms_norm_grad_stats},
                                        {"rms_norm_grad_apply", prepare_rms_norm_grad_apply}};

}  // namespace trainctl
