// hybrid_parallel: parameters and states without cuts in a strategy follow the factors that it cuts, and two
// strategies for a shared parameter must agree.
#include <doctest/doctest.h>

#include "tests/plan/planned.h"

using namespace trainctl;

namespace {

std::string job(const std::string& network, const std::string& strategies) {
  return dataset(8, "[16]", "[16]") + "network:\n" + network + R"(loss: mse
launch: {ranks: 4}
parallel:
  mode: hybrid_parallel
  full_batch: true
  strategies:
)" + strategies;
}

const char* const kShared =
    "  - {name: a, type: dense, units: 16}\n"
    "  - {name: b, type: dense, units: 16, share: a}\n";

}  // namespace

TEST_CASE("a bias without cuts in the strategy is cut as its weight's out dim") {
  const Planned p = planned(job("  - {name: a, type: dense, units: 16}\n", "    a: [[1, 1], [2, 1]]\n"));
  CHECK(p.variable("a.weight").global_shape == Shape{32, 16});
  CHECK(p.variable("a.bias").global_shape == Shape{32});
  CHECK(p.variable("a.bias").layout.dims == std::vector<Axes>{{0}});
  const TensorId gradient = p.graph.find_tensor("grad.a.bias").value();
  const Node& node = p.graph.nodes[p.graph.tensors[gradient].producer];
  CHECK(output_layout(p.graph, p.plan, node, 0).partial == Axes{1});
}

TEST_CASE("a bias stays whole if only the contraction is cut, and otherwise has exactly the axes of the out dim") {
  const Planned rows = planned(job("  - {name: a, type: dense, units: 16}\n", "    a: [[1, 1], [1, 4]]\n"));
  CHECK(rows.variable("a.bias").global_shape == Shape{16});
  const Planned both =
      planned(job("  - {name: a, type: dense, units: 16}\n", "    a: [[1, 1], [2, 3]]\n"), {"launch.ranks=6"});
  CHECK(both.variable("a.weight").layout.dims == std::vector<Axes>{{1}, {0}});
  CHECK(both.variable("a.bias").layout.dims == std::vector<Axes>{{1}});
}

TEST_CASE("a bias of one element per rank follows too") {
  const Planned p = planned(dataset(8, "[16]") + R"(network: [{name: a, type: dense, units: 1}]
loss: mse
launch: {ranks: 4}
parallel: {mode: hybrid_parallel, strategies: {a: [[1, 1], [4, 1]]}}
)");
  CHECK(p.variable("a.weight").global_shape == Shape{4, 16});
  CHECK(p.variable("a.bias").global_shape == Shape{4});
}

TEST_CASE("the cuts that a strategy gives a bias are used") {
  const Planned p = planned(job("  - {name: a, type: dense, units: 16}\n", "    a: [[1, 1], [2, 1], [1]]\n"));
  CHECK(p.variable("a.bias").global_shape == Shape{16});
}

TEST_CASE("beta and the running statistics follow gamma") {
  const Planned p = planned(job("  - {name: bn, type: batch_norm}\n", "    bn: [[1, 1], [2]]\n"));
  for (const VariablePlan& variable : p.plan.variables) {
    CAPTURE(p.graph.tensors[variable.tensor].name);
    CHECK(variable.global_shape == Shape{32});
    CHECK(variable.layout.dims == std::vector<Axes>{{0}});
  }
  CHECK(p.plan.variables.size() == 4);
}

TEST_CASE("layers that share a parameter use the cuts of the one with a strategy, biases as well") {
  for (const char* strategy : {"    a: [[1, 1], [2, 1]]\n", "    b: [[1, 1], [2, 1]]\n"}) {
    const Planned p = planned(job(kShared, strategy));
    CHECK(p.variable("a.weight").global_shape == Shape{32, 16});
    CHECK(p.variable("a.bias").global_shape == Shape{32});
    CHECK(p.variable("b.bias").global_shape == Shape{32});
  }
}

TEST_CASE("two strategies that cut a shared parameter differently are an error at the second") {
  CHECK(
      plan_errors(job(kShared, "    a: [[1, 1], [2, 1]]\n    b: [[1, 1], [4, 1]]\n")) ==
      std::vector<std::string>{"12:17: parallel.strategies.b: b cuts a.weight as [4, 1], but a, which shares it, cuts "
                               "it as [2, 1] | write [2, 1] here, or [4, 1] there"});
  CHECK(plan_errors(job(kShared, "    a: [[1, 1], [2, 1]]\n    b: [[1, 1], [2, 1]]\n")).empty());
}
