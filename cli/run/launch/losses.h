// launch.elastic: for each host, whether the others hold the whole state if it is lost, and how many bytes then move.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/planning/planned_job.h"

namespace trainctl {

/// [{"host": "b", "covered": true, "bytes": 8100000}, {"host": "c", "covered": false, "missing": "fc.weight:weight"}];
/// bytes: to the launcher, and from there to each host that is left. Null for a job without launch.elastic, and one
/// with more ranks than are compiled for this.
nlohmann::ordered_json losses_report(const PlannedJob& job);

/// False also where that report is null.
bool is_each_loss_covered(const PlannedJob& job);

}  // namespace trainctl
