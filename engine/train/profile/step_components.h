// The time of profiled steps by component: products, attention, norms, …, gaps; each with the least time that the
// machine allows.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/machine/machine.h"
#include "engine/train/profile/step_profile.h"

namespace trainctl {

struct StepComponent {
  std::string name;    ///< "products", "head", "attention backward", "gaps between kernels"
  double seconds = 0;  ///< seconds per step of one rank: mean over ranks and profiled steps
  /// Lower limit of `seconds`: for each kernel the longer of its operations and its bytes at the machine's rates; for a
  /// transfer its bytes at the innermost link's. 0 for gaps and waiting.
  double limit_seconds = 0;
  double launches = 0;  ///< launches per step
};

/// Longest first. Kernels of all streams count, and transfers only where no kernel runs, so without kernels that run
/// side by side the components add up to the step.
std::vector<StepComponent> step_components(std::span<const RankProfile> profiles, const Machine& machine);

}  // namespace trainctl
