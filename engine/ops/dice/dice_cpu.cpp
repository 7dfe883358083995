// Sums of p g and of p + g, or p^2 + g^2, over the pixels of a row, in double; and their gradient.
#include <algorithm>
#include <memory>

#include "engine/ops/cpu/scratch_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/dice/overlap.h"

namespace trainctl {
namespace {

constexpr int64_t kOverlapThreadWork = 32768;

/// Two outputs [rows, classes]: for each sample and class, the sum over the pixels of p * label, and the sum of p +
/// label (with attr squared, of p^2 + label^2).
CpuKernel prepare_overlap(const KernelCall& call) {
  const OverlapCall c = OverlapCall::of(call);
  const std::shared_ptr<cpu::Scratch> scratch = cpu::scratch_of_this_thread();
  scratch->reserve(4 * c.rows * c.classes);
  return [=, p = call.in[0].as<float>(), both = call.out[0].as<float>(), all = call.out[1].as<float>(),
          threads = call.threads] {
    auto* const sums = reinterpret_cast<double*>(scratch->data());
    std::fill_n(sums, 2 * c.rows * c.classes, 0.0);
    cpu::over_range(threads, c.rows, kOverlapThreadWork / std::max<int64_t>(1, c.pixels * c.classes),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t row = begin; row < end; ++row) {
                        double *const products = sums + 2 * row * c.classes, *const totals = products + c.classes;
                        for (int64_t pixel = row * c.pixels; pixel < (row + 1) * c.pixels; ++pixel) {
                          for (int64_t k = 0; k < c.classes; ++k) {
                            const float v = p[pixel * c.classes + k], g = c.label(pixel, k);
                            products[k] += double{v} * double{g};
                            totals[k] +=
                                c.squared ? double{v} * double{v} + double{g} * double{g} : double{v} + double{g};
                          }
                        }
                        for (int64_t k = 0; k < c.classes; ++k) {
                          both[row * c.classes + k] = static_cast<float>(products[k]);
                          all[row * c.classes + k] = static_cast<float>(totals[k]);
                        }
                      }
                    });
  };
}

CpuKernel prepare_overlap_grad(const KernelCall& call) {
  return [c = OverlapCall::of(call), p = call.in[0].as<float>(), d_both = OverlapCall::gradient_of(call, 0),
          d_all = OverlapCall::gradient_of(call, 1), dp = call.out[0].as<float>(), threads = call.threads] {
    cpu::over_range(threads, c.rows * c.pixels, kOverlapThreadWork / std::max<int64_t>(1, c.classes),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t pixel = begin; pixel < end; ++pixel) {
                        const int64_t row = pixel / c.pixels;
                        for (int64_t k = 0; k < c.classes; ++k) {
                          const int64_t at = pixel * c.classes + k, sum = row * c.classes + k;
                          const float d1 = d_both != nullptr ? d_both[sum] : 0.0f,
                                      d2 = d_all != nullptr ? d_all[sum] : 0.0f;
                          dp[at] = d1 * c.label(pixel, k) + (c.squared ? 2.0f * p[at] : 1.0f) * d2;
                        }
                      }
                    });
  };
}

}  // namespace

extern const CpuKernels dice_cpu = {{"overlap", prepare_overlap}, {"overlap_grad", prepare_overlap_grad}};

}  // namespace trainctl
