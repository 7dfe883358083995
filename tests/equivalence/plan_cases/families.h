// The families of plan_cases(), one function each.
#pragma once

#include <vector>

#include "tests/equivalence/plan_cases.h"

namespace trainctl {

std::vector<PlanCase> data_parallel_cases();
std::vector<PlanCase> several_outputs_cases();
std::vector<PlanCase> strategy_cases();
std::vector<PlanCase> layer_cases();
std::vector<PlanCase> schedule_cases();
std::vector<PlanCase> language_cases();
std::vector<PlanCase> attention_cases();
std::vector<PlanCase> expert_cases();
std::vector<PlanCase> network_cases();
std::vector<PlanCase> masked_attention_cases();
std::vector<PlanCase> adapter_cases();
std::vector<PlanCase> hybrid_cases();
std::vector<PlanCase> uneven_rank_cases();
std::vector<PlanCase> small_bucket_cases();

}  // namespace trainctl
