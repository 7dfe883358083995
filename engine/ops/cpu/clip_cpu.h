// Clipping by global norm, as torch.nn.utils.clip_grad_norm_, shared by the optimizer kernels.
#pragma once

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"
#include "engine/ops/kernel.h"

namespace trainctl::cpu {

struct Clip {
  float norm = 0;                       ///< the largest global norm; 0: no clipping
  const float* squared_norm = nullptr;  ///< [1], of all gradients of the job

  /// The factor of every gradient in this step.
  float scale() const { return norm > 0 ? std::min(1.0f, norm / (std::sqrt(*squared_norm) + 1e-6f)) : 1.0f; }
};

inline Clip clip_of(const KernelCall& call) {
  const auto norm = static_cast<float>(call.attrs.number("clip_norm", 0.0));
  if (norm <= 0) return {};
  check(call.in.size() > 1, "clip_norm needs the squared global norm as second input");
  return {norm, call.in[1].as<float>()};
}

}  // namespace trainctl::cpu
