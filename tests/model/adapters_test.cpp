// Frozen parameters, and the layers of adapters.
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/model/model.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

Graph graph_with(const std::vector<std::string>& overrides) {
  const JobSpec spec = job_spec("classifier", overrides);
  return build_graph(spec, data_and_label(spec.dataset.shape, {}, false, true));
}

std::vector<std::string> trained_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Update& update : graph.updates) names.push_back(graph.tensors[static_cast<size_t>(update.parameter)].name);
  return names;
}

std::string adapter_error(const std::vector<std::string>& overrides) {
  try {
    graph_with(overrides);
  } catch (const SpecError& error) {
    return error.what();
  }
  return "";
}

bool computes_tensor(const Graph& graph, const std::string& tensor) { return graph.find_tensor(tensor).has_value(); }

}  // namespace

TEST_CASE("a frozen parameter has no gradient and no update, and nothing before the first trained one has a gradient") {
  const Graph graph = graph_with({"train.freeze=['fc1.*', 'fc2.bias']"});
  const std::vector<std::string> names = trained_names(graph);
  CHECK(names.front() == "norm1.weight");
  CHECK(std::ranges::count(names, "fc2.weight") == 1);
  CHECK(std::ranges::count(names, "fc2.bias") == 0);
  CHECK(computes_tensor(graph, "grad.fc2.weight"));
  CHECK_FALSE(computes_tensor(graph, "grad.fc2.bias"));
  CHECK_FALSE(computes_tensor(graph, "grad.fc1.weight"));
  CHECK_FALSE(computes_tensor(graph, "grad.fc1"));
}

TEST_CASE("a pattern of train.freeze names a parameter, and something is left to train") {
  CHECK(adapter_error({"train.freeze=['fc9.*']"}).find("no parameter matches 'fc9.*'") != std::string::npos);
  CHECK(adapter_error({"train.freeze=['*']"}).find("nothing is trained") != std::string::npos);
}

TEST_CASE("with adapters only they are trained, unless train.freeze names what is not") {
  const std::string lora = "adapters={lora: {layers: ['fc*'], rank: 2, dropout: 0.1}}";
  CHECK(trained_names(graph_with({lora})) ==
        std::vector<std::string>{"fc1.lora_a.weight", "fc1.lora_b.weight", "fc2.lora_a.weight", "fc2.lora_b.weight"});
  const std::vector<std::string> names = trained_names(graph_with({lora, "train.freeze=['fc*', 'norm*']"}));
  CHECK(std::ranges::count(names, "head.weight") == 1);
  CHECK(std::ranges::count(names, "fc1.lora_a.weight") == 1);
  CHECK(std::ranges::count(names, "fc1.weight") == 0);
}

TEST_CASE("readers of an adapted layer, and the loss, read the sum with its adapter") {
  const Graph graph = graph_with({"adapters={lora: {layers: [fc2, head], rank: 2}}"});
  const auto reads = [&](const std::string& node, const std::string& tensor) {
    const auto id = graph.find_tensor(tensor);
    REQUIRE(id.has_value());
    return std::ranges::any_of(
        graph.nodes, [&](const Node& n) { return n.name.starts_with(node) && std::ranges::count(n.inputs, *id) > 0; });
  };
  CHECK(reads("skip", "fc2.lora"));
  CHECK_FALSE(reads("skip", "fc2"));
  CHECK(reads("loss", "head.lora"));
  CHECK(reads("fc2.lora_a", "act1"));
}

TEST_CASE("adapters are for dense layers") {
  CHECK(adapter_error({"adapters={lora: {layers: [norm1], rank: 2}}"}).find("names no dense layer") != std::string::npos);
  CHECK(adapter_error({"adapters={lora: {layers: [other], rank: 2}}"}).find("no layer matches 'other'") !=
        std::string::npos);
}
