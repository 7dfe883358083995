// Operations of matrix products, 2 m k n each: what is usually given as the work of a model. Other kernels are left
// out: they are bound by memory, and small in comparison.
#pragma once

#include "engine/compile/program.h"
#include "engine/plan/plan.h"

namespace trainctl {

/// Of one step over all ranks, forward and backward, each product of the graph once: neither recomputation nor what
/// several ranks compute alike.
double model_flops(const Graph& graph, const Plan& plan);

/// What one rank really computes in a step.
double program_flops(const Program& program);

}  // namespace trainctl
