// y = the mean of each window; dx is dy spread over its window. Channels that are next to each other in memory are
// handled together.
#include "engine/ops/cpu/windows_cpu.h"

namespace trainctl {
namespace {

using cpu::Pool;
using Span = Pool::Span;

/// The reciprocal of the pixels that a mean divides by.
inline float scale_of(Span rows, Span columns) { return 1.0f / static_cast<float>(rows.counted * columns.counted); }

CpuKernel prepare_avg_pool2d(const KernelCall& call) {
  return [pool = Pool::of(call, call.in[0], call.out[0]), x0 = call.in[0].as<float>(), y0 = call.out[0].as<float>()] {
    const int64_t channels = pool.channels();
    pool.each_piece([&](int, int64_t of_x, int64_t of_y) {
      const float* x = x0 + of_x;
      pool.each_window([&](int64_t at, Span rows, Span columns) {
        float* y = y0 + of_y + at;
        std::fill_n(y, channels, 0.0f);
        for (int64_t r = rows.first; r < rows.end; ++r) {
          for (int64_t c = columns.first; c < columns.end; ++c) {
            const float* value = x + pool.at(r, c);
            for (int64_t i = 0; i < channels; ++i) y[i] += value[i];
          }
        }
        const float scale = scale_of(rows, columns);
        for (int64_t i = 0; i < channels; ++i) y[i] *= scale;
      });
    });
  };
}

CpuKernel prepare_avg_pool2d_grad(const KernelCall& call) {
  return [pool = Pool::of(call, call.out[0], call.in[0]), dy0 = call.in[0].as<float>(), dx0 = call.out[0].as<float>()] {
    const int64_t channels = pool.channels();
    pool.each_piece([&](int, int64_t of_x, int64_t of_y) {
      float* dx = dx0 + of_x;
      std::fill_n(dx, channels * pool.x.pixels(), 0.0f);
      pool.each_window([&](int64_t at, Span rows, Span columns) {
        const float* dy = dy0 + of_y + at;
        const float scale = scale_of(rows, columns);
        for (int64_t r = rows.first; r < rows.end; ++r) {
          for (int64_t c = columns.first; c < columns.end; ++c) {
            float* to = dx + pool.at(r, c);
            for (int64_t i = 0; i < channels; ++i) to[i] += scale * dy[i];
          }
        }
      });
    });
  };
}

}  // namespace

extern const CpuKernels avg_pool2d_cpu = {{"avg_pool2d", prepare_avg_pool2d},
                                          {"avg_pool2d_grad", prepare_avg_pool2d_grad}};

}  // namespace trainctl
