// trainctl check --plugin FILE.
#pragma once

#include <string>

namespace trainctl {

/// Tests each op of the plugin and prints the results. Returns the exit code. Throws SpecError if it cannot be loaded.
int check_plugin(const std::string& file);

}  // namespace trainctl
