// Jobs of tests/jobs, and what the tests of the compiler vary in them.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/plan.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// Jobs of tests/jobs whose plans are varied.
extern const std::vector<std::string> kNetworks;
/// Overrides: every level of parallel.optimizer_shard, every schedule.
extern const std::vector<std::string> kLevels, kSchedules;

struct Job {
  JobSpec spec;
  Graph graph;
  Plan plan;
};

/// Planned. Throws SpecError.
Job job(JobSpec spec);
/// A job of tests/jobs, in batches of 48, which every number of ranks up to 12 divides.
Job job(const std::string& name, std::vector<std::string> overrides);

/// Every combination of one entry of each list, as overrides; "" adds none.
std::vector<std::vector<std::string>> product(const std::vector<std::vector<std::string>>& lists);

}  // namespace trainctl
