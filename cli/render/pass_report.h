// Reports what each pass of the compiler does to one rank's program: `trainctl show program --passes`.
#pragma once

#include <string>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/compile/report/program_so_far.h"
#include "engine/planning/planned_job.h"

namespace trainctl {

struct PassCost {
  const Pass* pass = nullptr;
  double seconds = 0;
  ProgramSize before, after;
};

/// Compiles the program of one rank and times each pass.
std::vector<PassCost> time_passes(const PlannedJob& job, int rank);

std::string render_passes(const std::vector<PassCost>& costs);

std::vector<std::string> pass_names();

}  // namespace trainctl
