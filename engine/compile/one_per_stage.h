// Programs for comparing plans: one rank per stage is compiled, and nothing is run.
#pragma once

#include "engine/compile/rank_classes.h"

namespace trainctl {

/// One rank of each stage represents all ranks that count the loss, and one represents those that do not: their
/// programs differ only in a few numbers of the norm, or in how much they see of the keys that a ring passes around: it
/// is the rank that sees the most. The programs are not verified.
RankClasses compile_one_per_stage(const Graph& graph, const Plan& plan, const CostModel& cost);

}  // namespace trainctl
