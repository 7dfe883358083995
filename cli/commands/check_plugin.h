// Loads the plugin of an option --plugin FILE, and tests its ops for `trainctl check`.
#pragma once

#include <string>

namespace trainctl {

/// Loads a plugin that the command line names. Returns its SHA-256. Throws SpecError.
std::string load_named_plugin(const std::string& file);

/// trainctl check --plugin FILE: tests each op of the plugin and prints the results. Returns the exit code. Throws
/// SpecError if it cannot be loaded.
int check_plugin(const std::string& file);

}  // namespace trainctl
