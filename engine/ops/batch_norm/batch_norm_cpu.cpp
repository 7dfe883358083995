// Batch normalisation over dim 1 of x [n, c, s]. mean and var are separate nodes, so that ranks that share a batch
// sum them before y = (x - mean) / sqrt(var + eps) * gamma + beta.
//   dbeta = sum dy    dgamma = sum dy * xhat    dx = gamma / sqrt(var + eps) * (dy - (dbeta + xhat * dgamma) / count)
#include <algorithm>
#include <cmath>

#include "engine/ops/cpu/reduce_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

struct Dims {
  int64_t n = 1, c = 1, s = 1;  ///< batch, features, product of all other dims
};

Dims dims_of(const TensorArg& x) {
  Dims d{.n = x.shape[0], .c = x.shape[1]};
  for (size_t i = 2; i < x.shape.size(); ++i) d.s *= x.shape[i];
  return d;
}

/// out[c] = scale * sum over n and s of f(element, feature).
template <class F>
void sum_per_feature(const Dims& d, float* out, double scale, F f) {
  if (d.s == 1) {
    constexpr int64_t kTile = 256;
    for (int64_t first = 0; first < d.c; first += kTile) {
      const int64_t count = std::min(kTile, d.c - first);
      double total[kTile] = {};
      for (int64_t n = 0; n < d.n; ++n) {
        for (int64_t i = 0; i < count; ++i) total[i] += f(n * d.c + first + i, first + i);
      }
      for (int64_t i = 0; i < count; ++i) out[first + i] = static_cast<float>(scale * total[i]);
    }
    return;
  }
  for (int64_t c = 0; c < d.c; ++c) {
    double total = 0;
    for (int64_t n = 0; n < d.n; ++n) {
      const int64_t row = (n * d.c + c) * d.s;
      total += cpu::sum(d.s, [&](int64_t i) { return f(row + i, c); });
    }
    out[c] = static_cast<float>(scale * total);
  }
}

/// y[i] = f(i, feature of i) for all elements.
template <class F>
void map_per_feature(const Dims& d, float* y, F f) {
  if (d.s == 1) {
    for (int64_t n = 0; n < d.n; ++n) {
      for (int64_t c = 0; c < d.c; ++c) y[n * d.c + c] = f(n * d.c + c, c);
    }
    return;
  }
  for (int64_t row = 0; row < d.n * d.c; ++row) {
    const int64_t c = row % d.c;
    for (int64_t i = 0; i < d.s; ++i) y[row * d.s + i] = f(row * d.s + i, c);
  }
}

inline float inverse_std(float var, float eps) { return 1.0f / std::sqrt(var + eps); }

CpuKernel prepare_batch_norm_mean(const KernelCall& call) {
  return [d = dims_of(call.in[0]), x = call.in[0].as<float>(), mean = call.out[0].as<float>(),
          scale = 1.0 / static_cast<double>(call.attrs.integer("count"))] {
    sum_per_feature(d, mean, scale, [x](int64_t i, int64_t) { return double{x[i]}; });
  };
}

CpuKernel prepare_batch_norm_var(const KernelCall& call) {
  return [d = dims_of(call.in[0]), x = call.in[0].as<float>(), mean = call.in[1].as<float>(),
          var = call.out[0].as<float>(), scale = 1.0 / static_cast<double>(call.attrs.integer("count"))] {
    sum_per_feature(d, var, scale, [x, mean](int64_t i, int64_t c) {
      const double centred = double{x[i]} - mean[c];
      return centred * centred;
    });
  };
}

CpuKernel prepare_batch_norm(const KernelCall& call) {
  const bool affine = call.in.size() > 3;
  return
      [d = dims_of(call.in[0]), x = call.in[0].as<float>(), mean = call.in[1].as<float>(), var = call.in[2].as<float>(),
       gamma = affine ? call.in[3].as<float>() : nullptr, beta = affine ? call.in[4].as<float>() : nullptr,
       y = call.out[0].as<float>(), eps = static_cast<float>(call.attrs.number("eps", 1e-5))] {
        if (gamma != nullptr) {
          map_per_feature(d, y, [=](int64_t i, int64_t c) {
            return (x[i] - mean[c]) * (inverse_std(var[c], eps) * gamma[c]) + beta[c];
          });
        } else {
          map_per_feature(d, y, [=](int64_t i, int64_t c) { return (x[i] - mean[c]) * inverse_std(var[c], eps); });
        }
      };
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
  return [d = dims_of(call.in[0]), dy = call.in[0].as<float>(), x = call.in[1].as<float>(),
          mean = call.in[2].as<float>(), var = call.in[3].as<float>(), dbeta = call.out[0].as<float>(),
          dgamma = call.out[1].as<float>(), eps = static_cast<float>(call.attrs.number("eps", 1e-5))] {
    sum_per_feature(d, dbeta, 1.0, [=](int64_t i, int64_t) { return double{dy[i]}; });
    sum_per_feature(d, dgamma, 1.0, [=](int64_t i, int64_t c) { return double{dy[i]} * (x[i] - mean[c]); });
    for (int64_t c = 0; c < d.c; ++c) dgamma[c] *= inverse_std(var[c], eps);
  };
}

CpuKernel prepare_batch_norm_grad(const KernelCall& call) {
  return [d = dims_of(call.in[0]), dy = call.in[0].as<float>(), x = call.in[1].as<float>(),
          mean = call.in[2].as<float>(), var = call.in[3].as<float>(), dbeta = call.in[4].as<float>(),
          dgamma = call.in[5].as<float>(), gamma = call.in.size() > 6 ? call.in[6].as<float>() : nullptr,
          dx = call.out[0].as<float>(), eps = static_cast<float>(call.attrs.number("eps", 1e-5)),
          share = static_cast<float>(1.0 / static_cast<double>(call.attrs.integer("count")))] {
    map_per_feature(d, dx, [=](int64_t i, int64_t c) {
      const float r = inverse_std(var[c], eps);
      const float xhat = (x[i] - mean[c]) * r;
      const float scale = gamma != nullptr ? gamma[c] * r : r;
      return scale * (dy[i] - share * (dbeta[c] + xhat * dgamma[c]));
    });
  };
}

}  // namespace

extern const CpuKernels batch_norm_cpu = {{"batch_norm_mean", prepare_batch_norm_mean},
                                          {"batch_norm_var", prepare_batch_norm_var},
                                          {"batch_norm", prepare_batch_norm},
                                          {"batch_norm_running", prepare_batch_norm_running},
                                          {"batch_norm_grad_stats", prepare_batch_norm_grad_stats},
                                          {"batch_norm_grad", prepare_batch_norm_grad}};

}  // namespace trainctl
