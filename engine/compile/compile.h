// Plan -> Program.
#pragma once

#include <vector>

#include "engine/compile/program.h"

namespace trainctl {

/// The program of one rank. Deterministic, and consistent with every other rank's.
Program compile(const Graph& graph, const Plan& plan, const JobSpec& spec, const CostModel& cost, int rank);

/// The programs of all ranks, each compiled and verified by itself. For tests that run them all in one process: compile_classes
/// (rank_classes.h) is what plans and launches use.
std::vector<Program> compile_all(const Graph& graph, const Plan& plan, const JobSpec& spec, const CostModel& cost);

}  // namespace trainctl
