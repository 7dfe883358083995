// A machine as JSON, as `trainctl calibrate` writes it; docs/machines.md lists the fields.
#pragma once

#include <string>

#include "engine/machine/machine.h"

namespace trainctl {

std::string to_json(const Machine& machine);
/// Throws EnvError: `where` (a file), the field, and what is wrong.
Machine machine_of_json(const std::string& text, const std::string& where);

}  // namespace trainctl
