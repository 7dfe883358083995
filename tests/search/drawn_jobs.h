// Jobs and plans that are drawn at random, for tests of the search and for tests/bench/search_bench.cpp.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "engine/planning/planned_job.h"

namespace trainctl {

int pick(std::mt19937& random, int from, int to);
template <class T>
const T& one_of(std::mt19937& random, const std::vector<T>& all) {
  return all[random() % all.size()];
}

/// 2 to 6 layers (dense layers of sizes that do and do not divide, activations, norms, residuals), at least one of them
/// dense.
std::string drawn_network(std::mt19937& random);

/// A GPT of `layers` blocks.
std::string gpt(int layers, int units);

struct DrawnPlan {
  std::string text;
  std::vector<std::string> settings;
};
/// A plan of any stages, schedule, micro-batches, level, recompute and cuts on any machine; about half of them are
/// refused.
DrawnPlan drawn_plan(std::mt19937& random, bool large);

/// Plans the job, after a search if the mode is auto_parallel.
PlannedJob planned(const std::string& text, const std::vector<std::string>& settings);

/// The simulated seconds of a step on the job's machine.
double simulated_seconds(const PlannedJob& job);
/// Memory of the rank that needs most.
int64_t most_memory(const PlannedJob& job);
/// The bound that a search would prove for the job's stages, micro-batches and schedule.
double bound_of(const PlannedJob& job);

/// One small graph: compares the search's plan with the best of all plans.
struct Regret {
  std::string text;
  std::vector<std::string> settings;
  size_t plans = 0;    ///< tried by the exhaustive search; 0: too many, and nothing else is known
  int64_t limit = 0;   ///< memory limit; 0: none
  double best = 0;     ///< seconds per step of the fastest plan that fits
  double found = 0;    ///< seconds per step of the plan that the search chose; 0: it found no plan that fits
  int64_t memory = 0;  ///< memory of that plan
  double bound = 0;    ///< the bound that came with that plan
  double regret() const { return found / best - 1; }
};
Regret drawn_regret(std::mt19937& random, bool short_of_memory, const std::string& effort = "normal");

}  // namespace trainctl
