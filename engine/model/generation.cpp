// The graphs of text generation, made of the network of a job.
#include "engine/model/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/model/evaluation.h"
#include "engine/model/model.h"
#include "engine/model/token_positions.h"
#include "engine/ops/attention/sinks.h"
#include "engine/ops/op_def.h"
#include "engine/spec/adapters.h"

namespace trainctl {
namespace {

constexpr const char* kWholeCache = "cached attention needs all positions and whole heads on one rank";

DataShapes shapes_of(const JobSpec& spec, int64_t positions) {
  return {{{tokens_input(spec), {positions}, true}, {"documents", {positions}, true}}};
}

/// Replaces the ops that depend on positions by those that read the caches and the first positions.
class CachedNetwork {
 public:
  CachedNetwork(Graph& graph, const GenerationSize& size) : graph_(graph), size_(size) {
    Tensor starts{.name = std::string(kStartsInput), .shape = {size.rows}, .dtype = DType::i32};
    starts.kind = TensorKind::input;
    starts.batch = {.dim = 0, .rows = size.rows, .sized = 1};
    starts_ = add(std::move(starts));
  }

  void replace() {
    for (Node& node : graph_.nodes) {
      const InGeneration way = get_op(node.op).in_generation;
      if (way == InGeneration::reads_caches) replace_attention(node);
      if (way == InGeneration::reads_starts) add_starts(node);
    }
  }

 private:
  TensorId add(Tensor tensor) {
    graph_.tensors.push_back(std::move(tensor));
    return static_cast<TensorId>(graph_.tensors.size()) - 1;
  }

  int factor(Node& node, std::string name, int64_t size) {
    std::vector<Factor>& factors = graph_.layers[static_cast<size_t>(node.layer)].factors;
    factors.push_back({.name = std::move(name), .size = size, .cuttable = false, .why_not = kWholeCache});
    return static_cast<int>(factors.size()) - 1;
  }

  /// Adds the first positions, in place of documents.
  void add_starts(Node& node) {
    if (graph_.tensors[static_cast<size_t>(node.inputs.back())].dtype == DType::i32) {
      node.inputs.pop_back();
      node.rule.inputs.pop_back();
    }
    node.inputs.push_back(starts_);
    node.rule.inputs.push_back({node.rule.inputs[0][0]});
    node.attrs.set("positions", size_.positions);
  }

  TensorId cache(const Node& node, const char* name, int64_t features) {
    const std::string& layer = graph_.layers[static_cast<size_t>(node.layer)].name;
    Tensor tensor{.name = layer + "." + name, .shape = {size_.rows, size_.positions, features}};
    tensor.dtype = graph_.tensors[static_cast<size_t>(node.inputs[0])].dtype;
    tensor.kind = TensorKind::state;
    tensor.is_cache = true;
    return add(std::move(tensor));
  }

  const Shape& shape_of(TensorId tensor) const { return graph_.tensors[static_cast<size_t>(tensor)].shape; }

  /// Replaces attention by cached_attention, which reads and extends caches of keys and values.
  void replace_attention(Node& node) {
    const bool has_sinks = node.attrs.flag(kSinks);
    const TensorId sinks = node.inputs.back();
    const TensorRule of_sinks = node.rule.inputs.back();
    const bool packed = node.inputs.size() - (has_sinks ? 1 : 0) <= 2;
    const size_t kept = packed ? 1 : 3;
    node.inputs.resize(kept);
    node.rule.inputs.resize(kept);
    const DimRule batch = node.rule.inputs[0][0], rows = {factor(node, "positions", size_.positions)};
    DimRule keys, values;
    int64_t key_features = 0, value_features = 0;
    if (packed) {
      const int64_t d = node.attrs.integer("head_dim"), unit = (node.attrs.integer("group", 1) + 2) * d;
      key_features = value_features = shape_of(node.inputs[0])[2] / unit * d;
      const bool by_heads = node.attrs.text("packing", "heads") == "heads";
      if (by_heads) keys.push_back(node.rule.inputs[0][2].front());
      keys.push_back(factor(node, "features", by_heads ? d : key_features));
      values = keys;
    } else {
      key_features = shape_of(node.inputs[1])[2], value_features = shape_of(node.inputs[2])[2];
      keys = node.rule.inputs[1][2], values = node.rule.inputs[2][2];
    }
    const TensorId k = cache(node, "cached_keys", key_features), v = cache(node, "cached_values", value_features);
    node.inputs.insert(node.inputs.begin(), {k, v, starts_});
    node.rule.inputs.insert(node.rule.inputs.begin(), {{batch, rows, keys}, {batch, rows, values}, {batch}});
    if (has_sinks) {
      node.inputs.push_back(sinks);
      node.rule.inputs.push_back(of_sinks);
    }
    node.op = "cached_attention";
    node.attrs.erase("mask");
    node.outputs.resize(1);
    node.rule.outputs.resize(1);
  }

  Graph& graph_;
  const GenerationSize size_;
  TensorId starts_ = -1;
};

/// Without nodes that only keep statistics of a training. The outputs of a layer that passes its input on are that
/// input's, also where other layers read them.
Graph without_statistics(const Graph& network) {
  std::vector<TensorId> wanted;
  for (const Layer& layer : network.layers)
    for (const std::vector<TensorId>* tensors : {&layer.inputs, &layer.outputs})
      wanted.insert(wanted.end(), tensors->begin(), tensors->end());
  Graph graph = forward_part(network, wanted);
  auto next = wanted.begin();
  for (Layer& layer : graph.layers)
    for (std::vector<TensorId>* tensors : {&layer.inputs, &layer.outputs})
      for (TensorId& tensor : *tensors) tensor = *next++;
  return graph;
}

/// The network of the job with `tokens` tokens of each text at a time, all nodes.
Graph cached_network(const JobSpec& spec, const GenerationSize& size, int64_t tokens) {
  Graph graph = without_statistics(build_graph(spec, shapes_of(spec, size.positions)));
  graph.is_evaluation = true;
  set_token_count(graph, size.positions, tokens);
  CachedNetwork(graph, size).replace();
  return graph;
}

TensorId output_of(const Graph& graph, const JobSpec& spec, const std::string& layer) {
  const auto found = graph.find_layer(read_layer(spec, layer));
  check(found.has_value(), "the layer of the logits is one of the network");
  return graph.layers[static_cast<size_t>(*found)].outputs.at(0);
}

}  // namespace

std::string tokens_input(const JobSpec& spec) {
  if (!spec.adapters.names.empty())
    throw SpecError(
        spec.position("adapters.names"), "adapters.names",
        "text generation supports one adapter, because a prompt has no field " + spec.adapters.field,
        "export one of them with `trainctl checkpoint export --adapter NAME`, and generate with that model");
  std::set<std::string> outputs;
  std::string tokens;
  for (const LayerSpec& layer : spec.network) {
    for (const std::string& input : layer.inputs) {
      if (outputs.contains(input) || input == "documents" || input == tokens) continue;
      if (!tokens.empty() || input == "label")
        throw SpecError(spec.position(layer.path), layer.path,
                        "text generation supports networks that read only tokens, but this layer also reads '" + input +
                            "'" + (tokens.empty() ? "" : ", beside '" + tokens + "'"));
      tokens = input;
    }
    for (std::string& name : layer.output_names()) outputs.insert(std::move(name));
  }
  return tokens.empty() ? "data" : tokens;
}

int64_t most_positions(const JobSpec& spec) {
  int64_t most = 0;
  for (const LayerSpec& layer : spec.network) {
    if (!layer.attrs.has("max_length")) continue;  // only tables of positions have it
    const int64_t rows = layer.attrs.integer("max_length");
    most = most == 0 ? rows : std::min(most, rows);
  }
  return most;
}

Graph decode_graph(const JobSpec& spec, const GenerationSize& size, const std::string& output) {
  const Graph network = cached_network(spec, size, 1);
  const TensorId logits = output_of(network, spec, output);
  const Shape& shape = network.tensors[static_cast<size_t>(logits)].shape;
  if (num_elements(shape) != size.rows * shape.back())
    throw SpecError({}, output,
                    fmt::format("its output is {} for one token of {} texts, expected one row of logits per text",
                                to_string(shape), size.rows),
                    "text generation needs a network whose last layer computes the logits of each position");
  return prediction_graph(network, logits);
}

Graph prefill_graph(const JobSpec& spec, const GenerationSize& size, int64_t tokens) {
  const Graph network = cached_network(spec, size, tokens);
  std::vector<TensorId> wanted;
  for (const Node& node : network.nodes)
    if (network.tensors[static_cast<size_t>(node.inputs[0])].is_cache) wanted.push_back(node.outputs[0]);
  Graph graph = forward_part(network, wanted);
  verify_graph(graph);
  return graph;
}

}  // namespace trainctl
