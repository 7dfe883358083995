// parallel.local_steps: the groups of ranks with weights of their own.
#include "engine/spec/replicas.h"

#include <algorithm>

#include "engine/spec/hosts.h"

namespace trainctl {
namespace {

int num_hosts(const LaunchSpec& launch) {
  if (launch.target != Target::hosts) return managed_hosts(launch);
  if (!launch.hostfile.empty()) return 0;
  if (launch.hosts.empty()) return 1;
  return static_cast<int>(place_ranks(parse_hosts(launch.hosts), launch.ranks).hosts.size());
}

}  // namespace

int num_replicas(const JobSpec& spec) {
  const ParallelSpec& parallel = spec.parallel;
  if (parallel.local_steps == 0) return 1;
  return parallel.replicas > 0 ? parallel.replicas : num_hosts(spec.launch);
}

JobSpec spec_of_replica(const JobSpec& spec) {
  JobSpec one = spec;
  const int replicas = std::max(1, num_replicas(spec));
  one.parallel.replicas = replicas;
  one.launch.ranks /= replicas;
  one.dataset.batch /= replicas;
  one.launch.hosts.clear();
  one.launch.hostfile.clear();
  return one;
}

OuterSpec default_outer() { return {.learning_rate = 0.9, .momentum = 0.5, .nesterov = true}; }

JobSpec without_local_steps(JobSpec spec) {
  if (spec.parallel.local_steps == 0) return spec;
  JobSpec one = spec_of_replica(spec);
  one.parallel.local_steps = 0;
  one.parallel.replicas = 0;
  return one;
}

}  // namespace trainctl
