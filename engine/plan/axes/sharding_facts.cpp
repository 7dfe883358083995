// Derives from the rules of all nodes of a layer, forward and backward, what a cut must respect.
#include "engine/plan/axes/sharding_facts.h"

#include <algorithm>

#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

// A dim of several factors can be cut only by its major one, and an axis cuts a tensor only once.
void note_obstacles(const TensorRule& rule, const std::vector<Factor>& factors, std::vector<std::string>& why_not) {
  std::vector<int> seen(factors.size(), 0);
  for (const DimRule& dim : rule) {
    const int major = cut_factor(dim, factors);
    for (int f : dim) {
      if (f != major && factors[f].size > 1 && why_not[f].empty()) {
        why_not[f] = "it is the minor factor of a merged dim";
      }
      if (++seen[f] > 1 && why_not[f].empty()) why_not[f] = "it is the index of two dims of the same tensor";
    }
  }
}

// The factor of the node's layer that runs over the rows; -1: none.
int batch_factor(const Graph& graph, const Node& node, const std::vector<int>& batch_dim) {
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const int dim = batch_dim[node.inputs[i]];
    const int factor = dim < 0 ? -1 : cut_factor(node.rule.inputs[i][dim], graph.layers[node.layer].factors);
    if (factor >= 0) return factor;
  }
  return -1;
}

void find_batch_factors(const Graph& graph, std::vector<LayerFacts>& facts) {
  const std::vector<int> batch_dim = batch_dims(graph);
  for (const Node& node : graph.nodes) {
    if (node.phase != Phase::forward || facts[node.layer].batch_factor >= 0) continue;
    facts[node.layer].batch_factor = batch_factor(graph, node, batch_dim);
  }
}

}  // namespace

/// For each layer: why a factor cannot be cut, its inner factors, the factor of the batch, and whether it is the loss.
std::vector<LayerFacts> sharding_facts(const Graph& graph) {
  std::vector<LayerFacts> facts(graph.layers.size());
  for (size_t l = 0; l < graph.layers.size(); ++l) {
    for (const Factor& factor : graph.layers[l].factors) {
      const bool given = factor.cuttable || !factor.why_not.empty();
      facts[l].why_not.push_back(factor.cuttable ? ""
                                 : given         ? factor.why_not
                                                 : "the layer needs the whole dim on "
                                                   "every rank");
    }
  }
  for (const Node& node : graph.nodes) {
    LayerFacts& of_layer = facts[node.layer];
    const std::vector<Factor>& factors = graph.layers[node.layer].factors;
    for (const TensorRule& rule : node.rule.inputs) note_obstacles(rule, factors, of_layer.why_not);
    for (const TensorRule& rule : node.rule.outputs) note_obstacles(rule, factors, of_layer.why_not);
    for (int f : node.rule.inner) {
      if (std::find(of_layer.inner.begin(), of_layer.inner.end(), f) == of_layer.inner.end())
        of_layer.inner.push_back(f);
    }
    if (std::find(node.outputs.begin(), node.outputs.end(), graph.loss) != node.outputs.end()) of_layer.is_loss = true;
  }
  find_batch_factors(graph, facts);
  return facts;
}

// Follows dim 0 of the data through the forward nodes.
std::vector<int> batch_dims(const Graph& graph) {
  std::vector<int> batch_dim(graph.tensors.size(), -1);
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    if (graph.tensors[t].kind == TensorKind::input && !graph.tensors[t].shape.empty()) batch_dim[t] = 0;
  }
  for (const Node& node : graph.nodes) {
    if (node.phase != Phase::forward) continue;
    const std::vector<Factor>& factors = graph.layers[node.layer].factors;
    const int batch = batch_factor(graph, node, batch_dim);
    for (size_t o = 0; batch >= 0 && o < node.outputs.size(); ++o) {
      const TensorRule& rule = node.rule.outputs[o];
      for (size_t d = 0; d < rule.size(); ++d) {
        if (cut_factor(rule[d], factors) == batch) batch_dim[node.outputs[o]] = static_cast<int>(d);
      }
    }
    // A collective of hybrid_parallel shares no factors between input and output, but leaves rows rows.
    if (get_op(node.op).collective) batch_dim[node.outputs[0]] = batch_dim[node.inputs[0]];
  }
  return batch_dim;
}

TensorId batch_tensor(const Graph& graph) {
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    if (graph.tensors[t].kind == TensorKind::input && !graph.tensors[t].shape.empty()) return static_cast<TensorId>(t);
  }
  return -1;
}

Axes largest_cut(const Mesh& mesh, const Axes& axes, int64_t size) {
  Axes chosen;  // sizes are prime, so each axis that still divides the rest belongs to the largest cut
  for (Axis axis : axes) {
    if (size % mesh.axis_size(axis) != 0) continue;
    chosen.push_back(axis);
    size /= mesh.axis_size(axis);
  }
  return chosen;
}

}  // namespace trainctl
