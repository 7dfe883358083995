// Finds the file of this program, so that it can be started again.
#pragma once

#include <string>

namespace trainctl {

/// Throws EnvError if /proc is not mounted.
std::string own_program();

}  // namespace trainctl
