// Writes the errors of a search that found no legal plan, or none that fits into memory.
#include "engine/search/no_plan_fits.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "engine/base/text.h"

namespace trainctl {
namespace {

/// At least these bytes, whereas format_bytes may round down: "8.1 GiB", "613 MiB".
std::string at_least(int64_t bytes) {
  constexpr double kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;
  const auto all = static_cast<double>(bytes);
  if (all >= kGiB) return fmt::format("{:.1f} GiB", std::ceil(10 * all / kGiB) / 10);
  if (all >= kMiB) return fmt::format("{:.0f} MiB", std::ceil(all / kMiB));
  return fmt::format("{:.0f} KiB", std::ceil(all / kKiB));
}

}  // namespace

NoPlanFits::NoPlanFits(const JobSpec& job, int64_t limit, int64_t needed, std::string plan,
                       std::vector<TriedPlan> tried)
    : SpecError(job.position("parallel.max_memory"), "parallel.max_memory",
                fmt::format(
                    "no plan fits into memory: {} is {}, but the smallest plan needs {} per rank, {} more "
                    "({})",
                    job.parallel.max_memory > 0 ? "parallel.max_memory" : "device memory without driver and libraries",
                    format_bytes(limit), format_bytes(needed), format_bytes(needed - limit), plan),
                fmt::format("allow {}, use more ranks, or reduce dataset.batch", at_least(needed))),
      needed_(needed),
      plan_(std::move(plan)),
      tried_(std::move(tried)) {}

}  // namespace trainctl
