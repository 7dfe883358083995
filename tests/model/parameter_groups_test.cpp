// Tests of groups of parameters: which patterns decide, and layers with several outputs in the graph.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/model/built.h"

using namespace trainctl;
using Lines = std::vector<std::string>;

namespace {

/// "fc.weight 0": each updated parameter and its group.
Lines groups(const Graph& graph) {
  Lines lines;
  for (const Update& update : graph.updates)
    lines.push_back(graph.tensors[static_cast<size_t>(update.parameter)].name + " " + std::to_string(update.group));
  return lines;
}

const std::string kNetwork =
    "network: [{name: a, type: dense, units: 4}, {name: ln, type: layer_norm}, {name: b, type: dense, units: 1}]\n"
    "loss: mse\n";

}  // namespace

TEST_CASE("a parameter belongs to the first group that has a pattern for it") {
  const Graph graph = build(kNetwork +
                            "optimizer: {type: adamw, groups: [{parameters: ['*.bias', '*ln*'], weight_decay: 0},\n"
                            "  {parameters: ['b.*'], learning_rate_scale: 0.1}]}\n");
  CHECK(groups(graph) == Lines{"a.weight -1", "a.bias 0", "ln.weight 0", "ln.bias 0", "b.weight 1", "b.bias 0"});
}

TEST_CASE("a pattern that decides nothing is an error") {
  CHECK(problems(kNetwork + "optimizer: {groups: [{parameters: ['*.wieght', a.bias]}, {parameters: a.bias}]}\n") ==
        Lines{"4:36 no parameter matches '*.wieght'",
              "4:71 all parameters that match 'a.bias' belong to earlier groups"});
}

TEST_CASE("outputs of a layer are named after it, and one that nothing reads has a gradient of zeros") {
  const Graph graph = build(
      "network: [{name: a, type: dense, units: 6}, {name: s, type: split, parts: 3, outputs: [x, y, z]}, "
      "{name: m, type: mul, inputs: [s.x, s.z]}]\nloss: mse\nprint: [s.y]\n",
      {.label = {2}});
  CHECK(layer(graph, "s").outputs.size() == 3);
  for (const char* name : {"s.x", "s.y", "s.z"}) CHECK(tensor(graph, name).shape == Shape{8, 2});
  CHECK(graph.prints.size() == 1);
  CHECK_FALSE(graph.find_tensor("grad.s.y"));
  const Lines backward = nodes(graph, Phase::backward);
  CHECK(std::find(backward.begin(), backward.end(), "grad.a = concat(grad.s.x, grad.s.z)") != backward.end());
}

TEST_CASE("an output that the batch sizes cannot be split") {
  CHECK(problems("network: [{name: s, type: split, parts: 2, dim: 0}]\n")[0].find("depends on the batch") !=
        std::string::npos);
}
