// Report of a search in the output of `trainctl plan`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/search/find_plan.h"

namespace trainctl {

/// {"weighed": choices, "bound": seconds, "gap": part of the bound that the best plan is above it,
///  "exact": whether the bound is that of these cuts,
///  "reasons": [{"layers", "next_best": cuts, "seconds" and "bytes" sent a micro-batch that the chosen cuts save}, …],
///  "tried": [{"plan", "seconds", "expected", "memory", "in_full", "parts": {name: seconds},
///             "lost": why it is not the first; or
///             "fault"}, …]}
nlohmann::ordered_json search_report(const FoundPlan& found);

/// Tells why the best plan won against this one: the part of the step where this one loses most time, or its memory.
std::string why_lost(const TriedPlan& plan, const TriedPlan& best, int64_t memory_limit);

}  // namespace trainctl
