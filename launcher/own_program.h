// The file of this program, to start it again.
#pragma once

#include <string>

namespace trainctl {

/// Throws EnvError where /proc is not mounted.
std::string own_program();

}  // namespace trainctl
