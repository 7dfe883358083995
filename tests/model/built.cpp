// Builds the graphs of jobs that are written as text in tests.
#include "tests/model/built.h"

#include <fmt/format.h>

#include "engine/base/text.h"
#include "engine/spec/parse.h"

namespace trainctl {
namespace {

/// The line of the job with the data set, for the shapes in `data`.
std::string dataset(const Data& data) {
  return fmt::format("dataset: {{type: random, shape: {}, dtype: {}, label_dtype: {}, classes: 9, batch: 8}}\n",
                     to_string(data.shape), data.integer ? "i32" : "f32", data.integer_label ? "i32" : "f32");
}

std::string names(const Graph& graph, const std::vector<TensorId>& tensors) {
  std::vector<std::string> words;
  for (TensorId id : tensors) words.push_back(graph.tensors[id].name);
  return join(words);
}

}  // namespace

Graph build(const std::string& text, const Data& data) {
  const DataShapes shapes = data_and_label(data.shape, data.label, data.integer, data.integer_label);
  return build_graph(parse_job(dataset(data) + text, "job.yaml"), shapes);
}

std::vector<std::string> problems(const std::string& text, const Data& data) {
  std::vector<std::string> found;
  try {
    build(text, data);
  } catch (const SpecError& error) {
    for (const Diagnostic& d : error.diagnostics()) {
      found.push_back(fmt::format("{}:{} {}", d.pos.line, d.pos.column, d.message));
    }
  }
  return found;
}

std::vector<std::string> nodes(const Graph& graph, Phase phase) {
  std::vector<std::string> lines;
  for (const Node& node : graph.nodes) {
    if (node.phase != phase) continue;
    lines.push_back(fmt::format("{} = {}({})", names(graph, node.outputs), node.op, names(graph, node.inputs)));
  }
  return lines;
}

const Tensor& tensor(const Graph& graph, const std::string& name) {
  const auto found = graph.find_tensor(name);
  check(found.has_value(), "no tensor " + name);
  return graph.tensors[*found];
}

const Layer& layer(const Graph& graph, const std::string& name) {
  const auto found = graph.find_layer(name);
  check(found.has_value(), "no layer " + name);
  return graph.layers[*found];
}

}  // namespace trainctl
