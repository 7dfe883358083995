// launch.elastic: for the loss of each host, whether the others have the whole state, and how many bytes then move.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/planning/planned_job.h"

namespace trainctl {

/// [{"host": "b", "covered": true, "bytes": 8100000}, {"host": "c", "covered": false, "missing": "fc.weight:weight"}];
/// bytes: to the launcher, and from there to each remaining host. Null for a job without launch.elastic, and one
/// with more ranks than are compiled for this.
nlohmann::ordered_json losses_report(const PlannedJob& job);

/// Whether every loss is covered; false if that report is null.
bool is_each_loss_covered(const PlannedJob& job);

}  // namespace trainctl
