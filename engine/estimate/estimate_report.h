// What `trainctl plan` predicts of a step.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/estimate/simulate.h"

namespace trainctl {

/// {"machine", "source", "seconds", "low", "high": nine of ten steps take between them, as far as the errors of kernels
///  tell, "parts": {name: seconds, …}: of the longest chain, adding up to `seconds`,
///  "memory": {"rank": that which needs most, "bytes", "reserved": by driver and libraries, "device", "fits"}: only if
///  the machine says how much memory its devices have, "classes": [{"rank": its first, "compute", "communication":
///  seconds in which the streams are busy}, …]}
nlohmann::ordered_json estimate_report(const RankClasses& classes, const Machine& machine, const Simulation& step);

}  // namespace trainctl
