// An op of a plugin (trainctl_plugin.h) as an ordinary op: its OpDef, that of its gradient, and its layer.
#include "engine/ops/plugins/plugin_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "engine/base/error.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/plugins/plugin_call.h"
#include "engine/ops/plugins/plugin_rule.h"
#include "engine/ops/registered_ops.h"

namespace trainctl {
namespace {

// Attrs of a backward node. A plugin's fields cannot have these names, because each has a dot.
constexpr const char* kOutputGrads = "gradient.of_outputs";
constexpr const char* kInputGrads = "gradient.of_inputs";
constexpr const char* kGradShapes = "gradient.shapes";
constexpr const char* kGradIsBf16 = "gradient.is_bf16";

constexpr size_t kKeyDigits = 16;  // hexadecimal digits of the digest in a key

struct PluginOps {
  std::vector<const PluginOp*> in_order;
  std::map<std::string, std::unique_ptr<PluginOp>, std::less<>> by_key;
  std::map<std::string, const PluginOp*, std::less<>> by_kernel;
};

PluginOps& plugin_ops() {
  static PluginOps ops;
  return ops;
}

DType dtype_of(int32_t type) {
  return type == TRAINCTL_BF16 ? DType::bf16 : type == TRAINCTL_I32 ? DType::i32 : DType::f32;
}

trainctl_shape c_shape(const TensorInfo& info) {
  trainctl_shape shape{};
  shape.dtype = info.dtype == DType::bf16 ? TRAINCTL_BF16 : info.dtype == DType::i32 ? TRAINCTL_I32 : TRAINCTL_F32;
  shape.ndim = static_cast<int32_t>(info.shape.size());
  std::copy(info.shape.begin(), info.shape.end(), shape.dims);
  return shape;
}

/// Checks a shape that a plugin has filled in, and converts it.
Shape checked_shape(const PluginOp& op, const trainctl_shape& shape, const std::string& what) {
  if (shape.ndim < 0 || shape.ndim > TRAINCTL_MAX_DIMS)
    shape_error(fmt::format("{}: plugin {} gives {} {} dims; 0 to {} are possible", op.name, op.file, what, shape.ndim,
                            TRAINCTL_MAX_DIMS));
  Shape dims(shape.dims, shape.dims + shape.ndim);
  if (std::any_of(dims.begin(), dims.end(), [](int64_t size) { return size < 1; }))
    shape_error(fmt::format("{}: plugin {} gives {} the shape {}, but every dim must be at least 1", op.name, op.file,
                            what, to_string(dims)));
  return dims;
}

void run_shapes(const PluginOp& op, PluginCall& call, const std::function<int(trainctl_call*)>& function) {
  try {
    call.run(PluginFunction::shapes, function);
  } catch (const PluginFailure& failure) {
    shape_error(fmt::format("{}: {}", op.name, failure.what()));
  }
}

void expect_types(const PluginOp& op, Infos in) {
  for (size_t i = 0; i < in.size(); ++i) {
    const std::string what = plugin_operand(op, i);
    if (in[i].shape.size() > TRAINCTL_MAX_DIMS)
      shape_error(
          fmt::format("{}: {} has {} dims; plugins support {}", op.name, what, in[i].shape.size(), TRAINCTL_MAX_DIMS));
    const bool wants_indices = i < static_cast<size_t>(op.c.num_inputs) && op.c.inputs[i].kind == TRAINCTL_INDICES;
    if ((in[i].dtype == DType::i32) != wants_indices)
      shape_error(fmt::format("{}: {} must be {}, but got {} {}", op.name, what,
                              wants_indices ? "indices, i32" : "floating-point numbers", to_string(in[i].shape),
                              to_string(in[i].dtype)));
    if (in[i].dtype == DType::f16)
      shape_error(fmt::format("{}: plugins do not support fp16; set precision: bf16, or fp32", op.name));
    if (in[i].dtype == DType::bf16 && !op.supports_bf16())
      shape_error(fmt::format("{}: plugin {} does not support bf16; set precision: fp32", op.name, op.file));
  }
}

/// Checks the inputs, and asks the plugin for the shapes of the outputs. A plugin without a function for them has
/// outputs like input 0.
std::vector<TensorInfo> infer_forward(Infos in, const Attrs& attrs) {
  const PluginOp& op = plugin_op(attrs);
  expect_inputs(op.name, in, op.operands(), op.operands());
  expect_types(op, in);
  std::vector<trainctl_shape> shapes(static_cast<size_t>(op.c.num_outputs), c_shape(in[0]));
  if (op.c.output_shapes != nullptr) {
    PluginCall call(op, attrs);
    call.bind(PluginPass::forward, in, {});
    run_shapes(op, call, [&](trainctl_call* c) { return op.c.output_shapes(c, shapes.data()); });
  }
  std::vector<TensorInfo> outputs;
  for (size_t o = 0; o < shapes.size(); ++o) {
    const std::string what = plugin_operand(op, op.operands() + o);
    outputs.push_back({checked_shape(op, shapes[o], what), dtype_of(shapes[o].dtype)});
    if (outputs.back().dtype == DType::bf16 && in[0].dtype != DType::bf16)
      shape_error(fmt::format("{}: plugin {} makes {} bf16, but the job computes in f32", op.name, op.file, what));
  }
  if ((op.c.flags & TRAINCTL_IN_PLACE) != 0 && (outputs[0].shape != in[0].shape || outputs[0].dtype != in[0].dtype))
    shape_error(fmt::format("{}: plugin {} has TRAINCTL_IN_PLACE, but output 0 is {} and input 0 is {}", op.name,
                            op.file, to_string(outputs[0].shape), to_string(in[0].shape)));
  return outputs;
}

RuleText rule_of(Infos in, const Attrs& attrs) {
  const PluginOp& op = plugin_op(attrs);
  try {
    return plugin_rule(op, in, infer_forward(in, attrs), attrs);
  } catch (const PluginFailure& failure) {
    shape_error(fmt::format("{}: {}", op.name, failure.what()));
  }
}

/// Adds one backward node that computes all gradients that are needed.
void build_backward_node(GradBuilder& g) {
  const PluginOp& op = plugin_op(g.attrs());
  std::vector<int> wanted;
  std::vector<Ints> shapes;
  Ints which, bf16, of_outputs;
  for (int i = 0; i < g.num_inputs(); ++i) {
    if (!g.needs_in_grad(i) || !op.is_differentiable(static_cast<size_t>(i))) continue;
    wanted.push_back(i);
    which.push_back(i);
    shapes.push_back(g.shape(g.in(i)));
    bf16.push_back(!g.is_parameter(g.in(i)) && g.dtype(g.in(i)) == DType::bf16 ? 1 : 0);
  }
  std::vector<TensorId> inputs;
  for (int o = 0; o < op.c.num_outputs; ++o) {
    if (!g.has_out_grad(o)) continue;
    of_outputs.push_back(o);
    inputs.push_back(g.out_grad(o));
  }
  for (size_t i = 0; i < op.operands(); ++i)
    if (op.reads_input(i)) inputs.push_back(g.in(static_cast<int>(i)));
  for (int o = 0; o < op.c.num_outputs; ++o)
    if (op.reads_output(static_cast<size_t>(o))) inputs.push_back(g.out(o));
  Attrs attrs = g.attrs();
  attrs.set(kOutputGrads, of_outputs);
  attrs.set(kInputGrads, which);
  attrs.set(kGradShapes, shapes);
  attrs.set(kGradIsBf16, bf16);
  if (!wanted.empty()) g.set_in_grads(wanted, op.gradient_name, std::move(inputs), std::move(attrs));
}

std::vector<TensorInfo> infer_backward(Infos, const Attrs& attrs) {
  std::vector<TensorInfo> gradients;
  const Ints bf16 = attrs.ints(kGradIsBf16);
  for (const Ints& shape : attrs.int_lists(kGradShapes))
    gradients.push_back({shape, bf16.at(gradients.size()) != 0 ? DType::bf16 : DType::f32});
  return gradients;
}

template <PluginPass kPass>
Cost cost_of(Infos in, Infos out, const Attrs& attrs) {
  const PluginOp& op = plugin_op(attrs);
  PluginCall call(op, attrs);
  call.bind(kPass, in, out);
  trainctl_cost cost{};
  try {
    call.run(PluginFunction::cost,
             [&](trainctl_call* c) { return op.c.cost(c, kPass == PluginPass::backward ? 1 : 0, &cost); });
  } catch (const PluginFailure& failure) {
    throw EnvError(failure.what());
  }
  if (!(cost.flops >= 0) || !(cost.bytes >= 0))
    throw EnvError(fmt::format("{}: it gives {} flops and {} bytes; both must be at least 0",
                               op.running(PluginFunction::cost), cost.flops, cost.bytes));
  return {.flops = cost.flops, .bytes = cost.bytes};
}

KernelExample no_example() { return {.what = "an op of a plugin"}; }

/// The words of a text such as "a|b|c".
std::vector<std::string> words_between_bars(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == '|')
      words.emplace_back();
    else
      words.back() += c;
  }
  return words;
}

/// An attribute of a plugin as a field of its layer.
Field field_of(const trainctl_attribute& attribute) {
  const trainctl_value& fallback = attribute.fallback;
  Field field;
  Value value;
  switch (attribute.kind) {
    case TRAINCTL_FLAG:
      field = flag(attribute.name, fallback.flag != 0, attribute.doc);
      value = fallback.flag != 0;
      break;
    case TRAINCTL_INTEGER:
      field = integer(attribute.name, attribute.doc);
      value = fallback.integer;
      break;
    case TRAINCTL_NUMBER:
      field = number(attribute.name, attribute.doc);
      value = fallback.number;
      break;
    default:
      field = text(attribute.name, attribute.doc);
      value = std::string(fallback.text == nullptr ? "" : fallback.text);
      if (attribute.choices == nullptr) break;
      field.kind = FieldKind::choice;
      field.choices = words_between_bars(attribute.choices);
  }
  if (attribute.has_range != 0) {
    field.min = attribute.least;
    field.max = attribute.most;
  }
  field.is_required = attribute.required != 0;
  field.fallback.reset();
  if (!field.is_required) field.fallback = std::move(value);
  return field;
}

Init init_of(const trainctl_parameter& parameter) {
  const Init::Kind kind = parameter.init == TRAINCTL_UNIFORM  ? Init::Kind::uniform
                          : parameter.init == TRAINCTL_NORMAL ? Init::Kind::normal
                                                              : Init::Kind::constant;
  return {kind, parameter.value};
}

/// Emits the layer: its parameters and the node of the op.
std::vector<TensorId> emit(const PluginOp& op, LayerContext& layer) {
  Attrs attrs = layer.attrs;
  attrs.set(kPluginOp, op.key);
  std::vector<TensorId> operands = layer.inputs;
  std::vector<trainctl_shape> shapes(static_cast<size_t>(op.c.num_parameters));
  if (!shapes.empty()) {
    std::vector<TensorInfo> infos;
    for (const TensorId input : layer.inputs)
      infos.push_back({layer.graph.tensors[input].shape, layer.graph.tensors[input].dtype});
    expect_types(op, infos);
    PluginCall call(op, attrs);
    call.bind(PluginPass::forward, infos, {});
    run_shapes(op, call, [&](trainctl_call* c) { return op.c.parameter_shapes(c, shapes.data()); });
  }
  for (size_t p = 0; p < shapes.size(); ++p) {
    const std::string what = plugin_operand(op, static_cast<size_t>(op.c.num_inputs) + p);
    operands.push_back(layer.builder.parameter(op.c.parameters[p].name, checked_shape(op, shapes[p], what),
                                               init_of(op.c.parameters[p])));
  }
  return layer.builder.emit(op.name, std::move(operands), std::move(attrs));
}

/// LayerDef::num_outputs of a layer with a fixed number of outputs.
template <int kOutputs>
int fixed_outputs(const Attrs&) {
  return kOutputs;
}
constexpr std::array<int (*)(const Attrs&), TRAINCTL_MAX_OPERANDS + 1> kFixedOutputs = {
    nullptr,          nullptr,          fixed_outputs<2>, fixed_outputs<3>, fixed_outputs<4>,
    fixed_outputs<5>, fixed_outputs<6>, fixed_outputs<7>, fixed_outputs<8>};

unsigned inputs_without_gradient(const PluginOp& op) {
  unsigned mask = 0;
  for (size_t i = 0; i < op.operands(); ++i)
    if (!op.is_differentiable(i)) mask |= 1U << i;
  return mask;
}

}  // namespace

PluginOp::PluginOp(const std::string& of_file, const std::string& digest, const trainctl_op& table)
    : file(of_file),
      name(table.name),
      gradient_name(name + "_grad"),
      key(fmt::format("{}@{}", name, digest.substr(0, kKeyDigits))),
      c(table),
      op{.name = name.c_str(),
         .infer = infer_forward,
         .rule = rule_of,
         .backward = table.backward != nullptr ? build_backward_node : nullptr,
         .kernel = {.name = name.c_str(),
                    .in_place = (table.flags & TRAINCTL_IN_PLACE) != 0 ? InPlace::first_on_first : InPlace::no,
                    .cost = table.cost != nullptr ? cost_of<PluginPass::forward> : nullptr,
                    .example = no_example}},
      gradient{.name = gradient_name.c_str(),
               .infer = infer_backward,
               .rule = nullptr,
               .kernel = {.name = gradient_name.c_str(),
                          .accumulates =
                              (table.flags & TRAINCTL_ADDS_GRADIENTS) != 0 ? (1U << TRAINCTL_MAX_OPERANDS) - 1 : 0U,
                          .cost = table.cost != nullptr ? cost_of<PluginPass::backward> : nullptr,
                          .example = no_example}},
      layer{.name = name.c_str(), .doc = table.doc} {
  constexpr std::array<const char*, 5> kFunctions = {"shapes", "rule", "forward", "backward", "cost"};
  for (size_t i = 0; i < kFunctions.size(); ++i)
    running_[i] = fmt::format("plugin {}: {} of op {}", file, kFunctions[i], name);
  op.no_gradient = inputs_without_gradient(*this);
  for (int32_t i = 0; i < c.num_attributes; ++i) layer.fields.push_back(field_of(c.attributes[i]));
  layer.min_inputs = layer.max_inputs = c.num_inputs;
  layer.num_outputs = kFixedOutputs.at(static_cast<size_t>(c.num_outputs));
  layer.emit = [this](LayerContext& context) { return LayerOutputs(emit(*this, context)); };
}

bool PluginOp::is_differentiable(size_t i) const {
  if (i >= static_cast<size_t>(c.num_inputs)) return true;
  return c.inputs[i].kind == TRAINCTL_FLOATS && c.inputs[i].no_gradient == 0;
}

const PluginOp& plugin_op(const Attrs& attrs) {
  const auto found = plugin_ops().by_key.find(attrs.text(kPluginOp));
  check(found != plugin_ops().by_key.end(), "the plugin of a node is loaded");
  return *found->second;
}

const PluginOp* find_plugin_kernel(std::string_view kernel) {
  const auto found = plugin_ops().by_kernel.find(kernel);
  return found == plugin_ops().by_kernel.end() ? nullptr : found->second;
}

void add_plugin_op(const std::string& file, const std::string& digest, const trainctl_op& table) {
  auto added = std::make_unique<PluginOp>(file, digest, table);
  const PluginOp& op = *added;
  plugin_ops().by_key.emplace(op.key, std::move(added));
  plugin_ops().in_order.push_back(&op);
  plugin_ops().by_kernel.emplace(op.name, &op);
  register_op(op.op);
  if (op.has_gradient()) {
    plugin_ops().by_kernel.emplace(op.gradient_name, &op);
    register_op(op.gradient);
  }
  register_layer(op.layer);
}

std::vector<const PluginOp*> ops_of_plugin(const std::string& digest) {
  std::vector<const PluginOp*> found;
  for (const PluginOp* op : plugin_ops().in_order)
    if (op->key.ends_with("@" + digest.substr(0, kKeyDigits))) found.push_back(op);
  return found;
}

BackwardOperands backward_operands(const Attrs& attrs) { return {attrs.ints(kOutputGrads), attrs.ints(kInputGrads)}; }

}  // namespace trainctl
