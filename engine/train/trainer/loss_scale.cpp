// The rules by which the scale of the loss changes from step to step: those of torch.amp.GradScaler.
#include "engine/train/trainer/loss_scale.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trainctl {
namespace {

/// The reciprocal of a smaller scale would not be finite in f32.
double least_scale(const Fp16Spec& spec) {
  return std::max(spec.min_scale, static_cast<double>(std::numeric_limits<float>::min()));
}

}  // namespace

LossScaleState first_loss_scale(const Fp16Spec& spec) {
  return {.scale = std::max(static_cast<double>(static_cast<float>(spec.initial_scale)), least_scale(spec))};
}

LossScaleState loss_scale_after(const Fp16Spec& spec, const LossScaleState& before, bool skipped) {
  LossScaleState after = before;
  const auto times = [&](double factor) {  // PyTorch keeps the scale in f32
    return static_cast<double>(static_cast<float>(before.scale) * static_cast<float>(factor));
  };
  if (skipped) {
    after.scale = std::max(times(spec.backoff_factor), least_scale(spec));
    after.finite_steps = 0;
    ++after.skipped;
    return after;
  }
  if (++after.finite_steps < spec.growth_interval) return after;
  after.finite_steps = 0;
  if (const double grown = times(spec.growth_factor); std::isfinite(grown)) after.scale = grown;
  return after;
}

}  // namespace trainctl
