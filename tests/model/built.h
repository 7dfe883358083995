// Builds the graphs of jobs that are written as text in tests.
#pragma once

#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/model/model.h"

namespace trainctl {

/// The data set's shapes in these tests: data [12], one f32 label per sample.
struct Data {
  Shape shape = {12};
  Shape label = {};
  bool integer = false, integer_label = false;
};

/// Builds the graph of a job that consists of a data set (batch 8) on its first line, followed by `text`.
Graph build(const std::string& text, const Data& data = {});

/// The errors of a job that must not build: "line:column message".
std::vector<std::string> problems(const std::string& text, const Data& data = {});

/// One line per node of the phase: "layer1.matmul = matmul(data, layer1.weight)".
std::vector<std::string> nodes(const Graph& graph, Phase phase);

const Tensor& tensor(const Graph& graph, const std::string& name);
const Layer& layer(const Graph& graph, const std::string& name);

}  // namespace trainctl
