// A job written as text, with its graph and plan, for the planner's tests.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/graph/graph.h"
#include "engine/plan/plan.h"
#include "engine/plan/traffic/redistribution.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

struct Planned {
  JobSpec spec;
  Graph graph;
  Plan plan;

  const LayerPlan& layer(std::string_view name) const;
  /// "[[4, 1], [1, 1]]": cuts per dim of each input.
  std::string cuts(std::string_view layer) const;
  /// The layouts of the layer's first input and first output.
  Layout in(std::string_view layer) const;
  Layout out(std::string_view layer) const;
  const VariablePlan& variable(std::string_view tensor) const;
  /// "all_gather bn1" for every redistribution that the nodes of this phase need, except of parameters, in node
  /// order; a tensor is brought into the same layout only once.
  std::vector<std::string> moves(Phase phase) const;
};

/// Builds the graph of the job. `data` and `label` have the shapes of one sample.
Graph graph_of(const JobSpec& spec);
Planned planned(const std::string& yaml, const std::vector<std::string>& overrides = {});

/// "line:column: path: message | hint", one per diagnostic, for a job that cannot be planned.
std::vector<std::string> plan_errors(const std::string& yaml, const std::vector<std::string>& overrides = {});

/// A random or constant data set with this batch and shape per sample, as the head of a job.
std::string dataset(int64_t batch, const std::string& shape, const std::string& label_shape = "[1]");

/// Checks that hold for any plan of any job: axes are used once per layer, cuts divide, stages do not run
/// backwards, variables have the layout of the layer that reads them first.
std::string broken_rule(const Planned& planned);

}  // namespace trainctl
