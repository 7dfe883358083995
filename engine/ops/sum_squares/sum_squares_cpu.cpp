// out[1] = sum of in^2: this rank's term of the squared global norm. not_finite: whether the norm is nan or infinite.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

constexpr int64_t kSquaresBlock =
    1 << 15;  ///< elements of one sum: the same for any number of threads, and so are the bits

CpuKernel prepare_sum_squares(const KernelCall& call) {
  const int64_t n = call.in[0].size(), blocks = (n + kSquaresBlock - 1) / kSquaresBlock;
  return [n, blocks, sums = std::vector<double>(static_cast<size_t>(blocks)), x = call.in[0].as<float>(),
          out = call.out[0].as<float>(), add = call.out[0].accumulate, threads = call.threads]() mutable {
    cpu::over_range(threads, blocks, 1, [&, to = sums.data()](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const float* const from = x + block * kSquaresBlock;
        to[block] = cpu::sum(std::min(kSquaresBlock, n - block * kSquaresBlock),
                             [from](int64_t i) { return double{from[i]} * from[i]; });
      }
    });
    *out = static_cast<float>(std::accumulate(sums.begin(), sums.end(), add ? double{*out} : 0.0));
  };
}

CpuKernel prepare_not_finite(const KernelCall& call) {
  return [x = call.in[0].as<float>(), out = call.out[0].as<float>()] { *out = std::isfinite(*x) ? 0.0f : 1.0f; };
}

}  // namespace

extern const CpuKernels sum_squares_cpu = {{"sum_squares", prepare_sum_squares},
                                           {"count_not_finite", prepare_not_finite}};

}  // namespace trainctl
