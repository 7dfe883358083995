// Tries plans near the memory limit with all blocks, because estimates from few blocks miss some of them.
#include "engine/search/trials/near_limit.h"

#include <optional>
#include <utility>

namespace trainctl {
namespace {

/// Largest relative errors of sums over jobs of few blocks.
struct SumErrors {
  double memory = 0, seconds = 0;
};
/// Plans that recompute whole blocks need up to 4 % more or less. Offloaded activations that are not yet on the host
/// when the next block needs its memory make time and memory grow faster or more slowly than the number of blocks.
constexpr SumErrors kErrors = {0.05, 0}, kErrorsOfOffloading = {0.2, 0.05};
/// Number of plans that are tried with all blocks.
constexpr int kMostRetried = 6;

/// The fastest plan that may fit or not, and that may be the fastest that fits.
std::optional<size_t> fastest_in_doubt(const PlanTrials& t, const SumErrors& errors) {
  const std::optional<size_t> best = t.tried.fastest();
  const double best_seconds = t.best_seconds(), limit = static_cast<double>(t.memory);
  std::optional<size_t> fastest;
  for (size_t i = 0; i < t.tried.size(); ++i) {
    const Trial& trial = t.tried[i].trial;
    if (trial.of_all_blocks || !trial.fault.empty()) continue;
    const double memory = static_cast<double>(trial.memory);
    const bool in_doubt = memory * (1 - errors.memory) <= limit && memory * (1 + errors.memory) >= limit;
    const bool may_be_best = (best && i == *best) || trial.seconds * (1 - errors.seconds) < best_seconds;
    if (!in_doubt || !may_be_best) continue;
    if (!fastest || trial.seconds < t.tried[*fastest].trial.seconds) fastest = i;
  }
  return fastest;
}

}  // namespace

void try_near_limit(PlanTrials& t) {
  if (t.memory <= 0) return;
  const SumErrors& errors = t.job.parallel.offload.activations.empty() ? kErrors : kErrorsOfOffloading;
  for (int tried = 0; tried < kMostRetried; ++tried) {
    const std::optional<size_t> plan = fastest_in_doubt(t, errors);
    if (!plan) return;
    const PlanChoice& choice = t.tried[*plan].choice;
    Trial trial = t.small.sum_of(choice, t.small.sizes_of_all_blocks(choice), t.try_plan);
    t.tried.replace(*plan, std::move(trial));
  }
}

}  // namespace trainctl
