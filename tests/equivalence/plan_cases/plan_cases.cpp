// The table of plans: the rows of all families. Every mode and every product of modes has a row, and so has each of the
// numbers of ranks 1, 2, 3, 4, 6, 7, 8 and 12. Add a row to its family's file.
#include "tests/equivalence/plan_cases.h"

#include "tests/equivalence/plan_cases/families.h"

namespace trainctl {

const std::vector<PlanCase>& plan_cases() {
  static const std::vector<PlanCase> cases = [] {
    std::vector<PlanCase> all;
    for (const auto& family : {data_parallel_cases, several_outputs_cases, strategy_cases, layer_cases, schedule_cases,
                               language_cases, attention_cases, expert_cases, network_cases, masked_attention_cases,
                               adapter_cases, hybrid_cases, uneven_rank_cases, small_bucket_cases}) {
      const std::vector<PlanCase> rows = family();
      all.insert(all.end(), rows.begin(), rows.end());
    }
    return all;
  }();
  return cases;
}

}  // namespace trainctl
