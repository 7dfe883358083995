// parallel.data, tensor and context as cuts of layers:
//
//   data      cuts the batch
//   context   cuts the rows of the sequences. With the method ulysses attention cuts heads instead
//   tensor    cuts heads and hidden features (dims that one product computes and another sums over), and the classes of
//             a vocabulary
//
// A product is never cut along both of its dims, and dims that a norm reads, or that the residual stream has, are not
// cut.
#pragma once

#include <optional>
#include <vector>

#include "engine/base/error.h"
#include "engine/graph/graph.h"
#include "engine/plan/axes/sharding_facts.h"
#include "engine/plan/axes/strategies.h"
#include "engine/plan/mesh.h"
#include "engine/plan/plan.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// The axes of a stage's mesh for each size. Ranks that share heads are neighbors, then ranks that share rows.
struct SizeAxes {
  Axes data, context, tensor;
};
SizeAxes size_axes(const Mesh& mesh, const ParallelSpec& parallel);

/// Fills in the strategies of layers that have none. `method` is not automatic.
void add_size_strategies(const Graph& graph, const std::vector<LayerFacts>& facts, const JobSpec& spec,
                         const Mesh& mesh, ContextMethod method, std::vector<std::optional<LayerStrategy>>& strategies,
                         std::vector<Diagnostic>& errors);

/// "data 2 x tensor 1 x context 4 at job.yaml:31"
std::string sizes_reason(const JobSpec& spec, const Mesh& mesh);

}  // namespace trainctl
