// y = e^(x - max) / sum e^(x - max) along one dim.  dx = y * (dy - sum dy * y).
// A tensor is [outer, n, inner] around the dim.
#include <algorithm>

#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/softmax/softmax_dim.h"

namespace trainctl {
namespace {

void softmax_row(const float* x, float* y, int64_t n) {
  const float top = cpu::largest(x, n);
  for (int64_t i = 0; i < n; ++i) y[i] = cpu::exp(x[i] - top);
  const auto scale = static_cast<float>(1.0 / cpu::sum(n, [y](int64_t i) { return double{y[i]}; }));
  for (int64_t i = 0; i < n; ++i) y[i] *= scale;
}

constexpr int64_t kTile = 64;  // columns of a strided softmax at a time

void softmax_columns(const float* x, float* y, int64_t n, int64_t inner, int64_t count) {
  float top[kTile];
  double total[kTile] = {};
  std::copy(x, x + count, top);
  for (int64_t k = 1; k < n; ++k) {
    for (int64_t i = 0; i < count; ++i) top[i] = cpu::at_least(top[i], x[k * inner + i]);
  }
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t i = 0; i < count; ++i) {
      y[k * inner + i] = cpu::exp(x[k * inner + i] - top[i]);
      total[i] += y[k * inner + i];
    }
  }
  for (int64_t i = 0; i < count; ++i) top[i] = static_cast<float>(1.0 / total[i]);
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t i = 0; i < count; ++i) y[k * inner + i] *= top[i];
  }
}

void grad_columns(const float* dy, const float* y, float* dx, int64_t n, int64_t inner, int64_t count) {
  double total[kTile] = {};
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t i = 0; i < count; ++i) total[i] += double{dy[k * inner + i]} * y[k * inner + i];
  }
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = k * inner + i;
      dx[at] = y[at] * (dy[at] - static_cast<float>(total[i]));
    }
  }
}

/// Calls f(first element, columns) for each tile.
template <class F>
void for_each_tile(const SoftmaxDim& a, F f) {
  for (int64_t o = 0; o < a.outer; ++o) {
    for (int64_t i = 0; i < a.inner; i += kTile) f(o * a.n * a.inner + i, std::min(kTile, a.inner - i));
  }
}

CpuKernel prepare_softmax(const KernelCall& call) {
  return [a = softmax_dim(call), x = call.in[0].as<float>(), y = call.out[0].as<float>()] {
    if (a.inner == 1) {
      for (int64_t o = 0; o < a.outer; ++o) softmax_row(x + o * a.n, y + o * a.n, a.n);
    } else {
      for_each_tile(a, [&](int64_t at, int64_t count) { softmax_columns(x + at, y + at, a.n, a.inner, count); });
    }
  };
}

CpuKernel prepare_softmax_grad(const KernelCall& call) {
  return [a = softmax_dim(call), dy = call.in[0].as<float>(), y = call.in[1].as<float>(),
          dx = call.out[0].as<float>()] {
    if (a.inner == 1) {
      for (int64_t o = 0; o < a.outer; ++o) {
        const float *g = dy + o * a.n, *p = y + o * a.n;
        const auto total = static_cast<float>(cpu::sum(a.n, [=](int64_t i) { return double{g[i]} * p[i]; }));
        for (int64_t i = 0; i < a.n; ++i) dx[o * a.n + i] = p[i] * (g[i] - total);
      }
    } else {
      for_each_tile(a, [&](int64_t at, int64_t count) { grad_columns(dy + at, y + at, dx + at, a.n, a.inner, count); });
    }
  };
}

}  // namespace

extern const CpuKernels softmax_cpu = {{"softmax", prepare_softmax}, {"softmax_grad", prepare_softmax_grad}};

}  // namespace trainctl
