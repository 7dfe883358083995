// sum_squares: out[1] = sum of in^2, this rank's term of the squared global norm. count_not_finite: out[1] = 0 if the
// norm is finite, else 1.
#include <cmath>

#include "engine/ops/cpu/block_sums_cpu.h"
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

constexpr int64_t kSquaresBlock = 1 << 15;  ///< elements per block of the sum

CpuKernel prepare_sum_squares(const KernelCall& call) {
  return [sums = cpu::BlockSums(call.threads, call.in[0].size(), kSquaresBlock, 1), x = call.in[0].as<float>(),
          out = call.out[0].as<float>(), add = call.out[0].accumulate]() mutable {
    const double total = sums.run(
        [x](int64_t first, int64_t count) {
          const float* const from = x + first;
          return cpu::sum(count, [from](int64_t i) { return double{from[i]} * from[i]; });
        },
        add ? double{*out} : 0.0);
    *out = static_cast<float>(total);
  };
}

CpuKernel prepare_not_finite(const KernelCall& call) {
  return [x = call.in[0].as<float>(), out = call.out[0].as<float>()] { *out = std::isfinite(*x) ? 0.0f : 1.0f; };
}

}  // namespace

extern const CpuKernels sum_squares_cpu = {{"sum_squares", prepare_sum_squares},
                                           {"count_not_finite", prepare_not_finite}};

}  // namespace trainctl
