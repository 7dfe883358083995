// Draws where two runs diverge, as one self-contained HTML file.
#pragma once

#include <string>

#include "engine/train/verification/run_difference.h"

namespace trainctl {

/// A map of tensors and steps, colored by distance. `a`, `b`: names of the runs.
std::string difference_page(const RunDifference& difference, const std::string& a, const std::string& b);

}  // namespace trainctl
