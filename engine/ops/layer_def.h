// Everything that the job file, its reference and the model know about one layer type. A layer is in the folder of
// its op (relu/relu.cpp defines relu_layer) and is listed in its OpFamily.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/entry_types.h"
#include "engine/ops/initial_values.h"
#include "engine/ops/layer_builder.h"

namespace trainctl {

struct LayerContext;

/// The result of `emit`: one output, or all outputs of a layer with several.
struct LayerOutputs {
  std::vector<TensorId> tensors;
  LayerOutputs(TensorId one) : tensors{one} {}                                  // NOLINT: stands for a list of one
  LayerOutputs(std::vector<TensorId> several) : tensors(std::move(several)) {}  // NOLINT
};

struct LayerDef {
  const char* name;  ///< the `type` of a job file
  const char* doc;   ///< one line of the reference
  std::vector<Field> fields = {};
  int min_inputs = 1, max_inputs = 1;
  /// A field that gives the layer its own weight: with it the layer takes min_inputs, without it max_inputs.
  const char* weight_field = "";
  /// Checks between fields that go beyond their ranges; null: none. Sees no shapes.
  std::vector<FieldFault> (*faults)(const Attrs& attrs) = nullptr;
  bool collective = false;  ///< a layer that only parallel.mode: hybrid_parallel has
  /// Returns the number of outputs of a layer with these fields (which may be wrong); null: 1.
  int (*num_outputs)(const Attrs& attrs) = nullptr;
  std::vector<AddedLayer> (*added)(const Attrs& attrs) = nullptr;  ///< see EntryType::added

  /// Appends the layer's nodes and returns its output or outputs. Throws ShapeError if the shapes of the inputs do not
  /// fit.
  std::function<LayerOutputs(LayerContext& layer)> emit;
};

/// The interface for `emit`: one layer of a job.
struct LayerContext {
  const LayerDef& def;
  const Graph& graph;
  LayerBuilder& builder;
  const Attrs& attrs;  ///< values of def.fields, defaults filled in
  const std::vector<TensorId>& inputs;
  int ranks_in_stage = 1;
  bool hybrid = false;  ///< parallel.mode: hybrid_parallel
  int micro_batches = 1;
  int context = 1;    ///< parallel.context: ranks that may share the rows of a sequence
  int row_order = 0;  ///< ranks by whose order rows are stored (row_order.h); 0: rows are stored by position
  Packing packing = Packing::none;  ///< train.frozen_type, if the layer's weight is frozen

  const Shape& shape(int i = 0) const { return builder.shape(inputs.at(i)); }
  const BatchRows& batch(int i = 0) const { return graph.tensors[inputs.at(i)].batch; }

  /// Adds one node that reads all of the layer's inputs; returns its first output.
  TensorId emit(std::string_view op, Attrs attrs = {});
  /// The same; returns all of its outputs.
  std::vector<TensorId> emit_all(std::string_view op, Attrs attrs = {});

  /// The layer's own weight, or with the field `share` the weight of an earlier layer. The field `init` overrides
  /// `otherwise`. `fans`: absent for a weight [out, in, ..].
  TensorId weight(const Shape& shape, Init otherwise, std::optional<Fans> fans = {});
  /// The same for a weight that may be stored packed: what kernels read.
  TensorId packed_weight(const Shape& shape, Init otherwise);
  /// The layer's own bias. The field `bias_init` overrides `otherwise`.
  TensorId bias(const Shape& shape, Init otherwise);

  /// With the field affine: the inputs, then a weight of this shape and, if it shifts, a bias. They are 1 - the field
  /// `offset` and 0, unless the fields `init` and `bias_init` say otherwise.
  std::vector<TensorId> with_affine(std::vector<TensorId> inputs, const Shape& features, bool shifts = true);

  /// Converts a dim of input 0 that may count from the end (-1 is the last one). Throws if there is no such dim.
  int64_t non_negative_dim(int64_t dim) const;
  /// The same, and throws if the dim's size depends on the batch.
  int64_t sample_dim(int64_t dim) const;

 private:
  TensorId vector(std::string_view name, const char* field, const Shape& shape, Init otherwise);
};

/// Every layer type, in the order of the reference.
std::span<const LayerDef* const> all_layers();
/// Null if there is none of that name.
const LayerDef* find_layer(std::string_view name);

/// Calls def.emit after checking that the number of inputs is right and none is a scalar. Returns the outputs.
std::vector<TensorId> emit_layer(LayerContext& layer);

}  // namespace trainctl
