// The step that `trainctl plan` predicts.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "engine/estimate/simulate.h"

namespace trainctl {

/// The program of the rank that needs the most memory.
const Program& largest_program(const std::vector<Program>& programs);

/// Memory of the device of the rank that needs the most.
struct DeviceNeed {
  int rank = 0;
  int64_t bytes = 0;     ///< the rank's need
  int64_t reserved = 0;  ///< the part that driver and libraries take
  int64_t device = 0;
  int64_t usable() const { return device - reserved; }
  bool fits() const { return bytes <= usable(); }
};
/// Returns nullopt if the machine does not state how much memory its devices have.
std::optional<DeviceNeed> device_need(const std::vector<Program>& programs, const Machine& machine);

/// {"machine", "source", "seconds", "low", "high": nine of ten steps are expected between them, from the errors of the
/// kernels' times, "parts": {name: seconds, …}: along the critical path, adding up to `seconds`,
///  "memory": {"rank": which needs most, "bytes", "reserved": by driver and libraries, "device", "fits"}: only if
///  the machine says how much memory its devices have, "classes": [{"rank": its first, "compute", "communication":
///  seconds in which the streams are busy}, …]}
nlohmann::ordered_json estimate_report(const RankClasses& classes, const Machine& machine, const Simulation& step);

}  // namespace trainctl
