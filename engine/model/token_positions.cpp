// Finds the dim of each tensor that the positions of tokens are in, and changes their number. The dim of positions is
// followed through the graph: an output of a node has it where its sharding rule has the factors of the input's dim of
// positions. It can also be merged with the batch, [rows * positions].
#include "engine/model/token_positions.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/ops/attention/score_terms.h"
#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

constexpr int kNoDim = -1;

class TokenPositions {
 public:
  TokenPositions(Graph& graph, int64_t whole) : graph_(graph), whole_(whole), dims_(graph.tensors.size(), kNoDim) {
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      const Tensor& tensor = graph.tensors[t];
      if (tensor.kind == TensorKind::input && tensor.dtype == DType::i32) dims_[t] = 1;
    }
  }

  void find() {
    for (const Node& node : graph_.nodes)
      get_op(node.op).in_generation == InGeneration::reads_caches ? follow_attention(node) : follow(node);
    for (size_t l = 0; l < graph_.layers.size(); ++l) follow_layer(static_cast<LayerId>(l));
  }

  void set(int64_t tokens) {
    for (const auto& [layer, index] : factors_) {
      Factor& factor = graph_.layers[static_cast<size_t>(layer)].factors[static_cast<size_t>(index)];
      factor.size = factor.size / whole_ * tokens;
    }
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      if (dims_[t] == kNoDim) continue;
      int64_t& size = graph_.tensors[t].shape[static_cast<size_t>(dims_[t])];
      size = size / whole_ * tokens;
    }
  }

 private:
  [[noreturn]] void refuse(const Node& node, const std::string& why, const std::string& hint = "") const {
    const Layer& layer = graph_.layers[static_cast<size_t>(node.layer)];
    throw SpecError(layer.pos, layer.name, "text generation does not support this layer (" + layer.type + "): " + why,
                    hint);
  }

  int dim(TensorId tensor) const { return dims_[static_cast<size_t>(tensor)]; }
  void set_dim(TensorId tensor, size_t dim) { dims_[static_cast<size_t>(tensor)] = static_cast<int>(dim); }

  /// Notes the factor whose size changes with the number of positions: the last one of the dim.
  void note_factor(const Node& node, const DimRule& dim) {
    const std::vector<Factor>& factors = graph_.layers[static_cast<size_t>(node.layer)].factors;
    if (dim.empty() || factors[static_cast<size_t>(dim.back())].size % whole_ != 0)
      refuse(node, "it divides the dim of positions");
    factors_.insert({node.layer, dim.back()});
  }

  void follow_attention(const Node& node) {
    if (!node.attrs.flag("causal"))
      refuse(node, "its rows attend to later ones", "only causal attention can use cached keys and values");
    if (node.attrs.has(kScoreBias))
      refuse(node, "it has a bias of its scores (score_bias), which has the length of the training texts",
             "alibi: true is a bias of any length");
    const size_t inputs = node.inputs.size() - extra_inputs(node.attrs), rows = inputs <= 2 ? 1 : 3;
    if (inputs % 2 == 0 && node.attrs.text("mask") != "documents") refuse(node, "it has a mask of keys");
    for (size_t i = 0; i < rows; ++i) {
      if (dim(node.inputs[i]) != 1) refuse(node, "its queries, keys and values are not those of the tokens");
      note_factor(node, node.rule.inputs[i][1]);
    }
    for (size_t o = 0; o < node.outputs.size(); ++o) set_dim(node.outputs[o], o == 0 ? 1 : 3);
  }

  /// Notes the factors of a layer without nodes in this graph (dropout).
  void follow_layer(LayerId id) {
    const Layer& layer = graph_.layers[static_cast<size_t>(id)];
    for (size_t i = 0; i < layer.inputs.size(); ++i) {
      if (dim(layer.inputs[i]) == kNoDim) continue;
      const DimRule& factors = layer.input_rules[i][static_cast<size_t>(dim(layer.inputs[i]))];
      if (!factors.empty()) factors_.insert({id, factors.back()});
    }
  }

  void follow(const Node& node) {
    const bool is_view = get_op(node.op).is_view;
    std::set<int> of_positions;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (dim(node.inputs[i]) == kNoDim) continue;
      const DimRule& factors = node.rule.inputs[i][static_cast<size_t>(dim(node.inputs[i]))];
      note_factor(node, factors);
      of_positions.insert(factors.back());
    }
    if (of_positions.empty()) return;
    for (const int factor : of_positions) require_apart(node, factor, is_view);
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (dim(node.inputs[i]) == kNoDim && has_any(node.rule.inputs[i], of_positions))
        refuse(node, "it has values of its own for each position");
    for (size_t o = 0; o < node.outputs.size(); ++o) follow_output(node, o, of_positions);
  }

  /// Requires that the node computes each position on its own: the factor of positions may be neither summed over nor
  /// uncuttable.
  void require_apart(const Node& node, int factor, bool is_view) const {
    const Rule& rule = node.rule;
    const bool is_inner = std::find(rule.inner.begin(), rule.inner.end(), factor) != rule.inner.end();
    const bool is_cuttable =
        graph_.layers[static_cast<size_t>(node.layer)].factors[static_cast<size_t>(factor)].cuttable;
    if (is_inner || (!is_cuttable && !is_view)) refuse(node, "it computes over the positions of a text");
  }

  static bool has_any(const TensorRule& rule, const std::set<int>& factors) {
    return std::any_of(rule.begin(), rule.end(), [&](const DimRule& dim) {
      return std::any_of(dim.begin(), dim.end(), [&](int factor) { return factors.contains(factor); });
    });
  }

  void follow_output(const Node& node, size_t output, const std::set<int>& of_positions) {
    const TensorRule& rule = node.rule.outputs[output];
    for (size_t d = 0; d < rule.size(); ++d) {
      if (rule[d].empty() || !of_positions.contains(rule[d].back())) continue;
      if (dim(node.outputs[output]) != kNoDim) refuse(node, "it combines positions with each other");
      set_dim(node.outputs[output], d);
    }
    if (dim(node.outputs[output]) == kNoDim) refuse(node, "it combines the positions of a text");
  }

  Graph& graph_;
  const int64_t whole_;
  std::vector<int> dims_;                      // by tensor
  std::set<std::pair<LayerId, int>> factors_;  // of layers, whose size changes
};

}  // namespace

void set_token_count(Graph& graph, int64_t whole, int64_t tokens) {
  TokenPositions positions(graph, whole);
  positions.find();
  positions.set(tokens);
}

}  // namespace trainctl
