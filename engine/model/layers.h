// How each layer type of a job becomes nodes: one function a type, in the table of layers.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/ops/layer_builder.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// What lowering one layer sees. Problems are ShapeErrors; build_graph gives them their position.
struct LayerContext {
  const Graph& graph;
  LayerBuilder& builder;
  const LayerSpec& spec;
  const std::vector<TensorId>& inputs;
  int ranks_in_stage = 1;
  bool hybrid = false;

  const Shape& shape(int i = 0) const { return builder.shape(inputs.at(i)); }
  const Attrs& attrs() const { return spec.attrs; }
};

/// Emits the layer's nodes and returns its output.
TensorId lower_layer(LayerContext& layer);
/// Every type that lower_layer knows.
std::vector<std::string> lowered_layer_types();

}  // namespace trainctl
