// The report that `run --profile` prints after the ranks have ended: how the time of the profiled steps was spent.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "engine/runtime/cuda/devices.h"
#include "engine/train/profile/step_components.h"
#include "engine/train/profile/summary.h"

namespace trainctl {

/// Time breakdown per rank, communication hidden behind kernels, and the `top` longest instructions.
std::string render_profile(const ProfileSummary& summary, size_t top = 10);

/// Step time by part, compared with the machine's limits, and what to optimize first. `load`: load of the GPU
/// meanwhile.
std::string render_parts(std::span<const StepComponent> parts, const Machine& machine,
                         const std::optional<CudaLoad>& load);

/// "1.25 ms", "83.0 us", "2.50 s".
std::string duration_text(double seconds);

}  // namespace trainctl
