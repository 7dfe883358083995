// The rules by which the scale of the loss changes from step to step: those of torch.amp.GradScaler.
#pragma once

#include "engine/base/loss_scale_state.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// The state before the first step.
LossScaleState first_loss_scale(const Fp16Spec& spec);
/// The state after a step. A scale that would not be finite in f32 does not grow.
LossScaleState loss_scale_after(const Fp16Spec& spec, const LossScaleState& before, bool skipped);

}  // namespace trainctl
