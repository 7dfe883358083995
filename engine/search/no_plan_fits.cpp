// Writes the errors of a search that found no legal plan, or none that fits into memory.
#include "engine/search/no_plan_fits.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/text.h"

namespace trainctl {

NoPlanFits::NoPlanFits(const JobSpec& job, int64_t limit, int64_t needed, std::string plan)
    : SpecError(job.position("parallel.max_memory"), "parallel.max_memory",
                fmt::format(
                    "no plan fits into memory: {} is {}, but the smallest plan needs {} per rank, {} more "
                    "({})",
                    job.parallel.max_memory > 0 ? "parallel.max_memory" : "device memory without driver and libraries",
                    format_bytes(limit), format_bytes(needed), format_bytes(needed - limit), plan),
                fmt::format("allow {}, use more ranks, or reduce dataset.batch", format_bytes(needed))),
      needed_(needed),
      plan_(std::move(plan)) {}

}  // namespace trainctl
