// y = x resized along a dim, and its gradient, for this rank's parts of both.
#include <algorithm>

#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/interpolate/interpolate_map.h"

namespace trainctl {
namespace {

constexpr int64_t kInterpolateThreadWork = 32768;  ///< elements that make it worth waking a thread

/// to += factor * from, if this rank has element i.
void add_row_of(const InterpolateCall& c, const float* x, int64_t i, float factor, float* to) {
  if (factor == 0.0f || i < c.x_first || i >= c.x_first + c.x_size) return;
  const float* from = x + (i - c.x_first) * c.inner;
  for (int64_t k = 0; k < c.inner; ++k) to[k] += factor * from[k];
}

CpuKernel prepare_interpolate(const KernelCall& call) {
  return [c = InterpolateCall::of(call, call.in[0], call.out[0]), x = call.in[0].as<float>(),
          y = call.out[0].as<float>(), threads = call.threads] {
    cpu::over_range(threads, c.outer * c.y_size, kInterpolateThreadWork / std::max<int64_t>(1, c.inner),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t row = begin; row < end; ++row) {
                        const int64_t outer = row / c.y_size, o = row % c.y_size;
                        const InterpolateMap::Source s = c.map.source(c.y_first + o);
                        const float* from = x + outer * c.x_size * c.inner;
                        float* to = y + row * c.inner;
                        std::fill_n(to, c.inner, 0.0f);
                        for (int k = 0; k < InterpolateMap::kTaps; ++k) add_row_of(c, from, s.at[k], s.weights[k], to);
                      }
                    });
  };
}

CpuKernel prepare_interpolate_grad(const KernelCall& call) {
  return [c = InterpolateCall::of(call, call.out[0], call.in[0]), dy = call.in[0].as<float>(),
          dx = call.out[0].as<float>(), threads = call.threads] {
    cpu::over_range(threads, c.outer * c.x_size, kInterpolateThreadWork / std::max<int64_t>(1, c.inner),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t row = begin; row < end; ++row) {
                        const int64_t outer = row / c.x_size, i = c.x_first + row % c.x_size;
                        float* to = dx + row * c.inner;
                        std::fill_n(to, c.inner, 0.0f);
                        const InterpolateMap::Targets all = c.map.targets(i, c.m);
                        const int64_t last = std::min(all.end, c.y_first + c.y_size);
                        for (int64_t o = std::max(all.begin, c.y_first); o < last; ++o) {
                          const float weight = c.map.weight_of(i, o);
                          if (weight == 0.0f) continue;
                          const float* from = dy + (outer * c.y_size + o - c.y_first) * c.inner;
                          for (int64_t k = 0; k < c.inner; ++k) to[k] += weight * from[k];
                        }
                      }
                    });
  };
}

}  // namespace

extern const CpuKernels interpolate_cpu = {{"interpolate", prepare_interpolate},
                                           {"interpolate_grad", prepare_interpolate_grad}};

}  // namespace trainctl
