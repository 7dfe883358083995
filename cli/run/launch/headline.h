// The facts about a plan that come first: throughput, utilization, memory and idle time.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/planning/planned_job.h"

namespace trainctl {

/// {"device": "GPU" or "rank", "flops_per_step": of the products and attention of the model, "memory": {"rank": which
///  needs most, "bytes", "available"?: what its device has}, "tokens_per_sample"?}, and with an estimate (`report` has
/// it) {"step_seconds", "samples_per_second", "tokens_per_second"?, "flops_per_second": per rank,
///  "peak_flops_per_second"? and "mfu"?: if the data sheet of the device is known, "idle_share": of the ranks' time in
///  which they compute nothing}
nlohmann::ordered_json headline_json(const PlannedJob& job, const RankClasses& classes,
                                     const nlohmann::ordered_json& report);

}  // namespace trainctl
