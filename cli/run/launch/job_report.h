// The report of a planned job: what `trainctl plan --json` prints, and the programs that it was read from.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "engine/estimate/simulate.h"
#include "engine/planning/planned_job.h"

namespace trainctl {

struct JobReport {
  nlohmann::ordered_json json;
  RankClasses classes;
  /// For asynchronous jobs: a single worker with the servers, which is what the estimate simulates.
  std::optional<RankClasses> single_worker;
  std::optional<Simulation> step;  ///< null: there is no estimate

  const RankClasses& simulated() const { return single_worker ? *single_worker : classes; }
};

/// Compiles the job. Includes an estimate if the job names a machine or a search chose its plan, or if `estimate`.
/// Throws SpecError for data that the network cannot use as indices.
JobReport report_of(const PlannedJob& job, bool estimate);

}  // namespace trainctl
