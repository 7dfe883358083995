// The schedule of a step as a drawing: one row per stage, one column per unit of time (a backward takes two).
//
//   stage 0 |F0 F1 F2 F3 B0 -- B1 -- …
//   stage 1 |.  F0 F1 …
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace trainctl {

/// `tasks` is that of plan_report(). If `width` is not 0, no line is longer: repetitions with the next micro-batches
/// are drawn once, between [ and ]xN, and the rest continues below.
std::string draw_schedule(const nlohmann::ordered_json& tasks, size_t width = 0);

}  // namespace trainctl
