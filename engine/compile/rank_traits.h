// The traits of a rank: all facts about a rank that influence its program, apart from rank numbers. Ranks with equal
// traits form one class (rank_classes.h).
#pragma once

#include <compare>
#include <deque>
#include <utility>
#include <vector>

#include "engine/compile/lower/buckets.h"
#include "engine/compile/rank_groups.h"

namespace trainctl {

struct RankOfPlan {
  const Plan& plan;
  int stage = 0;
  int rank_in_stage = 0;
};

/// True if the rank counts its loss: exactly one of the ranks that compute the same loss does.
bool counts_loss(const Graph& graph, const RankOfPlan& rank);

/// A range of a bucket's gradients that a rank adds to the gradient norm. It lies within one piece (Bucket::pieces).
struct CountedPart {
  int piece = 0;                 ///< index of that piece among the equal, consecutive pieces of the bucket
  int64_t at = 0, elements = 0;  ///< index of its first element in all that the rank keeps of the bucket; its size
  int64_t first = 0, whole = 0;  ///< that index within what the rank keeps of `piece`, and the size of that (own_part)
};

/// Caches mesh.index of all ranks for each list of axes.
class MeshIndices {
 public:
  explicit MeshIndices(const Mesh& mesh) : mesh_(mesh) {}
  /// The result has one entry per rank in the stage.
  const std::vector<int>& of(const Axes& axes);

 private:
  const Mesh& mesh_;
  std::deque<std::pair<Axes, std::vector<int>>> known_;
};

/// Computes which part of a bucket each rank adds to the norm. A range of parameters cut by the same axes is divided
/// evenly among the ranks that hold the same elements of it:
///  - those that summed it together, by shards if it is sharded;
///  - those along axes that neither cut the parameter nor summed its gradient.
class CountedBucket {
 public:
  CountedBucket(const Plan& plan, const BucketPlan& bucket);

  const BucketPlan& bucket() const { return bucket_; }
  std::vector<CountedPart> parts(int stage, int rank_in_stage) const;
  /// Appends for each piece of the bucket the number of its parts.
  void count_parts(int stage, int rank_in_stage, MeshIndices& indices, std::vector<int>& out) const;

 private:
  struct Stretch {
    int64_t begin = 0, end = 0;  ///< elements
    Axes replicas;               ///< axes along which ranks have the same elements
  };
  template <class IndexOf, class Each>
  void each_part(int stage, IndexOf index_of, Each each) const;

  const Plan& plan_;
  const BucketPlan& bucket_;
  std::vector<Stretch> stretches_;
};

/// Ranks with equal traits have the same program except for numbers: peers, members of groups, offsets of their
/// parts of tensors and buckets.
struct RankTraits {
  int server = -1;  ///< index of the server, so that each server is its own class; -1: a worker
  int stage = 0;
  bool counts_loss = false;
  std::vector<int>
      counted;  ///< with a norm of gradients: the number of counted parts of each piece of the stage's buckets
  std::vector<bool> pushes;   ///< parameter_server: for each bucket that servers hold, whether the rank pushes it
  std::vector<int> groups;    ///< hybrid_parallel: for each collective layer, the index among the job's distinct groups
  std::vector<bool> is_root;  ///< hybrid_parallel: for each collective layer, whether the rank is the root
  int first_micro_batch = -1;  ///< if ranks have different micro-batches: the index of its first one
  int in_ring = -1;            ///< equal for ranks that see the same keys in unbalanced rings (uneven_rings); -1: none

  friend auto operator<=>(const RankTraits&, const RankTraits&) = default;
};

/// The traits of all ranks.
std::vector<RankTraits> rank_traits(const Graph& graph, const Plan& plan);

}  // namespace trainctl
