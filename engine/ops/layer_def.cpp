// Emits a layer; helpers that the emits of several layers share.
#include "engine/ops/layer_def.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/ops/expect.h"

namespace trainctl {

TensorId LayerContext::emit(std::string_view op, Attrs of_op) { return builder.emit(op, inputs, std::move(of_op))[0]; }

TensorId LayerContext::weight(const Shape& wanted, Init init) {
  const std::string owner = attrs.text("share");
  if (owner.empty()) {
    if (attrs.has("init_std")) init = {Init::Kind::normal, attrs.number("init_std")};
    return builder.parameter("weight", wanted, init);
  }
  const auto shared = graph.find_tensor(owner + ".weight");
  if (!shared || graph.tensors[*shared].kind != TensorKind::parameter) {
    shape_error(fmt::format("share: '{}' must be an earlier layer with its own weight", owner));
  }
  const Shape& found = builder.shape(*shared);
  if (found != wanted) {
    shape_error(fmt::format("share: the weight of '{}' is {}, this layer needs {}", owner, to_string(found),
                            to_string(wanted)));
  }
  return *shared;
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
  shape_error(fmt::format("dim {} of its input {} is the batch, of which a layer sees one micro-batch at a time", dim,
                          to_string(shape())));
}

Init linear_init(int64_t features) { return {Init::Kind::uniform, 1.0 / std::sqrt(static_cast<double>(features))}; }

Init constant_init(double value) { return {Init::Kind::constant, value}; }

TensorId emit_layer(LayerContext& layer) {
  const EntryType& type = *find_layer_type(layer.def.name);
  const std::string fault = input_fault(type, layer.attrs, static_cast<int>(layer.inputs.size()));
  if (!fault.empty()) shape_error(fault);
  for (TensorId input : layer.inputs) {
    if (layer.builder.shape(input).empty()) shape_error("its input has no dims");
  }
  return layer.def.emit(layer);
}

}  // namespace trainctl
