// hybrid_parallel: which shard of a tensor each rank has, and which ranks have equal values.
//
// The shards are inferred (traced) node by node, from the data and the parameters on. A rank may hold a block of each
// dim of the whole tensor, or one term of a sum of which the tensor is the result (LocalShard::term). If rules and
// collectives do not show that a rank's values are such a shard, the shard is kUntraced.
#include "engine/plan/hybrid/local_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "engine/base/ranges.h"
#include "engine/base/text.h"
#include "engine/ops/op_def.h"
#include "engine/plan/axes/view_dims.h"

namespace trainctl {
namespace {

LocalShard whole_shard(size_t ndim) { return {true, std::vector<Block>(ndim), {}}; }

const LocalShard kUntraced{false, {}, {}};

/// Joins consecutive blocks to the larger block that they form; nullopt if they do not form a block.
std::optional<Block> joined(const std::vector<Block>& blocks) {
  const auto count = static_cast<int64_t>(blocks.size());
  const Block& first = blocks.front();
  if (first.ways % count != 0 || first.index % count != 0) return std::nullopt;
  for (int64_t i = 0; i < count; ++i) {
    const Block& block = blocks[static_cast<size_t>(i)];
    if (block.ways != first.ways || block.index != first.index + i) return std::nullopt;
  }
  return Block{first.index / count, first.ways / count};
}

/// Divides `block` into `ways` equal blocks and returns number `index` of them.
Block cut_further(const Block& block, int64_t index, int64_t ways) {
  return {block.index * ways + index, block.ways * ways};
}

/// Returns the shard that a rank holds of a view of a tensor.
LocalShard through_view(const LocalShard& shard, const Tensor& from, const Tensor& to) {
  LocalShard view = whole_shard(to.shape.size());
  view.term = shard.term;
  const std::vector<int> leads = dims_through_view(from, to);
  for (size_t d = 0; shard.traced && d < leads.size(); ++d) {
    if (shard.dims[d].ways == 1) continue;
    if (leads[d] < 0) return kUntraced;
    Block& block = view.dims[static_cast<size_t>(leads[d])];
    block = cut_further(block, shard.dims[d].index, shard.dims[d].ways);
  }
  return shard.traced ? view : kUntraced;
}

/// Infers the shard of its output that a rank's node makes from the shards that the rank holds.
class NodeShard {
 public:
  NodeShard(const Graph& graph, const Node& node)
      : factors_(graph.layers[node.layer].factors), node_(node), op_(get_op(node.op)), blocks_(factors_.size()) {}

  void read(const LocalShard& shard, const TensorRule& rule) {
    if (!shard.traced) traced_ = false;
    if (!traced_) return;
    if (shard.term.ways > 1) read_term(shard.term);
    for (size_t d = 0; d < rule.size(); ++d)
      if (shard.dims[d].ways > 1) read_block(shard.dims[d], major(rule[d]));
  }

  LocalShard made(const TensorRule& rule) const {
    LocalShard shard = whole_shard(rule.size());
    shard.term = term_;
    for (size_t f = 0; f < blocks_.size() && traced_; ++f)
      if (blocks_[f].ways > 1 && !place(static_cast<int>(f), rule, shard)) return kUntraced;
    return traced_ ? shard : kUntraced;
  }

 private:
  /// Reads one of several terms whose sum is the tensor. Only a product keeps it one, and only if no other input is a
  /// term.
  void read_term(const Block& term) {
    traced_ = traced_ && op_.kernel.is_product && term_.ways == 1;
    term_ = term;
  }

  /// Returns the factor that is cut if the dim is cut; -1: none. Sizes in hybrid_parallel are those of one rank, so
  /// even a dim of size 1 may be a shard of a larger dim.
  int major(const DimRule& dim) const {
    const int factor = cut_factor(dim, factors_);
    return factor >= 0 || dim.empty() ? factor : dim.front();
  }

  void read_block(const Block& block, int factor) {
    if (factor < 0) return void(traced_ = false);
    Block& known = blocks_[static_cast<size_t>(factor)];
    const std::vector<int>& inner = node_.rule.inner;  // its sums cover only the rank's block
    const bool whole =
        !factors_[static_cast<size_t>(factor)].cuttable || std::find(inner.begin(), inner.end(), factor) != inner.end();
    if (whole || (known.ways > 1 && known != block)) traced_ = false;
    known = block;
  }

  /// Enters the block of a factor into the output's shard. If the output does not have the factor, the node sums over
  /// it, and this rank has one term of the sum: the sum over its block. Returns false if the shard is not regular.
  bool place(int factor, const TensorRule& rule, LocalShard& shard) const {
    const Block& block = blocks_[static_cast<size_t>(factor)];
    for (size_t d = 0; d < rule.size(); ++d) {
      if (major(rule[d]) == factor) {
        shard.dims[d] = block;
        return true;
      }
      if (std::find(rule[d].begin(), rule[d].end(), factor) != rule[d].end()) return false;
    }
    shard.term = {shard.term.index * block.ways + block.index, shard.term.ways * block.ways};
    return true;
  }

  const std::vector<Factor>& factors_;
  const Node& node_;
  const OpDef& op_;
  std::vector<Block> blocks_;  ///< by factor
  Block term_;
  bool traced_ = true;
};

/// Infers the shards that the ranks of one group hold after a collective; `group_shards` are in the group's order.
class GroupShards {
 public:
  GroupShards(const Node& node, std::vector<LocalShard> group_shards)
      : node_(node), members_(std::move(group_shards)) {}

  std::vector<LocalShard> after() const {
    const LayerCollective kind = *get_op(node_.op).collective;
    const size_t root = kind == LayerCollective::broadcast ? dim("root") : 0;
    const bool all_traced =
        std::all_of(members_.begin(), members_.end(), [](const LocalShard& shard) { return shard.traced; });
    const LocalShard whole = kind == LayerCollective::broadcast ? members_[root]
                             : all_traced                       ? joined_by(kind)
                                                                : kUntraced;
    std::vector<LocalShard> made(members_.size(), whole);
    for (size_t i = 0; i < made.size() && whole.traced; ++i) {
      Block* block = nullptr;
      if (kind == LayerCollective::reduce_scatter) block = &made[i].dims[dim("dim")];
      if (kind == LayerCollective::all_to_all) block = &made[i].dims[dim("split_dim")];
      if (block != nullptr) *block = cut_further(*block, static_cast<int64_t>(i), ways());
    }
    return made;
  }

 private:
  /// Returns the shard that the group has together, before each member takes its block.
  LocalShard joined_by(LayerCollective kind) const {
    switch (kind) {
      case LayerCollective::all_reduce:
      case LayerCollective::reduce_scatter:
        return summed();
      case LayerCollective::all_gather:
        return gathered(dim("dim"));
      case LayerCollective::all_to_all:
        return gathered(dim("concat_dim"));
      case LayerCollective::broadcast:
      case LayerCollective::reduce:
        break;
    }
    return kUntraced;
  }

  int64_t ways() const { return static_cast<int64_t>(members_.size()); }
  size_t dim(const char* attr) const { return static_cast<size_t>(node_.attrs.integer(attr, 0)); }

  /// Returns the shard after a sum over the group. If the members had all terms of a sum, the result is complete. If
  /// they had no terms, the sum leaves the position of each shard as it was.
  LocalShard summed() const {
    LocalShard sum = members_.front();
    std::vector<bool> seen(static_cast<size_t>(sum.term.ways), false);
    for (const LocalShard& shard : members_) {
      if (shard.dims != sum.dims || shard.term.ways != sum.term.ways) return kUntraced;
      seen[static_cast<size_t>(shard.term.index)] = true;
    }
    const bool all_terms = std::find(seen.begin(), seen.end(), false) == seen.end();
    if (sum.term.ways > 1 && !(all_terms && sum.term.ways == ways())) return kUntraced;
    sum.term = {};
    return sum;
  }

  /// Returns the shard after the group has gathered dim d: the members' blocks of this dim joined.
  LocalShard gathered(size_t d) const {
    LocalShard all = members_.front();
    std::vector<Block> blocks;
    for (const LocalShard& shard : members_) {
      blocks.push_back(shard.dims[d]);
      LocalShard other = shard;
      other.dims[d] = all.dims[d];
      if (other != all) return kUntraced;
    }
    const std::optional<Block> block = joined(blocks);
    if (!block) return kUntraced;
    all.dims[d] = *block;
    return all;
  }

  const Node& node_;
  const std::vector<LocalShard> members_;
};

/// Assigns numbers to values: values with equal keys get equal numbers.
class ValueNumbers {
 public:
  int of(const std::vector<int>& key) { return ids_.try_emplace(key, static_cast<int>(ids_.size())).first->second; }

 private:
  std::map<std::vector<int>, int> ids_;
};

class Tracing {
 public:
  Tracing(const Graph& graph, const Plan& plan, bool full_batch) : graph_(graph), plan_(plan), full_batch_(full_batch) {
    shards_.resize(graph.tensors.size());
  }

  std::vector<LocalShards> all() {
    for (size_t t = 0; t < graph_.tensors.size(); ++t) start(static_cast<TensorId>(t));
    for (const VariablePlan& variable : plan_.variables) place(variable);
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes.size()); ++n) {
      const Node& node = graph_.nodes[n];
      if (node.phase != Phase::forward) continue;
      if (get_op(node.op).collective) {
        communicate(n, node);
      } else {
        compute(n, node);
      }
    }
    return std::move(shards_);
  }

 private:
  size_t ranks() const { return static_cast<size_t>(plan_.mesh.size()); }

  void start(TensorId tensor) {
    const Tensor& data = graph_.tensors[tensor];
    if (data.kind != TensorKind::input) return;
    LocalShards& shards = shards_[tensor];
    for (size_t r = 0; r < ranks(); ++r) {
      const auto rank = static_cast<int>(r);
      shards.of_rank.push_back(whole_shard(data.shape.size()));
      if (!full_batch_ && !data.shape.empty()) shards.of_rank.back().dims[0] = {rank, plan_.mesh.size()};
      shards.values.push_back(full_batch_ ? 0 : rank);
    }
  }

  /// Enters the shards of a parameter. Ranks that hold the same shard hold equal values, because its gradients are
  /// summed over these ranks.
  void place(const VariablePlan& variable) {
    LocalShards& shards = shards_[variable.tensor];
    for (size_t r = 0; r < ranks(); ++r) {
      const auto rank = static_cast<int>(r);
      LocalShard shard;
      std::vector<int> key;
      for (const Axes& axes : variable.layout.dims) {
        shard.dims.push_back({plan_.mesh.index(rank, axes), plan_.mesh.ways(axes)});
        key.push_back(plan_.mesh.index(rank, axes));
      }
      shards.of_rank.push_back(std::move(shard));
      shards.values.push_back(numbers_.of(key));
    }
  }

  /// Infers the local shards and value numbers of a node's outputs. Two ranks compute equal values if all their inputs
  /// are equal.
  void compute(NodeId id, const Node& node) {
    std::vector<std::vector<int>> keys(ranks(), std::vector<int>{static_cast<int>(id)});
    std::vector<NodeShard> node_shards(ranks(), NodeShard(graph_, node));
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const LocalShards& input = shards_[node.inputs[i]];
      for (size_t r = 0; r < ranks(); ++r) {
        keys[r].push_back(input.values[r]);
        node_shards[r].read(input.of_rank[r], node.rule.inputs[i]);
      }
    }
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      LocalShards& output = shards_[node.outputs[o]];
      for (size_t r = 0; r < ranks(); ++r) {
        output.of_rank.push_back(get_op(node.op).is_view ? shard_of_view(node, r)
                                                         : node_shards[r].made(node.rule.outputs[o]));
        output.values.push_back(numbers_.of(keys[r]));
      }
    }
  }

  LocalShard shard_of_view(const Node& node, size_t rank) const {
    const auto from = static_cast<size_t>(node.inputs[0]), to = static_cast<size_t>(node.outputs[0]);
    return through_view(shards_[from].of_rank[rank], graph_.tensors[from], graph_.tensors[to]);
  }

  /// Infers the local shards and value numbers of the output of a collective that is a layer.
  void communicate(NodeId id, const Node& node) {
    const LocalShards& input = shards_[node.inputs[0]];
    LocalShards output{std::vector<LocalShard>(ranks(), kUntraced), std::vector<int>(ranks(), 0)};
    const LayerCollective kind = *get_op(node.op).collective;
    const bool differs = kind == LayerCollective::reduce_scatter || kind == LayerCollective::all_to_all;
    for (const Ints& group : layer_groups(node, plan_.mesh)) {
      std::vector<LocalShard> group_shards;
      for (int64_t r : group) group_shards.push_back(input.of_rank[static_cast<size_t>(r)]);
      group_shards = GroupShards(node, std::move(group_shards)).after();
      const int together = numbers_.of(values_together(node, group));
      for (size_t i = 0; i < group.size(); ++i) {
        const int member = differs ? static_cast<int>(i) : 0;
        output.of_rank[static_cast<size_t>(group[i])] = group_shards[i];
        output.values[static_cast<size_t>(group[i])] = numbers_.of({static_cast<int>(id), together, member});
      }
    }
    shards_[node.outputs[0]] = std::move(output);
  }

  /// Returns the value numbers that the group's outputs depend on.
  std::vector<int> values_together(const Node& node, const Ints& group) const {
    std::vector<int> values;
    for (int64_t r : group) values.push_back(shards_[node.inputs[0]].values[static_cast<size_t>(r)]);
    const LayerCollective kind = *get_op(node.op).collective;
    if (kind == LayerCollective::broadcast) values = {values[static_cast<size_t>(node.attrs.integer("root", 0))]};
    if (kind == LayerCollective::all_reduce || kind == LayerCollective::reduce_scatter)
      std::sort(values.begin(), values.end());
    return values;
  }

  const Graph& graph_;
  const Plan& plan_;
  const bool full_batch_;
  ValueNumbers numbers_;
  std::vector<LocalShards> shards_;
};

std::string group_text(const Ints& ranks, int first) {
  constexpr size_t kRanksShown = 8;
  std::vector<int> global;
  std::vector<std::string> words;
  for (int64_t r : ranks) global.push_back(first + static_cast<int>(r));
  for (int rank : global) words.push_back(std::to_string(rank));
  return "{" + (words.size() > kRanksShown ? range_text(global) : join(words, ",")) + "}";
}

/// The ranks of the group that hold the most frequent value.
Ints largest_equal(const Ints& group, const std::vector<int>& values) {
  std::map<int, Ints> by_value;
  for (int64_t r : group) by_value[values[static_cast<size_t>(r)]].push_back(r);
  Ints largest;
  for (int64_t r : group) {
    const Ints& equal = by_value[values[static_cast<size_t>(r)]];
    if (equal.size() > largest.size()) largest = equal;
  }
  return largest;
}

/// Describes the effect of equal values on a collective.
std::string consequence(LayerCollective kind, const std::string& input, size_t equal) {
  switch (kind) {
    case LayerCollective::all_reduce:
    case LayerCollective::reduce_scatter:
      return fmt::format("the sum counts them {} times", equal);
    case LayerCollective::all_gather:
      return fmt::format("the result contains them {} times", equal);
    case LayerCollective::all_to_all:
      return fmt::format("each result contains the same block of {} {} times", input, equal);
    case LayerCollective::broadcast:
    case LayerCollective::reduce:
      break;
  }
  return "the collective has no effect there";
}

/// A note if ranks of one group contribute equal values to a collective that the user wrote, which is rarely intended.
std::optional<std::string> equal_shard_note(const Graph& graph, const Plan& plan, const Node& node,
                                            const LocalShards& input) {
  const LayerCollective kind = *get_op(node.op).collective;
  Ints first, first_equal;
  int others = 0;
  for (const Ints& group : layer_groups(node, plan.mesh)) {
    const Ints equal = largest_equal(group, input.values);
    // A broadcast is useful as long as one rank of the group does not have the values.
    if (equal.size() < (kind == LayerCollective::broadcast ? std::max<size_t>(2, group.size()) : 2)) continue;
    if (!first.empty()) {
      ++others;
      continue;
    }
    first = group;
    first_equal = equal;
  }
  if (first.empty()) return std::nullopt;
  const int stage_first = plan.stage_of(node) * plan.mesh.size();
  const std::string& name = graph.tensors[node.inputs[0]].name;
  const std::string who = first.size() == first_equal.size()
                              ? fmt::format("the ranks of its group {}", group_text(first, stage_first))
                              : fmt::format("ranks {} of its group {}", group_text(first_equal, stage_first),
                                            group_text(first, stage_first));
  const std::string more =
      others == 0 ? "" : fmt::format(" (likewise in {} other group{})", others, others == 1 ? "" : "s");
  return fmt::format("{}: {} have equal values of {}; {}{}", graph.layers[node.layer].name, who, name,
                     consequence(kind, name, first_equal.size()), more);
}

}  // namespace

std::vector<Ints> layer_groups(const Node& node, const Mesh& mesh) {
  std::vector<Ints> groups = node.attrs.int_lists("group");
  if (!groups.empty()) return groups;
  groups.emplace_back(static_cast<size_t>(mesh.size()));
  std::iota(groups[0].begin(), groups[0].end(), 0);
  return groups;
}

std::vector<LocalShards> local_shards(const Graph& graph, const Plan& plan, bool full_batch) {
  return Tracing(graph, plan, full_batch).all();
}

std::vector<std::string> equal_shard_notes(const Graph& graph, const Plan& plan,
                                           const std::vector<LocalShards>& shards) {
  std::vector<std::string> notes;
  for (const Node& node : graph.nodes) {
    if (node.phase != Phase::forward || !get_op(node.op).collective) continue;
    if (auto note = equal_shard_note(graph, plan, node, shards[node.inputs[0]])) notes.push_back(std::move(*note));
  }
  return notes;
}

}  // namespace trainctl
