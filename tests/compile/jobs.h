// Jobs of tests/jobs, and the settings that the compiler's tests vary in them.
#pragma once

#include <string>
#include <vector>

#include "engine/compile/program.h"
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

/// Reads, builds and plans a job. Throws SpecError.
Job job(JobSpec spec);
/// A job of tests/jobs with a batch of 48, which most rank counts up to 12 divide.
Job job(const std::string& name, std::vector<std::string> overrides);

/// A recv, the last kernel of the compute stream before it in the list, and the last one that ends before it starts;
/// -1: none.
struct RecvStart {
  int recv = -1, before = -1, awaited = -1;
};
std::vector<RecvStart> starts_of_recvs(const Program& program);

/// Every combination of one entry of each list, as overrides; "" adds none.
std::vector<std::vector<std::string>> product(const std::vector<std::vector<std::string>>& lists);

}  // namespace trainctl
