// Jobs as YAML, and what the tests of the compiler vary in them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/plan.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// By name: "mlp", "norms", "tied", "attention", "pairs". Batches of 48, no `parallel` and no `launch`.
extern const std::map<std::string, std::string> kNetworks;
/// Overrides: every level of parallel.optimizer_shard, every schedule.
extern const std::vector<std::string> kLevels, kSchedules;

struct Job {
  JobSpec spec;
  Graph graph;
  Plan plan;
};

/// Planned. Throws SpecError.
Job job(const std::string& text, const std::vector<std::string>& overrides);

/// Every combination of one entry of each list, as overrides; "" adds none.
std::vector<std::vector<std::string>> product(const std::vector<std::vector<std::string>>& lists);

}  // namespace trainctl
