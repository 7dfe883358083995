// Which parameters are reduced, gathered and updated together, and over which ranks. The same on
// every rank: a bucket is a fact of the plan.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/plan.h"

namespace trainctl {

struct BucketParameter {
  TensorId tensor = -1;
  Layout gradient_layout;           ///< the parameter's, still partial over BucketPlan::sum_axes
  std::vector<TensorId> gradients;  ///< contributions of one micro-batch, over all stages
  int64_t first_element = 0;
  int64_t elements = 0;  ///< of one rank's part
};

struct BucketPlan {
  std::string name;         ///< "bucket0"
  std::vector<int> stages;  ///< that hold it; the gradients are summed over them too
  Axes sum_axes;            ///< over which each stage's gradients are partial
  int level = 0;            ///< optimizer sharding
  bool updated = false;     ///< false: forward only, or the loss does not depend on it
  DType type = DType::f32;  ///< in which gradients are summed over ranks
  DType kept = DType::f32;  ///< in which they wait for the update: shards of several micro-batches add up in f32
  /// A rank's contributions add up in f32, and are rounded to `type` before they are summed over ranks.
  bool adds_up_apart = false;
  int64_t elements = 0;  ///< with padding where sharded
  int pieces = 1;        ///< Bucket::pieces
  std::vector<BucketParameter> parameters;

  bool in_stage(int stage) const;
  /// Global ranks that sum their gradients with this one, itself included.
  std::vector<int> reduce_ranks(const Mesh& mesh, int rank_in_stage) const;
  /// How many those are, and this rank's place among them.
  int num_reduce_ranks(const Mesh& mesh) const;
  int reduce_index(const Mesh& mesh, int stage, int rank_in_stage) const;
};

/// Largest bucket at levels 0 to 2, unless one parameter alone is larger; that takes what is open along if it is small.
inline constexpr int64_t kBucketBytes = 32 << 20;
inline constexpr int64_t kSliverBytes = 1 << 20;

/// Last parameters of the graph first, because their gradients are there first.
///
/// A parameter is optimizer-sharded where its part on a rank has at least the plan's minimum of bytes
/// and several ranks sum its gradient. One that several stages share is sharded at level 1 at most:
/// reducing it in every micro-batch would tie the stages' schedules together.
std::vector<BucketPlan> plan_buckets(const Graph& graph, const Plan& plan);

}  // namespace trainctl
