// precision: fp8: which layers multiply factors of 8 bits.
#pragma once

#include <vector>

#include "engine/graph/graph.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// Returns for each layer whether it is narrow: `fp8.layers` names it, and it multiplies by a weight of at least
/// `fp8.min_weight` elements whose sizes are multiples of 16. The layer that the loss reads must be named, not matched
/// by a glob. Without fp8 no layer is.
std::vector<bool> narrow_layers(const Graph& graph, const JobSpec& spec);

}  // namespace trainctl
