// y = e^(x - max) / sum e^(x - max) along one dim.  dx = y * (dy - sum dy * y).
// A tensor is [outer, n, inner] around the dim, and has outer * inner rows.
#include <algorithm>
#include <cmath>

#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/softmax/exponentials_cpu.h"
#include "engine/ops/softmax/softmax_dim.h"

namespace trainctl {
namespace {

void softmax_row(const float* x, float* y, int64_t n) {
  const float top = cpu::largest(x, n);
  for (int64_t i = 0; i < n; ++i) y[i] = cpu::exp(x[i] - top);
  const auto scale = static_cast<float>(1.0 / cpu::sum(n, [y](int64_t i) { return double{y[i]}; }));
  for (int64_t i = 0; i < n; ++i) y[i] *= scale;
}

constexpr int64_t kSoftmaxTile = 64;  // columns that a softmax along a dim other than the last computes at a time

/// The softmax of `count` neighboring columns of n elements each, which are `inner` elements apart in memory.
void softmax_columns(const float* x, float* y, int64_t n, int64_t inner, int64_t count) {
  float top[kSoftmaxTile];
  double total[kSoftmaxTile] = {};
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
  double total[kSoftmaxTile] = {};
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
    for (int64_t i = 0; i < a.inner; i += kSoftmaxTile) f(o * a.n * a.inner + i, std::min(kSoftmaxTile, a.inner - i));
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

// Kernels for a part of the dim.

/// The statistics (largest x, sum of exponentials relative to it) of `count` neighboring columns of n elements each.
void stats_of_columns(const float* x, float* stats, int64_t n, int64_t inner, int64_t count) {
  float top[kSoftmaxTile];
  double total[kSoftmaxTile] = {};
  std::copy(x, x + count, top);
  for (int64_t k = 1; k < n; ++k) {
    for (int64_t i = 0; i < count; ++i) top[i] = cpu::at_least(top[i], x[k * inner + i]);
  }
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t i = 0; i < count; ++i) total[i] += cpu::exp(x[k * inner + i] - top[i]);
  }
  for (int64_t i = 0; i < count; ++i) {
    const auto all = top[i] == -INFINITY ? cpu::Exponentials{} : cpu::Exponentials{top[i], total[i]};
    stats[2 * i] = all.top, stats[2 * i + 1] = static_cast<float>(all.sum);
  }
}

void apply_to_columns(const float* x, float* y, const float* top, const float* scale, int64_t n, int64_t inner,
                      int64_t count) {
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t i = 0; i < count; ++i) y[k * inner + i] = cpu::exp(x[k * inner + i] - top[i]) * scale[i];
  }
}

/// Calls f(first element, columns, index of the first row) for each tile.
template <class F>
void for_each_tile_of_rows(const SoftmaxDim& a, F f) {
  for_each_tile(a, [&](int64_t at, int64_t count) { f(at, count, at / (a.n * a.inner) * a.inner + at % a.inner); });
}

CpuKernel prepare_softmax_stats(const KernelCall& call) {
  return [a = softmax_dim(call, call.in[0].shape), x = call.in[0].as<float>(), stats = call.out[0].as<float>()] {
    if (a.inner > 1) {
      return for_each_tile_of_rows(a, [&](int64_t at, int64_t count, int64_t row) {
        stats_of_columns(x + at, stats + 2 * row, a.n, a.inner, count);
      });
    }
    for (int64_t r = 0; r < a.outer; ++r) {
      const auto part = cpu::Exponentials::of(x + r * a.n, a.n);
      stats[2 * r] = part.top, stats[2 * r + 1] = static_cast<float>(part.sum);
    }
  };
}

CpuKernel prepare_softmax_apply(const KernelCall& call) {
  return [a = softmax_dim(call, call.in[0].shape), x = call.in[0].as<float>(), stats = call.in[1].as<float>(),
          parts = call.in[1].shape[0], y = call.out[0].as<float>()] {
    const int64_t rows = a.outer * a.inner;
    const auto combine = [&](int64_t row, float& top, float& scale) {
      const auto all = cpu::exponentials_of_parts(stats, parts, rows, 2, row);
      top = all.top, scale = static_cast<float>(all.reciprocal());
    };
    float top[kSoftmaxTile], scale[kSoftmaxTile];
    if (a.inner > 1) {
      return for_each_tile_of_rows(a, [&](int64_t at, int64_t count, int64_t row) {
        for (int64_t i = 0; i < count; ++i) combine(row + i, top[i], scale[i]);
        apply_to_columns(x + at, y + at, top, scale, a.n, a.inner, count);
      });
    }
    for (int64_t r = 0; r < rows; ++r) {
      combine(r, top[0], scale[0]);
      for (int64_t i = r * a.n; i < (r + 1) * a.n; ++i) y[i] = cpu::exp(x[i] - top[0]) * scale[0];
    }
  };
}

CpuKernel prepare_softmax_grad_stats(const KernelCall& call) {
  return [a = softmax_dim(call, call.in[0].shape), dy = call.in[0].as<float>(), y = call.in[1].as<float>(),
          stats = call.out[0].as<float>()] {
    if (a.inner > 1) {
      return for_each_tile_of_rows(a, [&](int64_t at, int64_t count, int64_t row) {
        double total[kSoftmaxTile] = {};
        for (int64_t k = 0; k < a.n; ++k) {
          const float *g = dy + at + k * a.inner, *p = y + at + k * a.inner;
          for (int64_t i = 0; i < count; ++i) total[i] += double{g[i]} * p[i];
        }
        for (int64_t i = 0; i < count; ++i) stats[row + i] = static_cast<float>(total[i]);
      });
    }
    for (int64_t r = 0; r < a.outer; ++r) {
      const float *g = dy + r * a.n, *p = y + r * a.n;
      stats[r] = static_cast<float>(cpu::sum(a.n, [=](int64_t i) { return double{g[i]} * p[i]; }));
    }
  };
}

/// dx = y * (dy - sum of dy * y), where the sum is over the `stats` [parts, rows] of all ranks.
CpuKernel prepare_softmax_grad_apply(const KernelCall& call) {
  return [a = softmax_dim(call, call.in[0].shape), dy = call.in[0].as<float>(), y = call.in[1].as<float>(),
          stats = call.in[2].as<float>(), parts = call.in[2].shape[0], dx = call.out[0].as<float>()] {
    const int64_t rows = a.outer * a.inner;
    const auto combine = [&](int64_t row) {
      double total = 0;
      for (int64_t p = 0; p < parts; ++p) total += stats[p * rows + row];
      return static_cast<float>(total);
    };
    float total[kSoftmaxTile];
    if (a.inner > 1) {
      return for_each_tile_of_rows(a, [&](int64_t at, int64_t count, int64_t row) {
        for (int64_t i = 0; i < count; ++i) total[i] = combine(row + i);
        for (int64_t k = 0; k < a.n; ++k) {
          const int64_t first = at + k * a.inner;
          for (int64_t i = 0; i < count; ++i) dx[first + i] = y[first + i] * (dy[first + i] - total[i]);
        }
      });
    }
    for (int64_t r = 0; r < rows; ++r) {
      const float sum = combine(r);
      for (int64_t i = r * a.n; i < (r + 1) * a.n; ++i) dx[i] = y[i] * (dy[i] - sum);
    }
  };
}

}  // namespace

extern const CpuKernels softmax_cpu = {{"softmax", prepare_softmax},
                                       {"softmax_grad", prepare_softmax_grad},
                                       {"softmax_stats", prepare_softmax_stats},
                                       {"softmax_apply", prepare_softmax_apply},
                                       {"softmax_grad_stats", prepare_softmax_grad_stats},
                                       {"softmax_grad_apply", prepare_softmax_grad_apply}};

}  // namespace trainctl
