// LayerBuilder: forward nodes, and the factors of a layer from its ops' letters.
#include "engine/ops/layer_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "engine/base/error.h"
#include "engine/ops/expect.h"
#include "engine/ops/float_type.h"
#include "engine/ops/trace_batch.h"

namespace trainctl {
namespace {

using Dims = std::vector<std::string>;

constexpr const char* kReadInOtherParts = "the layer views this dim as other dims, of which none can be cut";

/// The size of every letter of the operands' dims; some sizes are given. If a dim has exactly one letter of unknown
/// size, that size follows from the size of the dim.
std::map<char, int64_t> letter_sizes(const std::vector<std::pair<Dims, Shape>>& operands,
                                     const std::vector<std::pair<char, int64_t>>& given) {
  std::map<char, int64_t> sizes(given.begin(), given.end());
  for (bool progress = true; progress;) {
    progress = false;
    for (const auto& [dims, shape] : operands) {
      for (size_t d = 0; d < dims.size(); ++d) {
        int64_t rest = shape[d];
        std::string unknown;
        for (char letter : dims[d]) {
          const auto it = sizes.find(letter);
          if (it == sizes.end()) unknown += letter;
          if (it != sizes.end()) rest /= it->second;
        }
        if (unknown.size() != 1) continue;
        sizes[unknown[0]] = rest;
        progress = true;
      }
    }
  }
  return sizes;
}

/// `letter`, or the next one that is not yet a factor of the layer.
std::string free_name(const Layer& layer, char letter) {
  const std::string all = std::string(1, letter) + letters(52);
  for (char name : all) {
    const auto taken = [&](const Factor& f) { return f.name[0] == name; };
    if (std::none_of(layer.factors.begin(), layer.factors.end(), taken)) return std::string(1, name);
  }
  shape_error("a layer has more than 52 factors");
}

/// Reports an op's errors about its inputs under the layer's type, because a user who wrote `dense` does not know about
/// matmul.
std::vector<TensorInfo> infer_as(const std::string& type, const OpDef& op, const std::vector<TensorInfo>& inputs,
                                 const Attrs& attrs) {
  try {
    return op.infer(inputs, attrs);
  } catch (const ShapeError& error) {
    const std::string_view text = error.what(), name = op.name;
    if (!text.starts_with(name)) throw;
    shape_error(type + std::string(text.substr(name.size())));
  }
}

}  // namespace

TensorId LayerBuilder::add_tensor(Tensor tensor) {
  if (graph_.find_tensor(tensor.name)) {
    shape_error(fmt::format("the name '{}' is used by another layer; rename one of them", tensor.name));
  }
  expect_size(tensor.name, tensor.shape);
  graph_.tensors.push_back(std::move(tensor));
  return static_cast<TensorId>(graph_.tensors.size() - 1);
}

TensorId LayerBuilder::parameter(std::string_view name, Shape shape, Init init) {
  const Packing packing = name == "weight" ? packing_ : Packing::none;
  if (has_blocks(packing) && shape.back() % kPackedBlock != 0)
    shape_error(
        fmt::format("its weight is {}, but {} needs rows whose length is a multiple of {}; set "
                    "train.frozen_type: bf16, or remove it",
                    to_string(shape), to_string(packing), kPackedBlock));
  shape = packed_shape(std::move(shape), packing);
  if (!owner_.empty()) {
    const auto owned = graph_.find_tensor(fmt::format("{}.{}", owner_, name));
    check(owned && graph_.tensors[*owned].shape == shape, "a copy of a layer has the parameters of its owner");
    return *owned;
  }
  Tensor tensor{.name = fmt::format("{}.{}", this->name(), name), .shape = std::move(shape)};
  tensor.kind = TensorKind::parameter;
  tensor.packing = packing;
  tensor.dtype = packing == Packing::none ? parameter_type_ : has_blocks(packing) ? DType::i32 : DType::bf16;
  tensor.init = init;
  return add_tensor(std::move(tensor));
}

TensorId LayerBuilder::unpacked(TensorId parameter) {
  const Packing packing = graph_.tensors[parameter].packing;
  if (packing == Packing::none) return parameter;
  Attrs attrs{{"packing", std::string(to_string(packing))}};
  set_float_type(parameter_type_, attrs);
  return emit("unpack_weight", {parameter}, std::move(attrs), "unpacked")[0];
}

TensorId LayerBuilder::state(std::string_view name, Shape shape, double value) {
  if (!owner_.empty())
    shape_error(fmt::format("{} has running statistics, so the network cannot be its own reference", owner_));
  Tensor tensor{.name = fmt::format("{}.{}", this->name(), name), .shape = std::move(shape)};
  tensor.kind = TensorKind::state;
  tensor.init = {Init::Kind::constant, value};
  return add_tensor(std::move(tensor));
}

std::map<char, DimRule> LayerBuilder::known_letters(const std::vector<TensorId>& inputs, const RuleLetters& dims,
                                                    const std::map<char, int64_t>& sizes, std::string& uncut) const {
  std::map<char, DimRule> factors_of;
  const std::vector<Factor>& all = graph_.layers[layer_].factors;
  const auto add = [&](std::string dim, const DimRule& factors) {
    if (dim.size() > 1 && dim.size() != factors.size())
      std::erase_if(dim, [&](char letter) { return sizes.contains(letter) && sizes.at(letter) == 1; });
    if (dim.empty()) return;                                     // a dim of size 1, which nothing cuts
    const bool as_one = dim.size() == 1 && factors.size() != 1;  // none: a dim of size 1 that a view made
    if (!as_one && dim.size() != factors.size()) {
      check(std::none_of(factors.begin(), factors.end(), [&](int f) { return all[f].cuttable; }),
            "nodes of a layer agree on the factors of a dim");
      uncut += dim;
      return;
    }
    for (size_t k = 0; k < dim.size(); ++k) {
      const DimRule of_letter = as_one ? factors : DimRule{factors[k]};
      const auto [it, added] = factors_of.emplace(dim[k], of_letter);
      check(added || it->second == of_letter, "nodes of a layer agree on the factors of a tensor");
    }
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (const auto known = rules_.find(inputs[i]); known != rules_.end()) {
      for (size_t d = 0; d < dims.inputs[i].size(); ++d) add(dims.inputs[i][d], known->second[d]);
    } else if (const auto shared = shared_.find(inputs[i]); shared != shared_.end()) {
      for (const auto& [d, factors] : shared->second) add(dims.inputs[i].at(d), factors);
    }
  }
  return factors_of;
}

void LayerBuilder::share_factors(TensorId unread, size_t dim, TensorId known, size_t of_dim) {
  check(!rules_.contains(unread), "factors are shared before the tensor is read");
  shared_[unread][dim] = rule_of(known).at(of_dim);
}

void LayerBuilder::split_factors(TensorId unread, size_t dim, const Shape& sizes) {
  check(!rules_.contains(unread), "factors are split before the tensor is read");
  Layer& layer = graph_.layers[layer_];
  DimRule& factors = shared_[unread][dim];
  for (const int64_t size : sizes) {
    if (size == 1) continue;
    factors.push_back(static_cast<int>(layer.factors.size()));
    layer.factors.push_back({free_name(layer, 'a'), size});
    if (factors.size() == 1) continue;
    layer.factors.back().cuttable = false;
    layer.factors.back().why_not = kReadInOtherParts;
  }
}

Rule LayerBuilder::bind(const OpDef& op, const std::vector<TensorId>& inputs, const std::vector<TensorInfo>& outputs,
                        const Attrs& attrs, TensorId like) {
  std::vector<TensorInfo> infos;
  for (TensorId input : inputs) infos.push_back({graph_.tensors[input].shape, graph_.tensors[input].dtype});
  const RuleText text = op.rule(infos, attrs);
  const RuleLetters dims = parse_rule(text.text);
  check(dims.inputs.size() == inputs.size() && dims.outputs.size() == outputs.size(), "a rule covers all operands");

  std::vector<std::pair<Dims, Shape>> operands;
  for (size_t i = 0; i < inputs.size(); ++i) operands.emplace_back(dims.inputs[i], infos[i].shape);
  for (size_t i = 0; i < outputs.size(); ++i) operands.emplace_back(dims.outputs[i], outputs[i].shape);
  for (const auto& [operand, shape] : operands) check(operand.size() == shape.size(), "a rule covers all dims");
  const auto sizes = letter_sizes(operands, text.sizes);

  Layer& layer = graph_.layers[layer_];
  std::string uncut;
  std::map<char, DimRule> factors_of = known_letters(inputs, dims, sizes, uncut);
  for (size_t d = 0; like >= 0 && d < dims.outputs[0].size(); ++d) {
    const std::string& dim = dims.outputs[0][d];
    const DimRule& known = rule_of(like).at(d);
    if (dim.size() == 1) factors_of.emplace(dim[0], known);
    if (dim.size() < 2 || dim.size() != known.size()) continue;
    for (size_t k = 0; k < dim.size(); ++k) factors_of.emplace(dim[k], DimRule{known[k]});
  }
  const auto rule_from = [&](const Dims& letters_of_dims) {
    TensorRule rule;
    for (const std::string& dim : letters_of_dims) {
      rule.emplace_back();
      for (char letter : dim) {
        const auto [it, added] = factors_of.emplace(letter, DimRule{static_cast<int>(layer.factors.size())});
        if (added) layer.factors.push_back({free_name(layer, letter), sizes.at(letter)});
        for (int of_letter : it->second) {
          Factor& factor = layer.factors[of_letter];
          if (factor.cuttable && text.uncuttable.find(letter) != std::string::npos) {
            factor.cuttable = false;
            factor.why_not = text.why_not;
          }
          if (factor.cuttable && uncut.find(letter) != std::string::npos) {
            factor.cuttable = false;
            factor.why_not = kReadInOtherParts;
          }
          for (const auto& [given, size] : text.sizes)
            if (given == letter && factor.size == size) factor.why_size = text.why_size;
          rule.back().push_back(of_letter);
        }
      }
    }
    return rule;
  };
  Rule rule;
  for (const Dims& input : dims.inputs) rule.inputs.push_back(rule_from(input));
  for (const Dims& output : dims.outputs) rule.outputs.push_back(rule_from(output));
  for (char letter : text.inner) {
    const DimRule& factors = factors_of.at(letter);
    rule.inner.insert(rule.inner.end(), factors.begin(), factors.end());
  }
  check(rule.inner.empty() || op.inner_sum.has_value(), "an op with inner letters must define how it sums over them");
  return rule;
}

std::vector<TensorId> LayerBuilder::emit(std::string_view op_name, std::vector<TensorId> inputs, Attrs attrs,
                                         std::string_view suffix, TensorId like) {
  const OpDef& op = get_op(op_name);
  std::vector<TensorInfo> infos;
  for (TensorId input : inputs) infos.push_back({graph_.tensors[input].shape, graph_.tensors[input].dtype});
  const std::vector<TensorInfo> outputs = infer_as(graph_.layers[layer_].type, op, infos, attrs);
  for (const TensorInfo& output : outputs) expect_size(name(), output.shape);

  Node node{.name = suffix.empty() ? name() : fmt::format("{}.{}", name(), suffix), .op = op.name};
  node.layer = layer_;
  node.rule = bind(op, inputs, outputs, attrs, like);
  for (size_t i = 0; i < outputs.size(); ++i) {
    Tensor tensor{.name = i == 0 ? node.name : fmt::format("{}.{}", node.name, i), .shape = outputs[i].shape};
    tensor.dtype = outputs[i].dtype;
    tensor.producer = static_cast<NodeId>(graph_.nodes.size());
    node.outputs.push_back(add_tensor(std::move(tensor)));
  }

  Layer& layer = graph_.layers[layer_];
  std::set<TensorId> outside;
  for (TensorId input : inputs) {
    if (!rules_.contains(input)) outside.insert(input);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!outside.contains(inputs[i])) continue;
    rules_.emplace(inputs[i], node.rule.inputs[i]);
    layer.inputs.push_back(inputs[i]);
    layer.input_rules.push_back(node.rule.inputs[i]);
  }
  for (size_t i = 0; i < outputs.size(); ++i) rules_.emplace(node.outputs[i], node.rule.outputs[i]);
  node.inputs = std::move(inputs);
  node.attrs = std::move(attrs);
  trace_batch(graph_, node);
  std::vector<TensorId> made = node.outputs;
  graph_.nodes.push_back(std::move(node));
  return made;
}

void LayerBuilder::finish(const std::vector<TensorId>& outputs, const std::vector<std::string>& names) {
  Layer& layer = graph_.layers[layer_];
  const std::vector<TensorId> inputs = std::move(layer.inputs);
  const std::vector<TensorRule> rules = std::move(layer.input_rules);
  layer.inputs.clear();
  layer.input_rules.clear();
  for (const bool parameters : {false, true}) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const TensorKind kind = graph_.tensors[inputs[i]].kind;
      if (kind == TensorKind::state || (kind == TensorKind::parameter) != parameters) continue;
      layer.inputs.push_back(inputs[i]);
      layer.input_rules.push_back(rules[i]);
    }
  }
  layer.outputs = outputs;
  layer.output_rules.clear();
  for (TensorId output : outputs) layer.output_rules.push_back(rule_of(output));
  if (outputs.size() > 1) name_outputs(outputs, names);
}

void LayerBuilder::name_outputs(const std::vector<TensorId>& outputs, const std::vector<std::string>& names) {
  check(names.size() == outputs.size(), "each of several outputs has a name");
  for (TensorId output : outputs) graph_.tensors[output].name.clear();
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::string full = fmt::format("{}.{}", name(), names[i]);
    if (graph_.find_tensor(full))
      shape_error(fmt::format("an output cannot be named '{}', because the layer uses that name internally", names[i]));
    graph_.tensors[outputs[i]].name = std::move(full);
  }
}

const TensorRule& LayerBuilder::rule_of(TensorId tensor) const {
  const auto it = rules_.find(tensor);
  check(it != rules_.end(), "rule_of: the layer does not touch this tensor");
  return it->second;
}

}  // namespace trainctl
