// Builds the forward nodes of a layer, so that every node's rule is in the layer's factors.
// Backward nodes: grad_builder.h.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/ops/op_def.h"

namespace trainctl {

/// Emits the forward nodes of one layer. The first node that reads a tensor from outside gives its
/// dims new factors from the op's letters; later nodes of the layer join them by tensor.
/// Throws ShapeError where shapes do not fit, or where a name is taken.
class LayerBuilder {
 public:
  /// `parameter_type`: in which the layer's nodes read its parameters.
  LayerBuilder(Graph& graph, LayerId layer, DType parameter_type = DType::f32)
      : graph_(graph), layer_(layer), parameter_type_(parameter_type) {}

  /// "layer.name"
  TensorId parameter(std::string_view name, Shape shape, Init init);
  TensorId state(std::string_view name, Shape shape, double value);

  /// Appends a node `<layer>.<suffix>` (or `<layer>` when suffix is empty). Its first output has the
  /// node's name, further ones add .1 .2 …. Returns them.
  std::vector<TensorId> emit(std::string_view op, std::vector<TensorId> inputs, Attrs attrs = {},
                             std::string_view suffix = "");

  /// Fills in what a strategy addresses: tensors from outside in the order in which nodes read them,
  /// parameters last, and the layer's output.
  void finish(TensorId output);

  /// The dims of a tensor that this layer touches, in its factors.
  const TensorRule& rule_of(TensorId tensor) const;
  const Shape& shape(TensorId tensor) const { return graph_.tensors[tensor].shape; }
  const std::string& name() const { return graph_.layers[layer_].name; }

 private:
  TensorId add_tensor(Tensor tensor);
  /// Letters of tensors that the layer knows are its factors already.
  std::map<char, int> known_letters(const std::vector<TensorId>& inputs, const RuleLetters& dims) const;
  Rule bind(const OpDef& op, const std::vector<TensorId>& inputs, const std::vector<TensorInfo>& outputs,
            const Attrs& attrs);

  Graph& graph_;
  LayerId layer_;
  DType parameter_type_;
  std::map<TensorId, TensorRule> rules_;
};

}  // namespace trainctl
