// profile.json of a run's folder: what `trainctl run --profile` prints, as data. Seconds, bytes and operations.
//
//   {"steps": "3-5", "step_seconds": 0.0035,
//    "ranks": [{"rank": 0, "seconds": …, "compute": 0.1, "communication": 0.2, "waiting": 0.6, "idle": 0.1,
//               "moving_seconds": …, "hidden_seconds": …, "moved_bytes": …, "hidden_bytes": …}, …],    over all steps
//    "instructions": [{"name", "op", "recompute", "calls", "seconds", "waited_seconds", "flops", "bytes"}, …],
//    "machine": "h200x8 (data sheets)", "parts": [{"name", "seconds", "limit_seconds", "launches"}, …],
//    "tasks": [{"rank": 0, "stage": 0, "tasks": ["F0", …], "starts": [0.0, …], "ends": […]}, …]}    of one step
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "engine/machine/machine.h"
#include "engine/train/profile/ran_tasks.h"
#include "engine/train/profile/step_components.h"
#include "engine/train/profile/summary.h"

namespace trainctl {

/// Contains only the longest instructions.
nlohmann::ordered_json profile_json(const ProfileSummary& summary, std::span<const StepComponent> parts,
                                    std::span<const RankTasks> tasks, const Machine& machine);

}  // namespace trainctl
