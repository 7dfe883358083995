// Derives how the tensors of a hybrid_parallel job are cut, node by node from the data on: a factor is cut as in the
// first input that cuts it. Backward nodes have the factors of their layer, which the forward pass has determined.
#include "engine/plan/hybrid/hybrid_shards.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "engine/ops/op_def.h"
#include "engine/plan/axes/view_dims.h"

namespace trainctl {
namespace {

class Tracer {
 public:
  Tracer(const Graph& graph, const std::vector<Layout>& variables, const Mesh& mesh)
      : graph_(graph), variables_(variables), mesh_(mesh) {
    add({});
    for (const Tensor& tensor : graph.tensors) shards_.of_tensor.emplace_back(tensor.shape.size(), 0);
    for (const Layer& layer : graph.layers) of_factor_.emplace_back(layer.factors.size(), 0);
  }

  HybridShards run(bool full_batch) {
    const int rows = full_batch ? 0 : add(one_shard_each());
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      if (graph_.tensors[t].kind == TensorKind::input) shards_.of_tensor[t][0] = rows;
    }
    for (const Node& node : graph_.nodes) node.phase == Phase::forward ? forward(node) : backward(node);
    for (const Update& update : graph_.updates)
      for (TensorId gradient : update.gradients) set_whole(gradient);
    return std::move(shards_);
  }

 private:
  DimShards one_shard_each() const {
    DimShards shards{mesh_.size(), std::vector<int>(static_cast<size_t>(mesh_.size()))};
    std::iota(shards.of_rank.begin(), shards.of_rank.end(), 0);
    return shards;
  }

  int add(DimShards shards) {
    if (std::all_of(shards.of_rank.begin(), shards.of_rank.end(), [](int shard) { return shard == 0; }))
      shards.of_rank = {};
    if (shards.count == 1) shards.of_rank = {};
    const auto [entry, is_new] =
        ids_.try_emplace({shards.count, shards.of_rank}, static_cast<int>(shards_.kinds.size()));
    if (is_new) shards_.kinds.push_back(std::move(shards));
    return entry->second;
  }

  void set_whole(TensorId tensor) {
    std::vector<int>& dims = shards_.of_tensor[static_cast<size_t>(tensor)];
    std::fill(dims.begin(), dims.end(), 0);
  }

  std::vector<int>& factors_of(const Node& node) { return of_factor_[static_cast<size_t>(node.layer)]; }

  /// Returns the factor that is cut if the dim is cut; -1: none. Sizes are those of one rank, so even a dim of size 1
  /// may be a shard of a larger dim.
  int factor_of(const Node& node, const DimRule& dim) const {
    const int factor = cut_factor(dim, graph_.layers[static_cast<size_t>(node.layer)].factors);
    return factor >= 0 || dim.empty() ? factor : dim.front();
  }

  int shards_of(TensorId tensor, size_t dim) {
    const TensorKind kind = graph_.tensors[tensor].kind;
    if (kind != TensorKind::parameter && kind != TensorKind::state)
      return shards_.of_tensor[static_cast<size_t>(tensor)][dim];
    const Axes& axes = variables_[static_cast<size_t>(tensor)].dims[dim];
    if (axes.empty()) return 0;
    DimShards shards = one_shard_each();
    shards.count = mesh_.ways(axes);
    for (int& rank : shards.of_rank) rank = mesh_.index(rank, axes);
    return add(std::move(shards));
  }

  void forward(const Node& node) {
    std::vector<int>& factors = factors_of(node);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      for (size_t d = 0; d < node.rule.inputs[i].size(); ++d) {
        const int factor = factor_of(node, node.rule.inputs[i][d]);
        if (factor >= 0 && factors[static_cast<size_t>(factor)] == 0)
          factors[static_cast<size_t>(factor)] = shards_of(node.inputs[i], d);
      }
    }
    if (get_op(node.op).is_view) return view(node);
    if (get_op(node.op).collective) collect(node);
    set_outputs(node);
  }

  /// Rules do not show where a dim of size 1 is in a view, because it is usually not cut in the whole tensor. Here it
  /// may be one row of many.
  void view(const Node& node) {
    const TensorId from = node.inputs[0], to = node.outputs[0];
    const std::vector<int> leads = dims_through_view(tensor(from), tensor(to));
    std::vector<int> dims(shape(to).size(), 0);
    for (size_t d = 0; d < leads.size(); ++d) {
      if (leads[d] < 0) continue;
      int& outer = dims[static_cast<size_t>(leads[d])];
      outer = within(outer, shards_of(from, d));
    }
    shards_.of_tensor[static_cast<size_t>(to)] = std::move(dims);
    viewed_.emplace(std::pair(node.layer, node.rule.inputs[0]), from);
    viewed_.emplace(std::pair(node.layer, node.rule.outputs[0]), to);
  }

  /// A gradient in a view's layer has the shards of its tensor, which has the same rule.
  void backward(const Node& node) {
    set_outputs(node);
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const auto viewed = viewed_.find({node.layer, node.rule.outputs[o]});
      if (viewed == viewed_.end() || shape(viewed->second) != shape(node.outputs[o])) continue;
      shards_.of_tensor[static_cast<size_t>(node.outputs[o])] = shards_.of_tensor[static_cast<size_t>(viewed->second)];
    }
  }

  const Tensor& tensor(TensorId id) const { return graph_.tensors[static_cast<size_t>(id)]; }
  const Shape& shape(TensorId id) const { return tensor(id).shape; }

  /// Outputs have the shards of the layer's factors.
  void set_outputs(const Node& node) {
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      std::vector<int>& dims = shards_.of_tensor[static_cast<size_t>(node.outputs[o])];
      for (size_t d = 0; d < dims.size(); ++d) {
        const int factor = factor_of(node, node.rule.outputs[o][d]);
        dims[d] = factor < 0 ? 0 : factors_of(node)[static_cast<size_t>(factor)];
      }
    }
  }

  /// Sets the factors of a collective's output, which are not those of its input.
  void collect(const Node& node) {
    const LayerCollective kind = *get_op(node.op).collective;
    const std::vector<Ints> groups = node.attrs.int_lists("group");
    const TensorRule &in = node.rule.inputs[0], &out = node.rule.outputs[0];
    for (size_t d = 0; d < in.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      const int before = shards_of(node.inputs[0], d);
      int after = before;
      if (kind == LayerCollective::broadcast) after = of_root(before, groups, node.attrs.integer("root", 0));
      if (kind == LayerCollective::all_reduce) after = if_equal(before, groups);
      if (kind == LayerCollective::all_gather)
        after = node.attrs.integer("dim", 0) == dim ? joined(before, groups) : if_equal(before, groups);
      if (kind == LayerCollective::reduce_scatter)
        after = node.attrs.integer("dim", 0) == dim ? divided(before, groups) : if_equal(before, groups);
      if (kind == LayerCollective::all_to_all) {
        const bool splits = node.attrs.integer("split_dim") == dim, joins = node.attrs.integer("concat_dim") == dim;
        after = splits && joins ? before
                : splits        ? divided(before, groups)
                : joins         ? joined(before, groups)
                                : if_equal(before, groups);
      }
      const int factor = factor_of(node, out[d]);
      if (factor >= 0) factors_of(node)[static_cast<size_t>(factor)] = after;
    }
  }

  /// Returns the index of the shard that each rank has, for dims of this kind (an index in HybridShards::kinds).
  std::vector<int> of_ranks(int kind) const {
    const DimShards& shards = shards_.kinds[static_cast<size_t>(kind)];
    return shards.of_rank.empty() ? std::vector<int>(static_cast<size_t>(mesh_.size()), 0) : shards.of_rank;
  }

  bool are_equal(const std::vector<int>& shard, const Ints& group) const {
    return std::all_of(group.begin(), group.end(), [&](int64_t rank) {
      return shard[static_cast<size_t>(rank)] == shard[static_cast<size_t>(group[0])];
    });
  }

  int if_equal(int kind, const std::vector<Ints>& groups) const {
    const std::vector<int> shard = of_ranks(kind);
    return std::all_of(groups.begin(), groups.end(), [&](const Ints& group) { return are_equal(shard, group); }) ? kind
                                                                                                                 : 0;
  }

  int of_root(int kind, const std::vector<Ints>& groups, int64_t root) {
    const std::vector<int> before = of_ranks(kind);
    std::vector<int> after = before;
    for (const Ints& group : groups)
      for (int64_t rank : group)
        after[static_cast<size_t>(rank)] = before[static_cast<size_t>(group[static_cast<size_t>(root)])];
    return add({shards_.kinds[static_cast<size_t>(kind)].count, std::move(after)});
  }

  /// Returns the kind of a dim after each group gathers its shards one after another.
  int joined(int kind, const std::vector<Ints>& groups) {
    const auto size = static_cast<int>(groups.empty() ? 1 : groups[0].size());
    const int count = shards_.kinds[static_cast<size_t>(kind)].count;
    if (count % size != 0) return 0;
    std::vector<int> shard = of_ranks(kind);
    for (const Ints& group : groups) {
      const int first = shard[static_cast<size_t>(group[0])];
      for (int j = 0; j < size; ++j)
        if (first % size != 0 || shard[static_cast<size_t>(group[static_cast<size_t>(j)])] != first + j) return 0;
    }
    for (int& p : shard) p /= size;
    return add({count / size, std::move(shard)});
  }

  /// Returns the kind of a merged dim: each shard of kind `outer` is divided further into the shards of kind `inner`.
  int within(int outer, int inner) {
    if (outer == 0 || inner == 0) return outer + inner;
    const int count = shards_.kinds[static_cast<size_t>(inner)].count;
    const std::vector<int> of_inner = of_ranks(inner);
    std::vector<int> shard = of_ranks(outer);
    for (size_t rank = 0; rank < shard.size(); ++rank) shard[rank] = shard[rank] * count + of_inner[rank];
    return add({shards_.kinds[static_cast<size_t>(outer)].count * count, std::move(shard)});
  }

  /// The kind in which each shard is divided among the ranks of its group.
  int divided(int kind, const std::vector<Ints>& groups) {
    if (if_equal(kind, groups) != kind) return 0;
    const auto size = static_cast<int>(groups.empty() ? 1 : groups[0].size());
    std::vector<int> shard = of_ranks(kind);
    for (const Ints& group : groups) {
      for (int j = 0; j < size; ++j) {
        int& p = shard[static_cast<size_t>(group[static_cast<size_t>(j)])];
        p = p * size + j;
      }
    }
    return add({shards_.kinds[static_cast<size_t>(kind)].count * size, std::move(shard)});
  }

  const Graph& graph_;
  const std::vector<Layout>& variables_;
  const Mesh& mesh_;
  HybridShards shards_;
  std::map<std::pair<int, std::vector<int>>, int> ids_;        // of kinds
  std::vector<std::vector<int>> of_factor_;                    // by layer and factor, a kind
  std::map<std::pair<LayerId, TensorRule>, TensorId> viewed_;  // tensors that views read and make, by layer and rule
};

}  // namespace

Shape HybridShards::global_shape(TensorId tensor, Shape shape) const {
  for (size_t d = 0; d < shape.size(); ++d)
    shape[d] *= kinds[static_cast<size_t>(of_tensor[static_cast<size_t>(tensor)][d])].count;
  return shape;
}

Shape HybridShards::offset(TensorId tensor, Shape shape, int rank_in_stage) const {
  for (size_t d = 0; d < shape.size(); ++d) {
    const DimShards& shards = kinds[static_cast<size_t>(of_tensor[static_cast<size_t>(tensor)][d])];
    shape[d] *= shards.of_rank.empty() ? 0 : shards.of_rank[static_cast<size_t>(rank_in_stage)];
  }
  return shape;
}

HybridShards hybrid_shards(const Graph& graph, const std::vector<Layout>& variables, const Mesh& mesh,
                           bool full_batch) {
  return Tracer(graph, variables, mesh).run(full_batch);
}

}  // namespace trainctl
