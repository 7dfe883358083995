// Emits a layer; helpers that the emits of several layers share.
#include "engine/ops/layer_def.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/ops/expect.h"

namespace trainctl {

TensorId LayerContext::emit(std::string_view op, Attrs of_op) { return emit_all(op, std::move(of_op))[0]; }

std::vector<TensorId> LayerContext::emit_all(std::string_view op, Attrs of_op) {
  return builder.emit(op, inputs, std::move(of_op));
}

TensorId LayerContext::packed_weight(const Shape& wanted, Init otherwise) {
  builder.set_packing(packing);
  const TensorId stored = weight(wanted, otherwise);
  builder.set_packing(Packing::none);
  return builder.unpacked(stored);
}

TensorId LayerContext::weight(const Shape& wanted, Init otherwise, std::optional<Fans> fans) {
  const std::string owner = attrs.text("share");
  const Attrs init = nested_attrs(attrs, "init");
  if (owner.empty()) {
    if (init.empty()) return builder.parameter("weight", wanted, otherwise);
    if (!fans) fans = fans_of(wanted);
    return builder.parameter("weight", wanted, initial_values_of(init, &*fans));
  }
  if (!init.empty())
    throw ShapeError(fmt::format("the layer shares the weight of '{}', whose init applies", owner), "init");
  const auto shared = graph.find_tensor(owner + ".weight");
  if (!shared || graph.tensors[*shared].kind != TensorKind::parameter) {
    shape_error(fmt::format("share: '{}' must be an earlier layer with its own weight", owner));
  }
  const Shape found = unpacked_shape(builder.shape(*shared), graph.tensors[*shared].packing);
  if (found != wanted) {
    shape_error(fmt::format("share: the weight of '{}' is {}, but this layer needs {}", owner, to_string(found),
                            to_string(wanted)));
  }
  return *shared;
}

TensorId LayerContext::vector(std::string_view name, const char* field, const Shape& shape, Init otherwise) {
  const Attrs init = nested_attrs(attrs, field);
  try {
    return builder.parameter(name, shape, init.empty() ? otherwise : initial_values_of(init, nullptr));
  } catch (const ShapeError& error) {
    throw ShapeError(error.what(), init.empty() ? "" : field);
  }
}

TensorId LayerContext::bias(const Shape& shape, Init otherwise) {
  return vector("bias", "bias_init", shape, otherwise);
}

std::vector<TensorId> LayerContext::with_affine(std::vector<TensorId> tensors, const Shape& features, bool shifts) {
  if (!attrs.flag("affine")) {
    for (const char* field : {"init", "bias_init"})
      if (!nested_attrs(attrs, field).empty())
        throw ShapeError("there is nothing to initialize: affine is false", field);
    return tensors;
  }
  tensors.push_back(vector("weight", "init", features, constant_init(1 - attrs.number("offset", 0))));
  if (shifts) tensors.push_back(bias(features, constant_init(0)));
  return tensors;
}

int64_t LayerContext::non_negative_dim(int64_t dim) const {
  const auto ndim = static_cast<int64_t>(shape().size());
  if (dim >= -ndim && dim < ndim) return dim < 0 ? dim + ndim : dim;
  shape_error(
      fmt::format("there is no dim {} in its input {}; dims are {} to {}", dim, to_string(shape()), -ndim, ndim - 1));
}

int64_t LayerContext::sample_dim(int64_t dim) const {
  dim = non_negative_dim(dim);
  if (!batch().is_sized(static_cast<size_t>(dim))) return dim;
  shape_error(
      fmt::format("dim {} of its input {} is the batch, of which a layer processes only one micro-batch at a "
                  "time",
                  dim, to_string(shape())));
}

std::vector<TensorId> emit_layer(LayerContext& layer) {
  const EntryType& type = *find_layer_type(layer.def.name);
  const std::string fault = input_fault(type, layer.attrs, static_cast<int>(layer.inputs.size()));
  if (!fault.empty()) shape_error(fault);
  for (TensorId input : layer.inputs) {
    if (layer.builder.shape(input).empty()) shape_error("its input has no dims");
  }
  std::vector<TensorId> outputs = layer.def.emit(layer).tensors;
  check(outputs.size() == static_cast<size_t>(output_count(type, layer.attrs)),
        std::string(layer.def.name) + " has as many outputs as its definition says");
  return outputs;
}

}  // namespace trainctl
