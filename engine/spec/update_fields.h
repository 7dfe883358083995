// The sections of the job file that say what a step minimizes and how it updates the parameters.
#pragma once

#include "engine/spec/fields.h"

namespace trainctl {

const Section& loss_section();
/// An entry of auxiliary_losses.
const Section& auxiliary_loss_section();
/// One of optimizer.learning_rate.segments.
const Section& segment_section();
/// The section `optimizer`, with its learning rate and parameter groups.
const Section& optimizer_section();

}  // namespace trainctl
