// Programs for comparing plans: one rank per stage is compiled, and nothing is run.
#pragma once

#include "engine/compile/rank_classes.h"

namespace trainctl {

/// Compiles up to two ranks of each stage: one represents all ranks that count the loss, the other all ranks that do
/// not. The programs of the represented ranks differ only in a few numbers of the gradient norm, and in how many keys
/// they see in a ring; the rank that sees the most keys is compiled. The programs are not verified.
RankClasses compile_one_per_stage(const Graph& graph, const Plan& plan, const CostModel& cost);

}  // namespace trainctl
