// y[i, j, k] = x[i, index[i, j(, k)], k], and its gradient, for this rank's part of the dim.
#include <algorithm>
#include <string>

#include "engine/base/error.h"
#include "engine/ops/gather/gather_call.h"

namespace trainctl {
namespace {

/// The position of an index in this rank's part of the dim. If it is negative, or n or more, another rank has the
/// element.
int64_t gathered_place(const GatherCall& g, int32_t index) {
  if (index < 0 || index >= g.whole)
    throw EnvError("gather: the index " + std::to_string(index) + " is not in a dim of " + std::to_string(g.whole) +
                   " elements\n  indices are 0 to " + std::to_string(g.whole - 1));
  return index - g.first;
}

CpuKernel prepare_gather(const KernelCall& call) {
  return [g = GatherCall::of(call, call.in[0], call.in[1]), x = call.in[0].as<float>(),
          index = call.in[1].as<int32_t>(), y = call.out[0].as<float>()] {
    for (int64_t row = 0; row < g.rows(); ++row) {
      const float* from = x + row / g.count * g.n * g.inner;
      float* to = y + row * g.inner;
      if (!g.is_by_element) {
        const int64_t place = gathered_place(g, index[row]);
        if (place < 0 || place >= g.n)
          std::fill_n(to, g.inner, 0.0f);
        else
          std::copy_n(from + place * g.inner, g.inner, to);
        continue;
      }
      for (int64_t k = 0; k < g.inner; ++k) {
        const int64_t place = gathered_place(g, index[row * g.inner + k]);
        to[k] = place < 0 || place >= g.n ? 0.0f : from[place * g.inner + k];
      }
    }
  };
}

CpuKernel prepare_gather_grad(const KernelCall& call) {
  return [g = GatherCall::of(call, call.out[0], call.in[1]), dy = call.in[0].as<float>(),
          index = call.in[1].as<int32_t>(), dx = call.out[0].as<float>(), size = call.out[0].size()] {
    std::fill_n(dx, size, 0.0f);
    for (int64_t row = 0; row < g.rows(); ++row) {
      float* to = dx + row / g.count * g.n * g.inner;
      const float* from = dy + row * g.inner;
      for (int64_t k = 0; k < g.inner; ++k) {
        const int64_t place = gathered_place(g, index[g.is_by_element ? row * g.inner + k : row]);
        if (place >= 0 && place < g.n) to[place * g.inner + k] += from[k];
      }
    }
  };
}

}  // namespace

extern const CpuKernels gather_cpu = {
    {"gather", prepare_gather}, {"gather_grad", prepare_gather_grad}, {"scatter_add", prepare_gather_grad}};

}  // namespace trainctl
