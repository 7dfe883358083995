// Checks the claims of the search on random jobs:
//
//   bench_search bound PLANS SEED    is the bound below the simulated step of every plan?
//   bench_search regret GRAPHS SEED [EFFORT]    how far is the plan found from the best of all? Every second graph
//                                               has too little memory for some plans.
//
// Exits with 1 where a claim does not hold: a bound above a step, a plan over its limit, a plan that is missed or more
// than 3 % slower than the best.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "engine/base/error.h"
#include "tests/search/drawn_jobs.h"

using namespace trainctl;

namespace {

int bounds(int plans, std::mt19937& random) {
  int confirmed = 0, refused = 0, failed = 0;
  double closest = 0;
  while (confirmed + failed < plans) {
    const DrawnPlan drawn = drawn_plan(random, pick(random, 0, 9) == 0);
    PlannedJob job;
    try {
      job = planned(drawn.text, drawn.settings);
    } catch (const SpecError&) {
      ++refused;
      continue;
    }
    const double bound = bound_of(job), seconds = simulated_seconds(job);
    closest = std::max(closest, bound / seconds);
    (bound > 0 && bound <= seconds) ? ++confirmed : ++failed;
    if (bound <= 0 || bound > seconds) {
      fmt::print("bound {} s is above the step, {} s, of\n{}", bound, seconds, drawn.text);
      for (const std::string& setting : drawn.settings) fmt::print("  {}\n", setting);
    }
  }
  fmt::print("bound: {} of {} plans hold, the closest at {:.0f} % of its step; {} draws were no legal plan\n",
             confirmed, plans, 100 * closest, refused);
  return failed == 0 ? 0 : 1;
}

int regrets(int graphs, std::mt19937& random, const std::string& effort) {
  constexpr double kMost = 0.03;
  int compared = 0, too_many = 0, none_fits = 0, over = 0, missed = 0, slower = 0, uncertified = 0;
  double sum = 0, worst = 0;
  int64_t plans = 0;
  while (compared < graphs) {
    const Regret drawn = drawn_regret(random, compared % 2 == 1, effort);
    if (drawn.plans == 0) {
      ++too_many;
      continue;
    }
    ++compared;
    plans += static_cast<int64_t>(drawn.plans);
    const char* fault = "";
    if (drawn.found == 0) {
      drawn.best < 1e300 ? ++missed : ++none_fits;
      if (drawn.best < 1e300) fault = "missed: it says that none fits";
    } else {
      sum += std::max(drawn.regret(), 0.0);
      worst = std::max(worst, drawn.regret());
      if (drawn.limit > 0 && drawn.memory > drawn.limit) ++over, fault = "over its limit";
      if (drawn.regret() > kMost) ++slower, fault = "slower";
      if (drawn.bound > drawn.best) ++uncertified, fault = "its bound is above the best";
    }
    if (*fault == 0) continue;
    fmt::print("{}: {:.3g} s, {} bytes; best {:.3g} s, limit {}\n{}", fault, drawn.found, drawn.memory, drawn.best,
               drawn.limit, drawn.text);
    for (const std::string& setting : drawn.settings) fmt::print("  {}\n", setting);
  }
  fmt::print(
      "regret: {} graphs, {} plans tried for them; mean {:.2f} %, largest {:.1f} %; {} over 3 %, {} over their limit, "
      "{} missed, "
      "{} bounds too high; none fits in {}; {} draws had too many plans to try all\n",
      compared, plans, 100 * sum / compared, 100 * worst, slower, over, missed, uncertified, none_fits, too_many);
  return slower + over + missed + uncertified == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 4 || argc == 5 ? argv[1] : "";
  if (what != "bound" && what != "regret") {
    fmt::print(stderr, "bench_search bound|regret COUNT SEED [EFFORT]\n");
    return 2;
  }
  std::mt19937 random(static_cast<unsigned>(std::strtoul(argv[3], nullptr, 10)));
  const int count = std::atoi(argv[2]);
  return what == "bound" ? bounds(count, random) : regrets(count, random, argc == 5 ? argv[4] : "normal");
}
