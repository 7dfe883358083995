// parallel.context_method: auto where memory is short.
#include "engine/planning/context_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/text.h"
#include "engine/plan/traffic/context_method.h"
#include "engine/planning/compile_job.h"

namespace trainctl {

void fit_context_method(PlannedJob& job, PlanMemo& memo) {
  const int64_t limit = memory_limit(job);
  ParallelSpec& parallel = job.spec.parallel;
  if (limit == 0 || parallel.context <= 1 || parallel.context_method != ContextMethod::automatic ||
      parallel.mode != ParallelMode::semi_auto_parallel)
    return;
  const int64_t needed = compile(job, 0).memory.total();
  if (needed <= limit) return;
  std::vector<ContextMethodCost> costs = context_method_costs(job.graph, parallel, job.plan.mesh, job.cost);
  std::stable_sort(costs.begin(), costs.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  Plan fastest = std::move(job.plan);
  const ContextMethod first = fastest.context_method;
  for (const ContextMethodCost& other : costs) {
    if (other.method == first) continue;
    parallel.context_method = other.method;
    job.plan = make_plan(job.graph, job.spec, job.cost, memo);
    parallel.context_method = ContextMethod::automatic;
    const int64_t bytes = compile(job, 0).memory.total();
    if (bytes > limit) continue;
    job.plan.notes.push_back(fmt::format("context_method: {} instead of {}, with which a rank would need {} of {}: {}",
                                         to_string(other.method), to_string(first), format_bytes(needed),
                                         format_bytes(limit), format_bytes(bytes)));
    return;
  }
  job.plan = std::move(fastest);
}

}  // namespace trainctl
