// Plans that must not change the numbers: a job, and the overrides that set its plan.
#pragma once

#include <string>
#include <vector>

namespace trainctl {

constexpr double kSgdTolerance = 1e-5;
constexpr double kAdamTolerance = 1e-4;  ///< adam's division magnifies rounding

struct PlanCase {
  std::string name;
  const char* job;                ///< job file in tests/jobs
  std::vector<std::string> same;  ///< overrides of both runs: micro-batches, optimizers
  std::vector<std::string> plan;  ///< overrides of the plan only
  double tolerance = kSgdTolerance;
  const char* reference = nullptr;  ///< another job for the one-rank run, if the network itself contains the plan
};

const std::vector<PlanCase>& plan_cases();

}  // namespace trainctl
