// Computes the traits of each rank: all facts about a rank that influence its program beyond rank numbers. Ranks with
// equal traits form one class.
#include "engine/compile/rank_traits.h"

#include <algorithm>
#include <map>

#include "engine/ops/op_def.h"
#include "engine/ops/optimizer_def.h"
#include "engine/plan/hybrid/local_shards.h"
#include "engine/plan/row_exchange.h"
#include "engine/plan/served.h"

namespace trainctl {
namespace {

/// Elements [begin, end) of a bucket.
struct Range {
  int64_t begin = 0, end = 0;

  Range part(int64_t index, int64_t parts) const {
    const int64_t n = end - begin;
    return {begin + n * index / parts, begin + n * (index + 1) / parts};
  }
  Range intersected(const Range& other) const { return {std::max(begin, other.begin), std::min(end, other.end)}; }
};

/// Collects the groups that collective layers name (hybrid_parallel), and gives equal groups equal numbers.
class LayerGroups {
 public:
  LayerGroups(const Graph& graph, const Plan& plan) : graph_(graph), plan_(plan) {}

  /// Adds each rank's part in the layers' groups. `traits` covers all ranks.
  void add_to(std::vector<RankTraits>& traits) {
    if (!plan_.hybrid()) return;
    for (const Node& node : graph_.nodes) {
      if (!get_op(node.op).collective) continue;
      for (const Ints& list : layer_groups(node, plan_.mesh)) add_list(node, list, traits);
    }
  }

 private:
  /// Adds the group of a collective layer that consists of the ranks in stage in `list`.
  void add_list(const Node& node, const Ints& list, std::vector<RankTraits>& traits) {
    const int first = plan_.stage_of(node) * plan_.mesh.size();
    const int64_t root =
        node.attrs.has("root") ? first + list.at(static_cast<size_t>(node.attrs.integer("root", 0))) : -1;
    std::vector<int> ranks;
    for (int64_t r : list) ranks.push_back(first + static_cast<int>(r));
    const GroupKind group = group_of_ranks(plan_.mesh, ranks, ranks.front());
    const int id = ids_.try_emplace(group, static_cast<int>(ids_.size())).first->second;
    for (int rank : ranks) {
      traits[static_cast<size_t>(rank)].groups.push_back(id);
      traits[static_cast<size_t>(rank)].is_root.push_back(rank == root);
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  std::map<GroupKind, int> ids_;
};

}  // namespace

bool counts_loss(const Graph& graph, const RankOfPlan& rank) {
  const Node& node = graph.nodes[graph.tensors[graph.loss].producer];
  if (rank.plan.stage_of(node) != rank.stage) return false;
  const Axes replicas = output_layout(graph, rank.plan, node, 0).replica_axes(rank.plan.mesh);
  return std::all_of(replicas.begin(), replicas.end(),
                     [&](Axis axis) { return rank.plan.mesh.coordinate(rank.rank_in_stage, axis) == 0; });
}

CountedBucket::CountedBucket(const Plan& plan, const BucketPlan& bucket) : plan_(plan), bucket_(bucket) {
  for (const BucketParameter& p : bucket.parameters) {
    Axes replicas = p.gradient_layout.replica_axes(plan.mesh);
    if (bucket.is_summed_twice()) {  // each host has all shards, so a shard must count on one host only
      const Axes across = bucket.across_axes();
      replicas.insert(replicas.end(), across.begin(), across.end());
    }
    if (stretches_.empty() || stretches_.back().replicas != replicas)
      stretches_.push_back({p.first_element, p.first_element, std::move(replicas)});
    stretches_.back().end = p.first_element + p.elements;
  }
}

/// Calls each(CountedPart) for the parts of the bucket that one rank counts in the gradient norm. `index_of(axes)`: the
/// index of the rank along these axes.
template <class IndexOf, class Each>
void CountedBucket::each_part(int stage, IndexOf index_of, Each each) const {
  const Mesh& mesh = plan_.mesh;
  const bool within = bucket_.is_summed_twice();
  const int64_t shard = (within ? 0 : bucket_.first_reduce_index(mesh, stage)) +
                        index_of(within ? bucket_.shard_axes : bucket_.sum_axes),
                shards = bucket_.num_shards(mesh);
  for (const Stretch& stretch : stretches_) {
    const int64_t replica = index_of(stretch.replicas), replicas = mesh.ways(stretch.replicas);
    // Counts this rank's share of the elements `mine`. `kept` is the range that the rank keeps of the piece. In the
    // whole bucket, an element has an index that is larger by `not_kept` than in the gradients that the rank keeps.
    const auto count = [&](const Range& mine, int piece, int64_t not_kept, const Range& kept) {
      if (mine.begin >= mine.end) return;
      const Range part = mine.part(replica, replicas);
      if (part.begin >= part.end) return;
      const int64_t at = part.begin - not_kept;
      each(CountedPart{piece, at, part.end - part.begin, at - kept.begin, kept.end - kept.begin});
    };
    const Range all{stretch.begin, stretch.end};
    if (bucket_.level == 0) count(all.part(shard, shards), 0, 0, {0, bucket_.elements});
    for (int p = 0; bucket_.level > 0 && p < bucket_.pieces; ++p) {
      const int64_t elements = bucket_.elements / bucket_.pieces, own = elements / shards;
      const int64_t first = p * elements, own_first = first + shard * own, kept_first = p * own;
      const bool cut = bucket_.level >= 2;
      count(all.intersected({own_first, own_first + own}), p, cut ? own_first - kept_first : 0,
            cut ? Range{kept_first, kept_first + own} : Range{first, first + elements});
    }
  }
}

std::vector<CountedPart> CountedBucket::parts(int stage, int rank_in_stage) const {
  std::vector<CountedPart> counted;
  each_part(
      stage, [&](const Axes& axes) { return plan_.mesh.index(rank_in_stage, axes); },
      [&](const CountedPart& part) { counted.push_back(part); });
  return counted;
}

void CountedBucket::count_parts(int stage, int rank_in_stage, MeshIndices& indices, std::vector<int>& out) const {
  const size_t first = out.size();
  out.resize(first + static_cast<size_t>(bucket_.pieces));
  each_part(
      stage, [&](const Axes& axes) { return indices.of(axes)[static_cast<size_t>(rank_in_stage)]; },
      [&](const CountedPart& part) { ++out[first + static_cast<size_t>(part.piece)]; });
}

const std::vector<int>& MeshIndices::of(const Axes& axes) {
  for (const auto& [known, indices] : known_)
    if (known == axes) return indices;
  std::vector<int> indices;
  for (int rank = 0; rank < mesh_.size(); ++rank) indices.push_back(mesh_.index(rank, axes));
  return known_.emplace_back(axes, std::move(indices)).second;
}

std::vector<RankTraits> rank_traits(const Graph& graph, const Plan& plan) {
  const bool has_loss = graph.has_loss(), clips = graph.trains() &&
                                                  (plan.numerics.optimizer.needs_norm() ||
                                                   get_optimizer(plan.numerics.optimizer.type).sums != nullptr) &&
                                                  !serves_weights(plan);
  const bool asks_buckets = clips || plan.servers > 0;
  const std::vector<BucketPlan> buckets = asks_buckets ? plan_buckets(graph, plan) : std::vector<BucketPlan>{};
  std::vector<CountedBucket> counted;
  for (const BucketPlan& bucket : buckets)
    if (clips && bucket.updated) counted.emplace_back(plan, bucket);
  MeshIndices indices(plan.mesh);
  const std::vector<int> rings = uneven_rings(graph, plan);
  std::vector<RankTraits> all(static_cast<size_t>(plan.processes()));
  for (int server = 0; server < plan.servers; ++server) all[static_cast<size_t>(plan.ranks + server)].server = server;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    const RankOfPlan of{plan, rank / plan.mesh.size(), rank % plan.mesh.size()};
    RankTraits& traits = all[static_cast<size_t>(rank)];
    traits.stage = of.stage;
    if (plan.divides_micro_batches()) traits.first_micro_batch = plan.first_micro_batch(of.rank_in_stage);
    if (!rings.empty()) traits.in_ring = rings[static_cast<size_t>(of.rank_in_stage)];
    traits.counts_loss = has_loss && counts_loss(graph, of);
    for (const CountedBucket& bucket : counted) {
      if (!bucket.bucket().in_stage(of.stage)) continue;
      bucket.count_parts(of.stage, of.rank_in_stage, indices, traits.counted);
    }
  }
  for (const BucketPlan& bucket : buckets) {
    if (!bucket.is_served()) continue;
    for (int rank = 0; rank < plan.ranks; ++rank) all[static_cast<size_t>(rank)].pushes.push_back(false);
    for (int rank : bucket.pushers(plan.mesh)) all[static_cast<size_t>(rank)].pushes.back() = true;
  }
  LayerGroups(graph, plan).add_to(all);
  return all;
}

}  // namespace trainctl
