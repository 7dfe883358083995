// Floating-point operations of matrix products, 2 m k n each, which is how the work of a model is usually stated. Other
// kernels are left out: they are limited by memory, and small in comparison.
#pragma once

#include <vector>

#include "engine/compile/program.h"
#include "engine/plan/plan.h"

namespace trainctl {

/// Operations of one step over all ranks, forward and backward. Each product of the graph counts once: neither
/// recomputation nor work that several ranks repeat is included.
double model_flops(const Graph& graph, const Plan& plan);

/// The same by layer.
std::vector<double> layer_flops(const Graph& graph, const Plan& plan);

/// Operations of attention in one step over all ranks, which the above leave out: its products with the scores that
/// its mask leaves, and twice as many in the backward pass.
double attention_flops(const Graph& graph, const Plan& plan);

/// Operations that one rank really computes in a step.
double program_flops(const Program& program);

}  // namespace trainctl
