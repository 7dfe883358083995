// Lists which rank sends messages to which: the channels that the shared memory needs.
#include "engine/runtime/routes.h"

namespace trainctl {

std::vector<Route> routes_of(const Program& program) {
  std::vector<Route> routes;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.opcode == Opcode::send) routes.push_back({program.rank, instruction.peer});
  }
  return routes;
}

std::vector<Route> routes_of(const std::vector<Program>& programs) {
  std::vector<Route> all;
  for (const Program& program : programs) {
    const std::vector<Route> routes = routes_of(program);
    all.insert(all.end(), routes.begin(), routes.end());
  }
  return all;
}

}  // namespace trainctl
