// The gradient of attention sinks (sinks.h). A task is a query head; it sums over all rows in a fixed order.
#include <cmath>

#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/row_order.h"

namespace trainctl {
namespace {

constexpr int64_t kLeastSinkElements = 1 << 14;  ///< below this, waking a thread takes longer than the work

}  // namespace

/// dsinks[h] = - sum over the rows of head h of e^(sink - log) * (dy . out).
CpuKernel prepare_attention_sinks_grad(const KernelCall& call) {
  const TensorArg& dy = call.in[0];
  const int64_t b = dy.shape[0], t = dy.shape[1], heads = call.in[3].shape[0], features = dy.shape[2];
  const bool has_all_rows = t == dy.global_shape[1];
  const RowOrder of_logs = has_all_rows ? RowOrder::of(call.attrs, t) : RowOrder{};
  const int64_t elements_of_head = std::max<int64_t>(1, b * t * features / std::max<int64_t>(1, heads));
  return [=, slopes = dy.as<float>(), out = call.in[1].as<float>(), logs = call.in[2].as<float>(),
          sinks = call.in[3].as<float>(), dsinks = call.out[0].as<float>(), adds = call.out[0].accumulate,
          threads = call.threads] {
    const int64_t e = features / heads;
    cpu::over_range(threads, heads, kLeastSinkElements / elements_of_head + 1, [&](int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h) {
        double sum = 0;
        for (int64_t row = 0; row < b * t; ++row) {
          const int64_t sample = row / t, at = row * features + h * e;
          const float log = logs[(sample * heads + h) * t + of_logs.position(row % t)];
          double dot = 0;
          for (int64_t i = at; i < at + e; ++i) dot += double{slopes[i]} * out[i];
          sum -= double{std::exp(sinks[h] - log)} * dot;
        }
        dsinks[h] = static_cast<float>(sum + (adds ? double{dsinks[h]} : 0.0));
      }
    });
  };
}

}  // namespace trainctl
