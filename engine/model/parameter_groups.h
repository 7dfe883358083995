// Determines which parameters are trained, and which of optimizer.groups sets each parameter's optimizer.
#pragma once

#include <vector>

#include "engine/base/error.h"
#include "engine/graph/graph.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// Sets Update::group of all updates. A parameter belongs to the first group that has a pattern for it. Returns an
/// error for each pattern that decides nothing: it matches no parameter, or only those of earlier groups.
std::vector<Diagnostic> set_parameter_groups(const JobSpec& spec, Graph& graph);

/// Marks the parameters that are not trained (is_frozen), before the backward pass is built. Returns an error for each
/// pattern of train.freeze that matches no parameter, and one if no parameter is left to train.
std::vector<Diagnostic> freeze_parameters(const JobSpec& spec, Graph& graph);

}  // namespace trainctl
