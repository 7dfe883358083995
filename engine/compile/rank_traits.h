// What a program depends on of its rank: all that the passes ask of a rank is here, or is a number.
#pragma once

#include <compare>
#include <vector>

#include "engine/compile/buckets.h"
#include "engine/compile/rank_groups.h"

namespace trainctl {

struct RankOfPlan {
  const Plan& plan;
  int stage = 0;
  int rank_in_stage = 0;
};

/// Whether the rank counts its loss: of ranks that make the same loss one does.
bool counts_loss(const Graph& graph, const RankOfPlan& rank);

/// A part of a bucket's gradients that a rank adds to the gradient norm.
struct CountedPart {
  int piece = 0;
  int64_t at = 0, elements = 0;  ///< in the gradients that the rank keeps
  int64_t first = 0, whole = 0;  ///< the same in the piece as the rank keeps it, and that one's elements
};

/// What of a bucket each rank adds. A stretch of parameters is cut by the same axes; ranks that hold the same elements
/// of it share the work evenly:
///  - those that summed it together, by shards where it is sharded;
///  - those along axes that neither cut the parameter nor summed its gradient.
class CountedBucket {
 public:
  CountedBucket(const Plan& plan, const BucketPlan& bucket);

  const BucketPlan& bucket() const { return bucket_; }
  std::vector<CountedPart> parts(int stage, int rank_in_stage) const;

 private:
  struct Stretch {
    int64_t begin = 0, end = 0;  ///< elements
    Axes replicas;
  };

  const Plan& plan_;
  const BucketPlan& bucket_;
  std::vector<Stretch> stretches_;
};

/// Ranks with equal traits have the same program but for numbers: peers, members of groups, offsets of their parts of
/// tensors and buckets.
struct RankTraits {
  int stage = 0;
  bool counts_loss = false;
  std::vector<int> counted;   ///< with clip_norm: counted parts of each piece of the stage's buckets
  std::vector<int> groups;    ///< hybrid_parallel: for each collective layer which of the job's distinct groups
  std::vector<bool> is_root;  ///< and whether the rank is its root

  friend auto operator<=>(const RankTraits&, const RankTraits&) = default;
};

/// The traits of all ranks.
std::vector<RankTraits> rank_traits(const Graph& graph, const Plan& plan, const JobSpec& spec);

}  // namespace trainctl
