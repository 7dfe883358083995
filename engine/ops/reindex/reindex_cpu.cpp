// y[.., o, ..] = x[.., source(o), ..], and its gradient, for this rank's parts of both.
#include <algorithm>

#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/reindex/reindex_map.h"

namespace trainctl {
namespace {

constexpr int64_t kReindexThreadWork = 32768;  ///< elements that make it worth waking a thread

CpuKernel prepare_reindex(const KernelCall& call) {
  return [r = ReindexCall::of(call, call.in[0], call.out[0]), x = call.in[0].as<float>(), y = call.out[0].as<float>(),
          threads = call.threads] {
    cpu::over_range(threads, r.outer * r.y_size, kReindexThreadWork / std::max<int64_t>(1, r.inner),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t row = begin; row < end; ++row) {
                        const int64_t outer = row / r.y_size, o = row % r.y_size;
                        const int64_t i = r.map.source(r.y_first + o) - r.x_first;
                        float* to = y + row * r.inner;
                        if (i < 0 || i >= r.x_size)
                          std::fill_n(to, r.inner, 0.0f);
                        else
                          std::copy_n(x + (outer * r.x_size + i) * r.inner, r.inner, to);
                      }
                    });
  };
}

CpuKernel prepare_reindex_grad(const KernelCall& call) {
  return [r = ReindexCall::of(call, call.out[0], call.in[0]), dy = call.in[0].as<float>(), dx = call.out[0].as<float>(),
          threads = call.threads] {
    cpu::over_range(threads, r.outer * r.x_size, kReindexThreadWork / std::max<int64_t>(1, r.inner),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t row = begin; row < end; ++row) {
                        const int64_t outer = row / r.x_size, i = row % r.x_size;
                        float* to = dx + row * r.inner;
                        std::fill_n(to, r.inner, 0.0f);
                        r.map.each_target(r.x_first + i, [&](int64_t o) {
                          if (o < r.y_first || o >= r.y_first + r.y_size) return;
                          const float* from = dy + (outer * r.y_size + o - r.y_first) * r.inner;
                          for (int64_t k = 0; k < r.inner; ++k) to[k] += from[k];
                        });
                      }
                    });
  };
}

}  // namespace

extern const CpuKernels reindex_cpu = {{"reindex", prepare_reindex}, {"reindex_grad", prepare_reindex_grad}};

}  // namespace trainctl
