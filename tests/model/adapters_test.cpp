// Tests of frozen parameters and of the layers of adapters.
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/model/model.h"
#include "engine/spec/parse.h"
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

namespace {

/// A mixture with a shared expert, whose layers the pattern of the adapters names.
Graph mixture_with(const std::string& pattern) {
  const JobSpec spec = parse_job(R"(
dataset: {type: random, shape: [4, 6], label_shape: [4, 6], label_dtype: f32, batch: 4}
parallel: {recompute: ['moe.shared_*.lora*']}
network:
  - {name: moe, type: moe, experts: 4, top_k: 2, hidden: 8, shared_hidden: 10}
loss: mse
adapters: {lora: {rank: 2, layers: [')" +
                                     pattern + "']}}\n",
                                 "job.yaml");
  return build_graph(spec, data_and_label({4, 6}, {4, 6}));
}

}  // namespace

TEST_CASE("adapters adapt the dense layers of a shared expert, whose readers read the sum") {
  CHECK(trained_names(mixture_with("moe.shared_*")) ==
        std::vector<std::string>{"moe.shared_gate.lora_a.weight", "moe.shared_gate.lora_b.weight",
                                 "moe.shared_up.lora_a.weight", "moe.shared_up.lora_b.weight",
                                 "moe.shared_down.lora_a.weight", "moe.shared_down.lora_b.weight"});
  const Graph graph = mixture_with("moe.shared_down");
  const auto adapted = graph.find_tensor("moe.shared_down.lora");
  REQUIRE(adapted.has_value());
  CHECK(std::ranges::any_of(graph.nodes, [&](const Node& node) {
    return node.name.starts_with("moe.shared") && !node.name.starts_with("moe.shared_") &&
           std::ranges::count(node.inputs, *adapted) > 0;
  }));
}

TEST_CASE("adapters are for dense layers") {
  CHECK(adapter_error({"adapters={lora: {layers: [norm1], rank: 2}}"}).find("names no dense layer") !=
        std::string::npos);
  CHECK(adapter_error({"adapters={lora: {layers: [other], rank: 2}}"}).find("no layer matches 'other'") !=
        std::string::npos);
}

namespace {

const char* const kAllDense = "adapters={lora: {layers: ['fc*'], rank: 2}}";
const char* const kDora = "adapters={lora: {layers: [fc2], rank: 2, dora: true}}";
const char* const kFromFolder = "weights={from: base, map: llama}";

}  // namespace

TEST_CASE("train.frozen_type stores the weights of frozen dense layers in fewer bits, but the last layer's") {
  const Graph graph = graph_with({kAllDense, "train.frozen_type=bf16"});
  for (const char* layer : {"fc1", "fc2", "head"}) {
    CAPTURE(layer);
    const auto weight = graph.find_tensor(std::string(layer) + ".weight");
    REQUIRE(weight.has_value());
    const Tensor& tensor = graph.tensors[static_cast<size_t>(*weight)];
    const bool is_last = std::string(layer) == "head";
    CHECK(tensor.packing == (is_last ? Packing::none : Packing::bf16));
    CHECK(tensor.dtype == (is_last ? DType::f32 : DType::bf16));
    CHECK(computes_tensor(graph, std::string(layer) + ".unpacked") != is_last);
  }
  CHECK(graph.tensors[static_cast<size_t>(*graph.find_tensor("fc1.bias"))].packing == Packing::none);
  CHECK(graph.tensors[static_cast<size_t>(*graph.find_tensor("fc1.lora_a.weight"))].packing == Packing::none);
}

TEST_CASE("a weight whose rows do not consist of whole blocks is refused, with the remedy") {
  const std::string error = adapter_error({kAllDense, kFromFolder, "train.frozen_type=nf4", "dataset.shape=[20]"});
  CHECK(error.find("nf4 needs rows whose length is a multiple of 64; set train.frozen_type: bf16") !=
        std::string::npos);
}

TEST_CASE("what is frozen has a type: without adapters and weights, nf4 is refused") {
  CHECK(adapter_error({"train.frozen_type=nf4"}).find("nothing is frozen, so nothing is stored as nf4") !=
        std::string::npos);
  CHECK(adapter_error({kAllDense, "train.frozen_type=nf4"}).find("nf4 needs adapters, and weights") !=
        std::string::npos);
}

TEST_CASE("dora trains the norms of the rows as well, and no gradient flows through the norm that divides") {
  const Graph graph = graph_with({kDora, kFromFolder});
  CHECK(trained_names(graph) ==
        std::vector<std::string>{"fc2.lora_a.weight", "fc2.lora_b.weight", "fc2.dora.magnitude"});
  const Tensor& norms = graph.tensors[static_cast<size_t>(*graph.find_tensor("fc2.dora.magnitude"))];
  CHECK(norms.init.kind == Init::Kind::row_norms);
  CHECK(norms.init.of == "fc2.weight");
  CHECK_FALSE(computes_tensor(graph, "grad.fc2.dora.squares"));
  CHECK(adapter_error({kDora}).find("the job has no weights, whose rows have the norms that it trains") !=
        std::string::npos);
}

TEST_CASE("several adapters need names and a field of the samples") {
  const std::string lora = "lora: {layers: [fc2], rank: 2}";
  CHECK(adapter_error({"adapters={names: [a, b], " + lora + "}"}).find("no field states which adapter a sample uses") !=
        std::string::npos);
  CHECK(adapter_error({"adapters={field: topic, " + lora + "}"}).find("the adapters have no names") !=
        std::string::npos);
  CHECK(adapter_error({"adapters={names: [a, a], field: topic, " + lora + "}"}).find("'a' is there twice") !=
        std::string::npos);
  CHECK(adapter_error({"adapters={names: [a, b], field: topic, " + lora + "}"})
            .find("there is no earlier layer 'topic'") != std::string::npos);
}
