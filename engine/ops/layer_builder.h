// Builds the forward nodes of a layer such that every node's rule uses the layer's factors. Backward nodes:
// grad_builder.h.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/ops/op_def.h"

namespace trainctl {

/// Emits the forward nodes of one layer. The first node that reads a tensor from outside creates factors for its
/// dims from the op's letters; later nodes of the layer reuse them, matched by tensor. Throws ShapeError if shapes
/// do not fit or a name is taken.
class LayerBuilder {
 public:
  /// `parameter_type`: the type in which the layer's nodes read its parameters. `owner`: an earlier layer whose
  /// parameters this one reads in place of its own; empty: none.
  LayerBuilder(Graph& graph, LayerId layer, DType parameter_type = DType::f32, std::string owner = {})
      : graph_(graph), layer_(layer), parameter_type_(parameter_type), owner_(std::move(owner)) {}

  /// Adds the parameter "layer.name" or, if there is an owner, returns its parameter "owner.name".
  TensorId parameter(std::string_view name, Shape shape, Init init);
  /// The parameter [.., columns] as kernels read it: if it is stored packed (packing.h), a node that unpacks it.
  TensorId unpacked(TensorId parameter);
  /// Parameters of the name "weight" that are added from now on are stored so. Throws ShapeError when such a parameter
  /// does not consist of whole blocks.
  void set_packing(Packing packing) { packing_ = packing; }
  TensorId state(std::string_view name, Shape shape, double value);

  /// Appends a node `<layer>.<suffix>` (or `<layer>` if suffix is empty). Its first output has the node's name,
  /// later ones add .1 .2 …. Returns the outputs. `like`: a tensor of the layer from which output 0 takes the factors
  /// of dims that no input has, so that nodes that read both see the same factors; -1: none.
  std::vector<TensorId> emit(std::string_view op, std::vector<TensorId> inputs, Attrs attrs = {},
                             std::string_view suffix = "", TensorId like = -1);
  /// Gives dim `dim` of the tensor `unread`, which no node of the layer has read yet, the factors of dim `of_dim` of
  /// `known`, which some node has read.
  void share_factors(TensorId unread, size_t dim, TensorId known, size_t of_dim);
  /// Gives dim `dim` of the tensor `unread`, which no node of the layer has read yet, factors of these sizes. As in a
  /// dim that reshape merges, only the first factor can be sharded.
  void split_factors(TensorId unread, size_t dim, const Shape& sizes);

  /// Fills in what a strategy addresses: tensors from outside in the order in which nodes read them, then
  /// parameters, and the layer's outputs. Several outputs are named `<layer>.<name>`.
  void finish(const std::vector<TensorId>& outputs, const std::vector<std::string>& names = {});

  /// The dims of a tensor that this layer touches, in its factors.
  const TensorRule& rule_of(TensorId tensor) const;
  const Shape& shape(TensorId tensor) const { return graph_.tensors[tensor].shape; }
  DType parameter_type() const { return parameter_type_; }
  const std::string& name() const { return graph_.layers[layer_].name; }

 private:
  TensorId add_tensor(Tensor tensor);
  void name_outputs(const std::vector<TensorId>& outputs, const std::vector<std::string>& names);
  /// Letters of tensors that already have factors in this layer. A letter that is a whole dim stands for all its
  /// factors. A dim whose factors nothing cuts may be read as other letters, which are added to `uncut`.
  std::map<char, DimRule> known_letters(const std::vector<TensorId>& inputs, const RuleLetters& dims,
                                        const std::map<char, int64_t>& sizes, std::string& uncut) const;
  Rule bind(const OpDef& op, const std::vector<TensorId>& inputs, const std::vector<TensorInfo>& outputs,
            const Attrs& attrs, TensorId like);

  Graph& graph_;
  LayerId layer_;
  DType parameter_type_;
  std::string owner_;
  Packing packing_ = Packing::none;
  std::map<TensorId, TensorRule> rules_;
  std::map<TensorId, std::map<size_t, DimRule>> shared_;  ///< by unread tensor and dim
};

}  // namespace trainctl
