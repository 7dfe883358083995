// Sums along dim in double, for up to kCumsumTile neighbouring elements of the inner dims at a time.
#include <algorithm>

#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

constexpr int64_t kCumsumTile = 64, kCumsumThreadWork = 32768;

/// Sums along dim `dim` of x, seen as [outer, n, inner], for kCumsumTile neighboring columns at a time.
CpuKernel prepare_cumsum(const KernelCall& call) {
  const TensorArg& x = call.in[0];
  const auto dim = static_cast<size_t>(call.attrs.integer("dim"));
  const int64_t n = x.shape[dim];
  int64_t outer = 1, inner = 1;
  for (size_t d = 0; d < dim; ++d) outer *= x.shape[d];
  for (size_t d = dim + 1; d < x.shape.size(); ++d) inner *= x.shape[d];
  return [=, from = x.as<float>(), to = call.out[0].as<float>(), reverse = call.attrs.flag("reverse"),
          threads = call.threads] {
    const int64_t tiles = (inner + kCumsumTile - 1) / kCumsumTile;
    const int64_t least = kCumsumThreadWork / std::max<int64_t>(1, n * std::min(inner, kCumsumTile));
    cpu::over_range(threads, outer * tiles, least, [&](int64_t begin, int64_t end) {
      for (int64_t tile = begin; tile < end; ++tile) {
        const int64_t first = tile % tiles * kCumsumTile, width = std::min(kCumsumTile, inner - first);
        const int64_t base = tile / tiles * n * inner + first;
        double sums[kCumsumTile] = {};
        for (int64_t step = 0; step < n; ++step) {
          const int64_t at = base + (reverse ? n - 1 - step : step) * inner;
          for (int64_t k = 0; k < width; ++k) {
            sums[k] += static_cast<double>(from[at + k]);
            to[at + k] = static_cast<float>(sums[k]);
          }
        }
      }
    });
  };
}

}  // namespace

extern const CpuKernels cumsum_cpu = {{"cumsum", prepare_cumsum}};

}  // namespace trainctl
