// The plans that must not change a number: a job, and overrides that say how it runs.
#pragma once

#include <string>
#include <vector>

namespace trainctl {

constexpr double kSgdTolerance = 1e-5;
constexpr double kAdamTolerance = 1e-4;  ///< adam's division magnifies rounding

struct PlanCase {
  const char* name;
  const char* job;                ///< of tests/jobs
  std::vector<std::string> same;  ///< overrides of both runs: micro-batches, optimizers
  std::vector<std::string> plan;  ///< overrides of the plan alone
  double tolerance = kSgdTolerance;
  const char* reference = nullptr;  ///< another job for one rank, where the network itself says how
};

const std::vector<PlanCase>& plan_cases();

}  // namespace trainctl
