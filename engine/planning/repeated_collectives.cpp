// Decides whether recompute keeps the results of collectives, such as gathered keys and values, or runs the collectives
// again in the backward pass.
#include "engine/planning/repeated_collectives.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/text.h"
#include "engine/plan/stages/kept_results.h"
#include "engine/planning/compile_job.h"

namespace trainctl {

void repeat_collectives_to_fit(PlannedJob& job) {
  const int64_t limit = job.spec.parallel.max_memory;
  if (limit <= 0 || job.plan.kept.empty()) return;
  const int64_t with_kept = most_memory(compile_one_per_stage(job));
  if (with_kept <= limit) return;
  Plan before = job.plan;
  repeat_kept_results(job.plan);
  const int64_t bytes = most_memory(compile_one_per_stage(job));
  if (bytes >= with_kept) {
    job.plan = std::move(before);
    return;
  }
  job.plan.notes.push_back(
      fmt::format("recompute repeats all collectives instead of keeping their results, because parallel.max_memory "
                  "requires it: {} per rank instead of {}",
                  format_bytes(bytes), format_bytes(with_kept)));
}

}  // namespace trainctl
