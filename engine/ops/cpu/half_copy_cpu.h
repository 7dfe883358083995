// The 16-bit copy of the weights that an optimizer writes on request.
#pragma once

#include <utility>

#include "engine/graph/half.h"
#include "engine/ops/kernel.h"

namespace trainctl::cpu {

/// Runs `update`, then writes the copy if the last output is one.
inline CpuKernel with_half_copy(const KernelCall& call, CpuKernel update) {
  const DType type = call.out.back().dtype;
  if (!is_half(type)) return update;
  return [type, update = std::move(update), weights = call.out[0].as<const float>(),
          copy = call.out.back().as<uint16_t>(), n = call.out[0].size()] {
    update();
    floats_to_halves(type, weights, n, copy);
  };
}

}  // namespace trainctl::cpu
