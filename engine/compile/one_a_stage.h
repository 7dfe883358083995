// Programs of plans that are compared, and not run.
#pragma once

#include "engine/compile/rank_classes.h"

namespace trainctl {

/// One rank of each stage stands for all that count the loss, and one for those that do not: which part of a norm a
/// rank adds is a matter of a few numbers. Not verified.
RankClasses compile_one_a_stage(const Graph& graph, const Plan& plan, const JobSpec& spec, const CostModel& cost);

}  // namespace trainctl
