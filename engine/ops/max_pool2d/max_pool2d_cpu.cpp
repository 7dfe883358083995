// y = the largest x of each window; dx = dy at the first largest. Channels that are next to each other in memory are
// handled together.
#include <limits>

#include "engine/ops/cpu/windows_cpu.h"

namespace trainctl {
namespace {

using cpu::Pool;
using Span = Pool::Span;

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr int64_t kTile = 64;  ///< channels at a time

/// A NaN is larger than any number, and the first one stays.
inline bool is_larger(float x, float best) { return x > best || (x != x && best == best); }

CpuKernel prepare_max_pool2d(const KernelCall& call) {
  return [pool = Pool::of(call, call.in[0], call.out[0]), x0 = call.in[0].as<float>(), y0 = call.out[0].as<float>()] {
    const int64_t channels = pool.channels();
    pool.each_piece([&](int64_t of_x, int64_t of_y) {
      const float* x = x0 + of_x;
      pool.each_window([&](int64_t at, Span rows, Span columns) {
        float* y = y0 + of_y + at;
        if (channels == 1) {
          float best = kLowest;
          for (int64_t r = rows.first; r < rows.end; ++r) {
            for (int64_t c = columns.first; c < columns.end; ++c) {
              const float value = x[pool.at(r, c)];
              best = is_larger(value, best) ? value : best;
            }
          }
          *y = best;
          return;
        }
        for (int64_t i = 0; i < channels; ++i) y[i] = kLowest;
        for (int64_t r = rows.first; r < rows.end; ++r) {
          for (int64_t c = columns.first; c < columns.end; ++c) {
            const float* value = x + pool.at(r, c);
            for (int64_t i = 0; i < channels; ++i) y[i] = is_larger(value[i], y[i]) ? value[i] : y[i];
          }
        }
      });
    });
  };
}

/// The first largest pixel of a window of one channel.
int64_t first_largest(const Pool& pool, const float* x, Span rows, Span columns) {
  int64_t largest = pool.at(rows.first, columns.first);
  float best = kLowest;
  for (int64_t r = rows.first; r < rows.end; ++r) {
    for (int64_t c = columns.first; c < columns.end; ++c) {
      const int64_t at = pool.at(r, c);
      if (!is_larger(x[at], best)) continue;
      best = x[at];
      largest = at;
    }
  }
  return largest;
}

/// Adds dy to dx at the first largest pixels of a window, for `count` channels.
void add_to_largest(const Pool& pool, const float* x, const float* dy, float* dx, int64_t count, Span rows,
                    Span columns) {
  float best[kTile];
  int32_t largest[kTile];
  for (int64_t i = 0; i < count; ++i) {
    best[i] = kLowest;
    largest[i] = 0;
  }
  int32_t pixel = 0;
  for (int64_t r = rows.first; r < rows.end; ++r) {
    for (int64_t c = columns.first; c < columns.end; ++c, ++pixel) {
      const float* value = x + pool.at(r, c);
      for (int64_t i = 0; i < count; ++i) {
        const bool larger = is_larger(value[i], best[i]);
        best[i] = larger ? value[i] : best[i];
        largest[i] = larger ? pixel : largest[i];
      }
    }
  }
  pixel = 0;
  for (int64_t r = rows.first; r < rows.end; ++r) {
    for (int64_t c = columns.first; c < columns.end; ++c, ++pixel) {
      float* to = dx + pool.at(r, c);
      for (int64_t i = 0; i < count; ++i) to[i] += largest[i] == pixel ? dy[i] : 0.0f;
    }
  }
}

CpuKernel prepare_max_pool2d_grad(const KernelCall& call) {
  return [pool = Pool::of(call, call.in[1], call.in[0]), dy0 = call.in[0].as<float>(), x0 = call.in[1].as<float>(),
          dx0 = call.out[0].as<float>()] {
    const int64_t channels = pool.channels();
    pool.each_piece([&](int64_t of_x, int64_t of_y) {
      const float *x = x0 + of_x, *dy = dy0 + of_y;
      float* dx = dx0 + of_x;
      std::fill_n(dx, channels * pool.x.pixels(), 0.0f);
      pool.each_window([&](int64_t at, Span rows, Span columns) {
        if (channels == 1) {
          dx[first_largest(pool, x, rows, columns)] += dy[at];
          return;
        }
        for (int64_t first = 0; first < channels; first += kTile)
          add_to_largest(pool, x + first, dy + at + first, dx + first, std::min(kTile, channels - first), rows,
                         columns);
      });
    });
  };
}

}  // namespace

extern const CpuKernels max_pool2d_cpu = {{"max_pool2d", prepare_max_pool2d},
                                          {"max_pool2d_grad", prepare_max_pool2d_grad}};

}  // namespace trainctl
