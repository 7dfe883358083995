// The report of a planned job: what `trainctl plan --json` prints, and plan.json in the folder of a run.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "cli/run/launch/planned_texts.h"
#include "engine/estimate/simulate.h"
#include "engine/planning/planned_job.h"

namespace trainctl {

/// A predicted step.
struct JobEstimate {
  /// For asynchronous jobs: a single worker with the servers, which is what is simulated.
  std::optional<RankClasses> single_worker;
  Simulation step;

  /// The programs of the job that were simulated.
  const RankClasses& simulated(const RankClasses& classes) const { return single_worker ? *single_worker : classes; }
};

/// Nothing if the job names no machine and no search chose its plan, unless `always`.
std::optional<JobEstimate> estimate_of(const PlannedJob& job, const RankClasses& classes, bool always);

/// The report of a job that is compiled: its programs with the memory of the validation, those of the validation, and
/// the texts that it generates (null: it has none). `estimate` may be null.
nlohmann::ordered_json job_json(const PlannedJob& job, const RankClasses& classes, const RankClasses* validation,
                                const PlannedTexts* texts, const JobEstimate* estimate);

struct JobReport {
  nlohmann::ordered_json json;
  RankClasses classes;
  std::optional<JobEstimate> estimate;
};

/// Compiles the job and reports on it. `estimate`: estimate_of always. Throws SpecError for data that the network
/// cannot use as indices.
JobReport report_of(const PlannedJob& job, bool estimate);

}  // namespace trainctl
