// The step that `trainctl plan` predicts.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/estimate/simulate.h"

namespace trainctl {

/// {"machine", "source", "seconds", "low", "high": nine of ten steps lie between them, as far as the errors of kernels
///  show, "parts": {name: seconds, …}: along the critical path, adding up to `seconds`,
///  "memory": {"rank": which needs most, "bytes", "reserved": by driver and libraries, "device", "fits"}: only if
///  the machine says how much memory its devices have, "classes": [{"rank": its first, "compute", "communication":
///  seconds in which the streams are busy}, …]}
nlohmann::ordered_json estimate_report(const RankClasses& classes, const Machine& machine, const Simulation& step);

}  // namespace trainctl
