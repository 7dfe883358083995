// The search of parallel.mode: auto_parallel. Estimates all combinations of choices that a job leaves open, which takes
// microseconds each, then tries the few best ones: the caller plans, compiles and simulates them. Limits count work,
// never time, so every call finds the same plan.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "engine/plan/traffic/cost_model.h"
#include "engine/search/choices/plan_choice.h"
#include "engine/search/cuts/cut_search.h"

namespace trainctl {

/// A plan as a trial has planned, compiled and simulated it; the caller of a search defines it
/// (engine/planning/plan_job.h).
struct CompiledTrial;

/// Result of a job with everything fixed.
struct Trial {
  double seconds = 0;                                      ///< seconds of a simulated step
  int64_t memory = 0;                                      ///< bytes of the rank that needs the most
  std::vector<std::pair<std::string, double>> parts = {};  ///< parts of the step: name and seconds
  double bucket_seconds = 0;  ///< time of the step in which all ranks wait for sums of gradients or gathers of weights
  std::string fault = {};     ///< why it cannot be run; the other fields are then meaningless
  bool in_full = true;        ///< false: estimated from jobs with fewer blocks or micro-batches
  bool of_all_blocks = true;  ///< false: estimated from jobs with fewer blocks
  bool of_all_ranks = true;   ///< false: only one rank of each stage was simulated
  std::shared_ptr<const CompiledTrial> compiled = {};  ///< only for the chosen plan

  bool fits(int64_t limit) const { return fault.empty() && (limit <= 0 || memory <= limit); }
  void scale_time(double factor) {
    seconds *= factor;
    bucket_seconds *= factor;
    for (auto& part : parts) part.second *= factor;
  }
};
enum class TriedRanks : uint8_t {
  one_per_stage,  ///< one rank of each stage represents those whose programs differ only in a few numbers
  all
};
using TryPlan = std::function<Trial(JobSpec, TriedRanks)>;

struct TriedPlan {
  std::string name;  ///< "2 x 4 ranks; 2 stages, …"
  PlanChoice choice;
  double expected = 0;  ///< estimated seconds per step; 0: not estimated
  Trial trial;
};

struct FoundPlan {
  std::vector<TriedPlan> tried;  ///< best first: those that fit by their time, then those that do not by their memory
  double bound = 0;              ///< seconds: no plan of these ranks takes less, on this machine
  int64_t weighed = 0;           ///< number of choices
  int64_t memory = 0;            ///< bytes per rank that plans had to fit; 0: no limit
  bool exact = true;             ///< by the estimate, the cuts are the best ones of their search space
  std::vector<CutAlternative> next_best;  ///< alternatives to cuts of the best plan
  std::vector<std::string> notes;

  const TriedPlan& best() const { return tried.front(); }
  /// Upper bound of the distance of the best plan from the optimum.
  double gap() const { return best().trial.seconds / bound - 1; }
};

/// The plans that a search is to find.
struct PlanLimits {
  int64_t memory = 0;                                        ///< bytes per rank; 0: no limit
  double seconds = std::numeric_limits<double>::infinity();  ///< time of a known plan: slower ones are of no use
};

/// Searches by parallel.search.algorithm. The best plan has been tried in full, unless it is slower than
/// PlanLimits::seconds. Throws SpecError at parallel.max_memory if no plan fits, with the least memory that a plan
/// would need; else at the field that leaves no legal plan, or too many plans to try all.
FoundPlan find_plan(const JobSpec& job, const DataShapes& data, const CostModel& cost, const PlanLimits& limits,
                    const TryPlan& try_plan);

/// Adds the plans that a search with fewer choices has tried for the same job. The best plan stays the best.
void add_plans(FoundPlan other, FoundPlan& found);

}  // namespace trainctl
