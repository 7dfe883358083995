// See the header.
#include "engine/compile/rank_traits.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/compile/program.h"
#include "engine/ops/op_def.h"

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

/// The bucket's cuts on this rank; its buffers have no place yet.
Bucket cuts_of(const RankOfPlan& rank, const BucketPlan& plan) {
  Bucket b;
  b.elements = plan.elements;
  b.level = plan.level;
  b.pieces = plan.pieces;
  if (plan.level == 0) return b;
  b.shards = plan.num_reduce_ranks(rank.plan.mesh);
  b.shard = plan.reduce_index(rank.plan.mesh, rank.stage, rank.rank_in_stage);
  return b;
}

/// The lists of ranks in stage that an attribute names; empty: it names none.
const std::vector<Ints>* lists_of(const Node& node) {
  for (const auto& [name, value] : node.attrs) {
    const auto* lists = std::get_if<std::vector<Ints>>(&value);
    if (name == "group" && lists != nullptr && !lists->empty()) return lists;
  }
  return nullptr;
}

/// hybrid_parallel: the groups that layers name, by rank in stage.
class LayerGroups {
 public:
  LayerGroups(const Graph& graph, const Plan& plan) : graph_(graph), plan_(plan) {}

  /// Adds what the layers say of each rank. `traits` are of all ranks.
  void add_to(std::vector<RankTraits>& traits) {
    if (!plan_.hybrid()) return;
    for (const Node& node : graph_.nodes) {
      const OpDef& op = get_op(node.op);
      if (!op.collective) continue;
      const std::vector<Ints>* lists = lists_of(node);
      if (lists == nullptr) {
        add_list(node, whole_stage(), traits);
        continue;
      }
      for (const Ints& list : *lists) add_list(node, list, traits);
    }
  }

 private:
  Ints whole_stage() const {
    Ints ranks(static_cast<size_t>(plan_.mesh.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  /// The group of the ranks in `list`.
  void add_list(const Node& node, const Ints& list, std::vector<RankTraits>& traits) {
    const int first = plan_.stage_of(node) * plan_.mesh.size();
    const int64_t root = node.attrs.has("root") ? first + list.at(static_cast<size_t>(node.attrs.integer("root", 0))) : -1;
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

std::vector<CountedPart> counted_parts(const RankOfPlan& rank, const BucketPlan& plan) {
  const Mesh& mesh = rank.plan.mesh;
  const Bucket b = cuts_of(rank, plan);
  std::vector<CountedPart> counted;
  for (size_t first = 0, next; first < plan.parameters.size(); first = next) {
    const Axes replicas = plan.parameters[first].gradient_layout.replica_axes(mesh);
    for (next = first + 1; next < plan.parameters.size(); ++next) {
      if (plan.parameters[next].gradient_layout.replica_axes(mesh) != replicas) break;
    }
    const BucketParameter& last = plan.parameters[next - 1];
    const Range stretch{plan.parameters[first].first_element, last.first_element + last.elements};
    // What a rank keeps of a piece begins at element `kept`, and in the bucket's range at `not_kept` more.
    const auto count = [&](const Range& mine, int piece, int64_t not_kept, const Range& kept) {
      if (mine.begin >= mine.end) return;
      const Range part = mine.part(mesh.index(rank.rank_in_stage, replicas), mesh.ways(replicas));
      if (part.begin >= part.end) return;
      const int64_t at = part.begin - not_kept;
      counted.push_back({piece, at, part.end - part.begin, at - kept.begin, kept.end - kept.begin});
    };
    if (plan.level == 0) {
      const int64_t index = plan.reduce_index(mesh, rank.stage, rank.rank_in_stage);
      count(stretch.part(index, plan.num_reduce_ranks(mesh)), 0, 0, {0, b.elements});
    }
    for (int p = 0; plan.level > 0 && p < b.pieces; ++p) {
      const Bucket::Piece piece = b.piece(p);
      const Range own{piece.own_first, piece.own_first + piece.own_elements};
      const Range kept = plan.level >= 2 ? Range{piece.kept_first, piece.kept_first + piece.own_elements}
                                         : Range{piece.first, piece.first + piece.elements};
      count(stretch.intersected(own), p, plan.level >= 2 ? piece.own_first - piece.kept_first : 0, kept);
    }
  }
  return counted;
}

std::vector<RankTraits> rank_traits(const Graph& graph, const Plan& plan, const JobSpec& spec) {
  const bool trains = graph.loss >= 0, clips = trains && spec.optimizer.clip_norm > 0;
  const std::vector<BucketPlan> buckets = clips ? plan_buckets(graph, plan) : std::vector<BucketPlan>{};
  std::vector<RankTraits> all(static_cast<size_t>(plan.ranks));
  for (int rank = 0; rank < plan.ranks; ++rank) {
    const RankOfPlan of{plan, rank / plan.mesh.size(), rank % plan.mesh.size()};
    RankTraits& traits = all[static_cast<size_t>(rank)];
    traits.stage = of.stage;
    traits.counts_loss = trains && counts_loss(graph, of);
    for (const BucketPlan& bucket : buckets) {
      if (!bucket.updated || !bucket.in_stage(of.stage)) continue;
      std::vector<int> of_pieces(static_cast<size_t>(bucket.pieces));
      for (const CountedPart& part : counted_parts(of, bucket)) ++of_pieces[static_cast<size_t>(part.piece)];
      traits.counted.insert(traits.counted.end(), of_pieces.begin(), of_pieces.end());
    }
  }
  LayerGroups(graph, plan).add_to(all);
  return all;
}

}  // namespace trainctl
