// parallel.local_steps: the groups of ranks with weights of their own.
#include "engine/spec/replicas.h"

#include <algorithm>
#include <cmath>

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

int64_t end_of_round(const ParallelSpec& parallel, int64_t step) {
  const int64_t local = parallel.local_steps, last = (step / local + 1) * local;
  if (parallel.outer.round_growth == 0) return last;
  const double steps = std::floor(parallel.outer.round_growth * static_cast<double>(step));
  return std::min(last, step + static_cast<int64_t>(std::clamp(steps, 1.0, static_cast<double>(local))));
}

int64_t rounds_until(const ParallelSpec& parallel, int64_t steps) {
  const int64_t local = parallel.local_steps;
  int64_t rounds = 0, step = 0;
  while (step < steps) {
    const int64_t end = end_of_round(parallel, step);
    ++rounds;
    const bool is_full = end - step == local;  // then all later rounds have local_steps too
    step = end;
    if (is_full && steps > step) return rounds + (steps - step + local - 1) / local;
  }
  return rounds;
}

double local_rate_of(const JobSpec& spec) {
  const ParallelSpec& parallel = spec.parallel;
  if (parallel.local_steps == 0) return 1;
  if (parallel.outer.local_rate > 0) return parallel.outer.local_rate;
  const std::string& type = spec.optimizer.type;
  const bool divides_by_size = type == "adam" || type == "adamw" || type == "nadam";
  return divides_by_size ? std::sqrt(std::clamp(num_replicas(spec), 1, 2)) : 1;
}

JobSpec without_local_steps(JobSpec spec) {
  if (spec.parallel.local_steps == 0) return spec;
  JobSpec one = spec_of_replica(spec);
  one.parallel.local_steps = 0;
  one.parallel.replicas = 0;
  return one;
}

}  // namespace trainctl
