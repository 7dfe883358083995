// An example of a plugin's op as a graph: the layer and the node of its gradient, as a job has them.
#include "engine/ops/plugins/check/plugin_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/plugins/plugin_rule.h"
#include "engine/ops/random.h"

namespace trainctl {
namespace {

constexpr uint64_t kValuesSeed = 20260;

/// The attrs of an example: its values of the attributes, or their defaults.
Attrs attrs_of_example(const PluginOp& op, const trainctl_example& example) {
  Attrs attrs = with_defaults({}, op.layer.fields);
  for (int32_t i = 0; i < op.c.num_attributes; ++i) {
    const trainctl_attribute& field = op.c.attributes[i];
    if (example.attributes == nullptr) {
      if (field.required != 0)
        shape_error(fmt::format("{}: its example lacks a value of the required attribute '{}'", op.name, field.name));
      continue;
    }
    const trainctl_value& value = example.attributes[i];
    if (field.kind == TRAINCTL_FLAG)
      attrs.set(field.name, value.flag != 0);
    else if (field.kind == TRAINCTL_INTEGER)
      attrs.set(field.name, value.integer);
    else if (field.kind == TRAINCTL_NUMBER)
      attrs.set(field.name, value.number);
    else
      attrs.set(field.name, std::string(value.text == nullptr ? "" : value.text));
  }
  return attrs;
}

Shape example_shape(const PluginOp& op, const trainctl_shape& shape) {
  if (shape.ndim < 1 || shape.ndim > TRAINCTL_MAX_DIMS)
    shape_error(fmt::format("{}: an input of its example has {} dims", op.name, shape.ndim));
  Shape dims(shape.dims, shape.dims + shape.ndim);
  expect_size("an input of the example", dims);
  return dims;
}

TensorId add_tensor_of_case(Graph& graph, std::string name, Shape shape, DType dtype) {
  Tensor tensor{.name = std::move(name), .shape = std::move(shape)};
  tensor.dtype = dtype;
  tensor.kind = TensorKind::input;
  graph.tensors.push_back(std::move(tensor));
  return static_cast<TensorId>(graph.tensors.size() - 1);
}

/// Adds the backward node of the case, with the gradients of outputs that are `given` and the gradients that are
/// `wanted`.
void add_backward_of_case(PluginCase& built, NodeId forward, unsigned wanted, unsigned given) {
  const PluginOp& op = *built.op;
  for (const TensorId output : built.forward.outputs) {
    const Tensor tensor = built.graph.tensors[output];
    built.out_grads.push_back(add_tensor_of_case(built.graph, "grad." + tensor.name, tensor.shape, tensor.dtype));
  }
  std::vector<TensorId> out_grads = built.out_grads;
  for (size_t o = 0; o < out_grads.size(); ++o)
    if (built.graph.tensors[out_grads[o]].dtype == DType::i32 || (given >> o & 1) == 0) out_grads[o] = -1;
  std::vector<std::string> names;
  for (size_t i = 0; i < op.operands(); ++i)
    names.push_back((wanted >> i & 1) != 0 && op.is_differentiable(i) ? fmt::format("grad.in{}", i) : "");
  GradBuilder builder(built.graph, forward, out_grads, names);
  op.op.backward(builder);
  built.in_grads = builder.in_grads();
  if (std::ranges::any_of(built.in_grads, [](TensorId id) { return id >= 0; }))
    built.backward = built.graph.nodes.back();
}

}  // namespace

std::string PluginCase::name_of(TensorId tensor) const {
  for (size_t i = 0; i < forward.inputs.size(); ++i) {
    if (forward.inputs[i] == tensor) return plugin_operand(*op, i);
    if (i < in_grads.size() && in_grads[i] == tensor) return "the gradient of " + plugin_operand(*op, i);
  }
  for (size_t o = 0; o < forward.outputs.size(); ++o) {
    if (forward.outputs[o] == tensor) return plugin_operand(*op, op->operands() + o);
    if (o < out_grads.size() && out_grads[o] == tensor)
      return "the gradient of " + plugin_operand(*op, op->operands() + o);
  }
  return graph.tensors[tensor].name;
}

PluginCase build_plugin_case(const PluginOp& op, const trainctl_example& example, unsigned wanted, unsigned given) {
  PluginCase built;
  built.op = &op;
  built.example = &example;
  Graph& graph = built.graph;
  graph.layers.push_back({.name = "plugin_layer", .type = op.name});
  std::vector<TensorId> inputs;
  for (int32_t i = 0; i < op.c.num_inputs; ++i) {
    const DType dtype = op.c.inputs[i].kind == TRAINCTL_INDICES ? DType::i32 : DType::f32;
    inputs.push_back(add_tensor_of_case(graph, fmt::format("in{}", i), example_shape(op, example.inputs[i]), dtype));
  }
  LayerBuilder builder(graph, 0);
  const Attrs attrs = attrs_of_example(op, example);
  LayerContext layer{op.layer, graph, builder, attrs, inputs};
  op.layer.emit(layer);
  const auto forward = static_cast<NodeId>(graph.nodes.size()) - 1;
  built.forward = graph.nodes.back();
  if (op.has_gradient() && wanted != 0) add_backward_of_case(built, forward, wanted, given);
  return built;
}

PluginValues plugin_values(const PluginCase& built) {
  const trainctl_example& example = *built.example;
  const bool has_range = example.least != 0 || example.most != 0;
  const double least = has_range ? example.least : -1, most = has_range ? example.most : 1;
  PluginValues values(built.graph.tensors.size());
  for (size_t t = 0; t < values.size(); ++t) {
    const Tensor& tensor = built.graph.tensors[t];
    if (tensor.kind != TensorKind::input && tensor.kind != TensorKind::parameter) continue;
    const bool is_gradient = std::ranges::find(built.out_grads, static_cast<TensorId>(t)) != built.out_grads.end();
    values[t].resize(static_cast<size_t>(num_elements(tensor.shape)));
    for (size_t i = 0; i < values[t].size(); ++i) {
      const double random = philox_uniform(kValuesSeed, i, t);
      double& value = values[t][i];
      if (tensor.dtype == DType::i32)
        value = std::floor(random * static_cast<double>(std::max<int64_t>(1, example.indices_below)));
      else if (is_gradient)
        value = 2 * random - 1;
      else if (tensor.kind == TensorKind::input)
        value = least + (most - least) * random;
      else if (tensor.init.kind == Init::Kind::constant)
        value = tensor.init.value + 0.5 * (random - 0.5);
      else
        value = tensor.init.value * (2 * random - 1);
      value = static_cast<float>(value);
    }
  }
  return values;
}

}  // namespace trainctl
