// Notices of kernels while they are prepared: what a run is without, or computes in a slower way.
#pragma once

#include <string>

namespace trainctl {

/// Writes a line to stderr, which is in the rank's log; not again in this process.
void print_once(const std::string& line);

}  // namespace trainctl
