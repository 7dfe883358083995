// Lists which rank sends messages to which: the channels that the shared memory needs.
#pragma once

#include <vector>

#include "engine/compile/program.h"
#include "engine/runtime/comm/shared_memory.h"

namespace trainctl {

/// The routes of one program's sends, in program order; a route may repeat.
std::vector<Route> routes_of(const Program& program);
/// The same over all ranks' programs.
std::vector<Route> routes_of(const std::vector<Program>& programs);

}  // namespace trainctl
