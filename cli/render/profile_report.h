// What `run --profile` prints after the ranks have ended: where the time of the profiled steps went.
#pragma once

#include <string>

#include "engine/train/profile/summary.h"

namespace trainctl {

/// Shares of time per rank, communication hidden under kernels, and the `top` instructions that took longest.
std::string render_profile(const ProfileSummary& summary, size_t top = 10);

/// "1.25 ms", "83.0 us", "2.50 s".
std::string duration_text(double seconds);

}  // namespace trainctl
