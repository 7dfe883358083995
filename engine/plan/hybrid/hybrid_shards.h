// hybrid_parallel: which shard of each whole tensor a rank has. Since shapes are those of one rank, this is derived
// from the rows that a rank reads, the cuts of the weights, and the collectives. It determines the random numbers of an
// element.
#pragma once

#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/layout.h"

namespace trainctl {

/// A dim that is cut into `count` equal shards over the ranks of a stage.
struct DimShards {
  int count = 1;
  std::vector<int> of_rank;  ///< by rank in stage; empty: 0 on all ranks
};

struct HybridShards {
  std::vector<DimShards> kinds;             ///< all that occur; 0: whole on all ranks
  std::vector<std::vector<int>> of_tensor;  ///< by tensor and dim, an index in kinds

  /// The shape of the whole tensor, and the position of a rank's shard in it. `shape` is the shape in the graph, which
  /// in hybrid_parallel is that of one rank's shard.
  Shape global_shape(TensorId tensor, Shape shape) const;
  Shape offset(TensorId tensor, Shape shape, int rank_in_stage) const;
};

/// Parameters, states and gradients of parameters count as whole: kernels index the local shard. So does a dim without
/// regular shards, for example one gathered from ranks that have the same shard. `variables`: layouts of parameters and
/// states, by tensor (hybrid_layouts).
HybridShards hybrid_shards(const Graph& graph, const std::vector<Layout>& variables, const Mesh& mesh, bool full_batch);

}  // namespace trainctl
