// hybrid_parallel: which shard of a tensor each rank has, and which ranks have equal values. The job distributes data
// itself, so both are traced from the data and the parameters through every layer to the last output.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/plan.h"

namespace trainctl {

/// Block `index` of `ways` equal ones.
struct Block {
  int64_t index = 0, ways = 1;
  friend bool operator==(const Block&, const Block&) = default;
};

/// The shard of a tensor that one rank has.
struct LocalShard {
  /// False: rules and collectives do not show that it is a shard of one tensor. Then the other fields are meaningless.
  bool traced = true;
  std::vector<Block> dims;  ///< by dim
  Block term;               ///< ways > 1: the values are term `index` of a sum of `ways` terms
  friend bool operator==(const LocalShard&, const LocalShard&) = default;
};

/// The local shards of one tensor.
struct LocalShards {
  std::vector<LocalShard> of_rank;  ///< by rank in stage
  std::vector<int> values;          ///< by rank in stage; equal numbers: equal values
};

/// Returns the local shards of each tensor; empty for tensors of the backward pass. With `full_batch`, every rank reads
/// all rows of a micro-batch.
std::vector<LocalShards> local_shards(const Graph& graph, const Plan& plan, bool full_batch);

/// Notes for the user: collectives whose groups join ranks that hold equal values, so that sums count them more than
/// once, and gathers repeat them.
std::vector<std::string> equal_shard_notes(const Graph& graph, const Plan& plan,
                                           const std::vector<LocalShards>& shards);

/// The groups of a layer's collective: lists of ranks in stage; all ranks if its attribute is not given.
std::vector<Ints> layer_groups(const Node& node, const Mesh& mesh);

}  // namespace trainctl
