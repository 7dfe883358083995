// launch.elastic: for each host, whether the other hosts have the complete state if it is lost, and how many bytes are
// then transferred.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/planning/planned_job.h"

namespace trainctl {

/// [{"host": "b", "covered": true, "bytes": 8100000}, {"host": "c", "covered": false, "missing": "fc.weight:weight"}];
/// bytes: to the launcher, and from there to each remaining host. Null for a job without launch.elastic, and one
/// with more ranks than are compiled for this.
nlohmann::ordered_json lost_hosts_report(const PlannedJob& job);

/// Returns whether every single lost host is covered; false if that report is null.
bool is_each_lost_host_covered(const PlannedJob& job);

}  // namespace trainctl
