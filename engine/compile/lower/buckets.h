// Groups parameters that are reduced, gathered and updated together over some ranks. Buckets belong to the plan, so
// they are the same on every rank.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/plan.h"

namespace trainctl {

struct BucketParameter {
  TensorId tensor = -1;
  Layout gradient_layout;           ///< the parameter's layout, still partial over BucketPlan::sum_axes
  std::vector<TensorId> gradients;  ///< one micro-batch's contributions, over all stages
  int64_t first_element = 0;
  int64_t elements = 0;  ///< in one rank's part
};

struct BucketPlan {
  std::string name;         ///< "bucket0"
  std::vector<int> stages;  ///< stages that hold it; the gradients are summed over them too
  Axes sum_axes;            ///< axes over which each stage's gradients are partial
  Axes shard_axes;          ///< the subset that cuts shards; all of sum_axes unless optimizer_shard.within_host
  int level = 0;            ///< optimizer sharding
  int group = -1;           ///< index into optimizer.groups, which all its parameters share; -1: none
  bool updated = false;     ///< false: forward only, or the loss does not depend on it
  DType type = DType::f32;  ///< type in which gradients are summed over ranks
  DType kept = DType::f32;  ///< type in which they wait for the update: shards of several micro-batches add up in f32
  /// A rank's contributions add up in f32 and are rounded to `type` before the sum over ranks.
  bool accumulates_separately = false;
  int64_t elements = 0;  ///< padded if sharded
  /// parameter_server: the servers that hold it, each an equal part, in order; empty: the workers do.
  std::vector<int> servers;
  bool is_table = false;  ///< Bucket::table
  int pieces = 1;         ///< Bucket::pieces
  /// Each parameter is in one shard (OptimizerDef::needs_whole_parameters): shards have equal sizes, and padding.
  bool keeps_parameters_whole = false;
  StateType state_type = StateType::fp32;  ///< type of the optimizer's states (packed_states.h)
  bool uses_companion = false;             ///< OptimizerDef::companion updates its parameters
  std::vector<BucketParameter> parameters;

  bool in_stage(int stage) const;
  /// Each rank that holds it has all elements of its parameters, summed.
  bool is_whole_on_ranks() const;
  /// Elements that belong to no parameter: [begin, end), ascending.
  std::vector<std::pair<int64_t, int64_t>> padding() const;
  bool is_served() const { return !servers.empty(); }
  /// The index of the server's part of it; -1: it has none.
  int part_of_server(int server) const;
  /// The workers whose gradients add up to the whole: one of those that compute the same.
  std::vector<int> pushers(const Mesh& mesh) const { return mesh.group(0, sum_axes); }
  /// optimizer_shard.within_host: gradients are summed and cut over the ranks of each host, and then each shard is
  /// summed over hosts.
  bool is_summed_twice() const { return level > 0 && shard_axes != sum_axes; }
  /// If is_summed_twice(): global ranks that hold this rank's shard and sum it in turn, and those that shards are of;
  /// both include itself.
  std::vector<int> across_ranks(const Mesh& mesh, int stage, int rank_in_stage) const;
  std::vector<int> shard_ranks(const Mesh& mesh, int stage, int rank_in_stage) const;
  int num_shards(const Mesh& mesh) const;
  int shard_index(const Mesh& mesh, int stage, int rank_in_stage) const;
  /// Axes along which ranks have the same shard of the sums.
  Axes across_axes() const { return without(sum_axes, shard_axes); }
  /// Global ranks that sum their gradients with this one, including itself.
  std::vector<int> reduce_ranks(const Mesh& mesh, int rank_in_stage) const;
  /// The number of those ranks, and this rank's index among them.
  int num_reduce_ranks(const Mesh& mesh) const;
  int reduce_index(const Mesh& mesh, int stage, int rank_in_stage) const;
  /// The least index of a rank of this stage.
  int first_reduce_index(const Mesh& mesh, int stage) const;
};

/// Plan::bucket_bytes is the largest bucket at levels 0 to 2. A larger parameter gets a bucket of its own, which also
/// takes the open bucket's parameters if those are small.
inline constexpr int64_t kSliverBytes = 1 << 20;

/// parameter_server: a layer's parameters are a bucket. It is cut over all servers if no part gets smaller than this;
/// the others go whole, the largest first, to the server that has least.
inline constexpr int64_t kLeastServedBytes = 4 << 10;

/// Parameters in reverse graph order, because the last ones' gradients are ready first.
///
/// A parameter is optimizer-sharded if its part on a rank has at least the plan's minimum size and several ranks
/// sum its gradient. A parameter shared by several stages is sharded at level 1 at most: reducing it in every
/// micro-batch would tie the stages' schedules together. Within a host it is left whole: stages may be on several.
std::vector<BucketPlan> plan_buckets(const Graph& graph, const Plan& plan);

}  // namespace trainctl
