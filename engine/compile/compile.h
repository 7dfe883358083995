// Plan -> Program.
#pragma once

#include <vector>

#include "engine/compile/program.h"

namespace trainctl {

/// The program of one rank. Deterministic, and consistent with every other rank's.
Program compile(const Graph& graph, const Plan& plan, const JobSpec& spec, const CostModel& cost, int rank);

/// The programs of all ranks, verified together (verify_programs).
std::vector<Program> compile_all(const Graph& graph, const Plan& plan, const JobSpec& spec, const CostModel& cost);

}  // namespace trainctl
