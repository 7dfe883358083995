// The report that `run --profile` prints after the ranks have ended: where the time of the profiled steps went.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "engine/runtime/cuda/devices.h"
#include "engine/train/profile/parts.h"
#include "engine/train/profile/summary.h"

namespace trainctl {

/// Shares of time per rank, communication hidden under kernels, and the `top` instructions that took longest.
std::string render_profile(const ProfileSummary& summary, size_t top = 10);

/// The step by part, beside the machine's limits, and what to look at first. `load`: what the devices did meanwhile.
std::string render_parts(std::span<const StepPart> parts, const Machine& machine, const std::optional<CudaLoad>& load);

/// "1.25 ms", "83.0 us", "2.50 s".
std::string duration_text(double seconds);

}  // namespace trainctl
