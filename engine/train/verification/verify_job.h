// Verifies a job: proves its programs, and runs a reduced form of it on threads of this process, under its own plan and
// on one rank.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/train/verification/certificate.h"
#include "engine/train/verification/thread_run.h"

namespace trainctl {

/// Jobs of more ranks are proved, and not run.
inline constexpr int kMostThreadRanks = 64;

/// For tests: a fault of the planner, the compiler or a kernel.
struct PlantedFault {
  std::function<void(Graph&)> in_rules{};                     ///< before the graph is planned
  std::function<void(std::vector<Program>&)> in_programs{};   ///< the plan's programs, by rank
  std::function<void(std::vector<Program>&)> in_reference{};  ///< the programs of the one-rank reference
  /// On each rank's thread before each step and after the last one; `run` counts the runs of the plan.
  std::function<void(int run, const Program&, int64_t step, Executor&)> in_state{};
};

struct VerifyOptions {
  int64_t steps = 4;            ///< length of each run, at least 2
  double most_work = 1e9;       ///< operations of a step over all ranks, which the job is reduced to
  double slope_seconds = 10;    ///< for slopes of the loss; at least one of them is measured
  double timeout_seconds = 60;  ///< for a collective
  std::string trainctl;         ///< version, for the certificate
  std::function<void(const std::string&)> on_progress{};  ///< called with what begins: "one rank"
  PlantedFault fault{};
};

/// Throws SpecError if the job cannot be planned, or starts a program instead of training a network.
Certificate verify_job(const JobSpec& spec, const VerifyOptions& options = {});

}  // namespace trainctl
