// The bf16 copy of the weights that an optimizer writes on request.
#pragma once

#include <utility>

#include "engine/graph/bf16.h"
#include "engine/ops/kernel.h"

namespace trainctl::cpu {

/// Runs `update`, then writes the copy if the last output is one.
inline CpuKernel with_bf16_copy(const KernelCall& call, CpuKernel update) {
  if (call.out.back().dtype != DType::bf16) return update;
  return [update = std::move(update), weights = call.out[0].as<const float>(), copy = call.out.back().as<uint16_t>(),
          n = call.out[0].size()] {
    update();
    for (int64_t i = 0; i < n; ++i) copy[i] = to_bf16(weights[i]);
  };
}

}  // namespace trainctl::cpu
