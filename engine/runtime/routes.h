// Which ranks send messages to which: the channels that their shared memory needs.
#pragma once

#include <vector>

#include "engine/compile/program.h"
#include "engine/runtime/comm/shared_memory.h"

namespace trainctl {

/// Of the sends of one program, in their order; a route may come more than once.
std::vector<Route> routes_of(const Program& program);
/// Of all ranks' programs.
std::vector<Route> routes_of(const std::vector<Program>& programs);

}  // namespace trainctl
