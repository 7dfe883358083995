// Faults of the planner, the compiler, kernels and ranks, which tests plant into a verification.
#pragma once

#include <string>
#include <vector>

#include "engine/train/verification/verify_job.h"

namespace trainctl {

struct FaultCase {
  std::string name;
  const char* job;                     ///< job file in tests/jobs
  std::vector<std::string> overrides;  ///< plan
  PlantedFault fault;
  std::vector<std::string> found_by;  ///< checks, one of which must fail
};

std::vector<FaultCase> fault_cases();

}  // namespace trainctl
