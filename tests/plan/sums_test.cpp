// Tests that partial sums are added where they are made, before they move, and that the rest of a layer is computed
// where its result is read.
#include <doctest/doctest.h>

#include "tests/plan/planned.h"

using namespace trainctl;

namespace {

using Words = std::vector<std::string>;

std::string sums_job(const std::string& network, const std::string& strategies, const std::string& more = "") {
  return "name: sums\n" + dataset(64, "[64]", "[64]") + "network:\n" + network +
         "loss: mse\nparallel:\n  mode: semi_auto_parallel\n  strategies: {" + strategies + "}\n" + more +
         "launch: {ranks: 4}\n";
}

/// A network in which three products, cut by their output columns, and a residual read x.
const std::string kReaders = R"(
  - {name: x, type: dense, units: 64}
  - {name: a, type: dense, units: 64, inputs: [x]}
  - {name: b, type: dense, units: 64, inputs: [x]}
  - {name: ab, type: mul, inputs: [a, b]}
  - {name: c, type: dense, units: 64, inputs: [x]}
  - {name: abc, type: mul, inputs: [ab, c]}
  - {name: out, type: dense, units: 64, bias: false}
  - {name: sum, type: add, inputs: [out, x]}
)";
const std::string kColumns = "a: [[1, 1], [4, 1]], b: [[1, 1], [4, 1]], c: [[1, 1], [4, 1]], out: [[1, 4], [1, 4]]";

}  // namespace

TEST_CASE("the gradients of a tensor's readers are added before they are summed over ranks, the residual's last") {
  const Planned p = planned(sums_job(kReaders, kColumns + ", x: [[1, 1]], sum: [[1, 1], [1, 1]]"));
  CHECK(broken_rule(p).empty());
  CHECK(p.moves(Phase::backward) == Words{"all_reduce grad.x.sum2"});
  CHECK(p.layer("x").reason.ends_with("; terms of its gradient are added before all_reduce"));
}

TEST_CASE("terms whose layouts differ are added in the layout in which the gradient is read") {
  const Planned p = planned(sums_job(kReaders, kColumns + ", x: [[4, 1]], sum: [[4, 1], [4, 1]]"));
  CHECK(broken_rule(p).empty());
  CHECK(p.moves(Phase::backward) == Words{"all_gather grad.sum", "reduce_scatter grad.x.sum2"});
}

TEST_CASE("terms that are sums over different ranks cannot be added first, and the plan says so") {
  const Planned p = planned(sums_job(R"(
  - {name: x, type: dense, units: 66}
  - {name: a, type: dense, units: 66, inputs: [x]}
  - {name: b, type: dense, units: 66, inputs: [x]}
  - {name: ab, type: mul, inputs: [a, b]}
  - {name: out, type: dense, units: 64}
)",
                                     "x: [[1, 1]], a: [[1, 1], [3, 1]], b: [[1, 1], [2, 1]], ab: [[1, 1]]"),
                            {"launch.ranks=6"});
  CHECK(broken_rule(p).empty());
  CHECK(p.layer("x").reason.ends_with("; 2 terms of its gradient are summed over ranks separately"));
}

TEST_CASE("two products that are added directly are summed over ranks once") {
  const Planned p =
      planned(sums_job(R"(
  - {name: x, type: dense, units: 64}
  - {name: a, type: dense, units: 64, bias: false, inputs: [x]}
  - {name: b, type: dense, units: 64, bias: false, inputs: [x]}
  - {name: sum, type: add, inputs: [a, b]}
  - {name: norm, type: layer_norm}
)",
                       "x: [[1, 1], [4, 1]], a: [[1, 4], [1, 4]], b: [[1, 4], [1, 4]], sum: [[1, 1], [1, 1]], "
                       "norm: [[1, 1]]"));
  CHECK(broken_rule(p).empty());
  CHECK(p.moves(Phase::forward) == Words{"all_reduce sum"});
  CHECK(p.layer("sum").reason.ends_with("; its terms are added before all_reduce"));
}

TEST_CASE("a bias is added in the layout in which the sum is read") {
  const std::string network = R"(
  - {name: a, type: dense, units: 64}
  - {name: b, type: dense, units: 64}
  - {name: norm, type: layer_norm}
)";
  const std::string cuts = "a: [[1, 1], [4, 1]], b: [[1, 4], [1, 4]]";
  const Planned rows = planned(sums_job(network, cuts + ", norm: [[4, 1]]"));
  CHECK(broken_rule(rows).empty());
  CHECK(rows.moves(Phase::forward) == Words{"reduce_scatter b.matmul"});
  CHECK(rows.layer("b").reason.ends_with("; add_bias after reduce_scatter"));
  CHECK(rows.out("b") == rows.in("norm"));
  const Planned whole = planned(sums_job(network, cuts + ", norm: [[1, 1]]"));
  CHECK(whole.moves(Phase::forward) == Words{"all_reduce b.matmul"});
  CHECK(whole.plan.separate_nodes.empty());
}

TEST_CASE("terms of a gradient cross a stage border as one") {
  const Planned p = planned(sums_job(kReaders, "", "  stages: 2\n  stage_config: {x: 0, '*': 1}\n"));
  CHECK(broken_rule(p).empty());
  const Graph& graph = p.graph;
  for (const Node& node : graph.nodes) {
    if (node.phase == Phase::backward && graph.layers[node.layer].name == "x")
      CHECK(p.plan.stage_of(node) == (node.name.starts_with("x.grad_sum") ? 1 : 0));
  }
}
