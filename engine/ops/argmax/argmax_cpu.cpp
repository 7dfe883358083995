// y = the index of the first largest x along a dim, for up to kArgmaxTile neighbouring elements of the inner dims at a
// time.
#include <algorithm>

#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

constexpr int64_t kArgmaxTile = 64, kArgmaxThreadWork = 32768;

/// Finds the indices along dim `dim` of x, seen as [outer, n, inner], for kArgmaxTile neighboring columns at a time, so
/// that the inner loop is vectorized.
CpuKernel prepare_argmax(const KernelCall& call) {
  const TensorArg& x = call.in[0];
  const auto dim = static_cast<size_t>(call.attrs.integer("dim"));
  const int64_t n = x.shape[dim];
  int64_t outer = 1, inner = 1;
  for (size_t d = 0; d < dim; ++d) outer *= x.shape[d];
  for (size_t d = dim + 1; d < x.shape.size(); ++d) inner *= x.shape[d];
  return [=, from = x.as<float>(), to = call.out[0].as<int32_t>(), threads = call.threads] {
    const int64_t tiles = (inner + kArgmaxTile - 1) / kArgmaxTile;
    const int64_t least = kArgmaxThreadWork / std::max<int64_t>(1, n * std::min(inner, kArgmaxTile));
    cpu::over_range(threads, outer * tiles, least, [&](int64_t begin, int64_t end) {
      for (int64_t tile = begin; tile < end; ++tile) {
        const int64_t first = tile % tiles * kArgmaxTile, width = std::min(kArgmaxTile, inner - first);
        const int64_t base = tile / tiles * n * inner + first;
        int32_t* const out = to + tile / tiles * inner + first;
        float best[kArgmaxTile];
        std::copy_n(from + base, width, best);
        std::fill_n(out, width, 0);
        for (int64_t i = 1; i < n; ++i) {
          for (int64_t k = 0; k < width; ++k) {
            const float v = from[base + i * inner + k];
            const bool larger = (v > best[k]) | ((v != v) & (best[k] == best[k]));
            best[k] = larger ? v : best[k];
            out[k] = larger ? static_cast<int32_t>(i) : out[k];
          }
        }
      }
    });
  };
}

}  // namespace

extern const CpuKernels argmax_cpu = {{"argmax", prepare_argmax}};

}  // namespace trainctl
