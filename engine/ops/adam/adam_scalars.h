// Adam's bias corrections, for optimizers with its moments.
#pragma once

#include <cmath>

#include "engine/ops/kernel.h"

namespace trainctl {

/// OptimizerDef::fill_scalars for a field `betas`.
inline void fill_bias_corrections(const Attrs& settings, int64_t update, StepScalars& scalars) {
  const std::vector<double>& betas = settings.numbers("betas");
  scalars.adam_bias1 = static_cast<float>(1.0 - std::pow(betas[0], static_cast<double>(update)));
  scalars.adam_bias2 = static_cast<float>(1.0 - std::pow(betas[1], static_cast<double>(update)));
}

}  // namespace trainctl
