// dora_squares: for each row of w, the sum over k of (w + factor * b a)^2, added up in double.  dora_scale: m /
// sqrt(s).
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

constexpr int64_t kLeastDoraWork = 1 << 16;  ///< below this, waking a thread takes longer than the work

/// out [rows] (+)= the squared norm of each row of w + factor * b a, whose rows are computed one at a time.
CpuKernel prepare_dora_squares(const KernelCall& call) {
  const int64_t rows = call.in[0].shape[0], columns = call.in[0].shape[1], rank = call.in[1].shape[0];
  const auto sums = std::make_shared<std::vector<float>>(static_cast<size_t>(columns * call.threads));
  return [=, w = call.in[0].as<float>(), a = call.in[1].as<float>(), b = call.in[2].as<float>(),
          out = call.out[0].as<float>(), adds = call.out[0].accumulate,
          factor = static_cast<float>(call.attrs.number("factor", 1.0)), threads = call.threads] {
    const auto parts = static_cast<int>(std::clamp<int64_t>(rows * columns * (rank + 1) / kLeastDoraWork, 1,
                                                            std::min<int64_t>(threads, std::max<int64_t>(rows, 1))));
    cpu::run_parts(parts, [&](int part) {
      float* const row = sums->data() + part * columns;
      for (int64_t n = rows * part / parts; n < rows * (part + 1) / parts; ++n) {
        std::fill_n(row, columns, 0.0f);
        for (int64_t r = 0; r < rank; ++r) {
          const float of_b = b[n * rank + r];
          const float* const of_a = a + r * columns;
          for (int64_t k = 0; k < columns; ++k) row[k] += of_b * of_a[k];
        }
        double sum = 0;
        for (int64_t k = 0; k < columns; ++k) {
          const double v = w[n * columns + k] + factor * row[k];
          sum += v * v;
        }
        out[n] = static_cast<float>(sum + (adds ? out[n] : 0.0));
      }
    });
  };
}

CpuKernel prepare_dora_scale(const KernelCall& call) {
  return [m = call.in[0].as<float>(), s = call.in[1].as<float>(), y = call.out[0].as<float>(),
          count = call.out[0].size()] {
    for (int64_t i = 0; i < count; ++i) y[i] = m[i] / std::sqrt(s[i]);
  };
}

}  // namespace

extern const CpuKernels dora_cpu = {{"dora_squares", prepare_dora_squares}, {"dora_scale", prepare_dora_scale}};

}  // namespace trainctl
