// What every row of the table must pass, forward and backward.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/ops/kernel.h"
#include "tests/op_cases/simulate.h"

namespace trainctl {
namespace {

/// The largest difference, as a part of the largest expected element. NaNs are infinitely wrong.
double error(const std::vector<double>& got, const std::vector<double>& expected) {
  if (got.size() != expected.size()) return INFINITY;
  double worst = 0, largest = 1e-30;
  for (size_t i = 0; i < got.size(); ++i) {
    const double off = std::fabs(got[i] - expected[i]);
    if (!(off <= worst)) worst = std::isnan(off) ? INFINITY : off;
    largest = std::max(largest, std::fabs(expected[i]));
  }
  return worst / largest;
}

/// All tensors that nodes make or update.
std::set<TensorId> results(const Graph& graph) {
  std::set<TensorId> all;
  for (const Node& node : graph.nodes) {
    all.insert(node.outputs.begin(), node.outputs.end());
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if ((find_op(node.op)->updates_input >> i & 1) != 0) all.insert(node.inputs[i]);
    }
  }
  return all;
}

/// A run must give what the plain run of the same graph gives, plus `more`.
void check_same(const OpCase& row, const Graph& graph, const Values& got, const Values& expected, double tolerance) {
  for (TensorId t : results(graph)) {
    CAPTURE(graph.tensors[t].name);
    CHECK_MESSAGE(error(got[t], expected[t]) <= tolerance, row.name());
  }
}

Values plain_run(const OpCase& row, const CaseGraph& built) {
  Values values = initial_values(row, built);
  run_graph(built.graph, uncut(built.graph), values);
  return values;
}

/// d(sum of out * dy) / d(input), by central differences of the double reference.
std::vector<double> finite_differences(const CaseGraph& built, const Values& start, TensorId input) {
  constexpr double kStep = 1e-5;
  const TensorId out = built.graph.nodes[built.last].outputs[0];
  const auto objective = [&](size_t element, double move) {
    Values values = start;
    values[input][element] += move;
    run_reference(built.graph, built.last, values);
    double sum = 0;
    for (size_t i = 0; i < values[out].size(); ++i) sum += values[out][i] * start[built.out_grad][i];
    return sum;
  };
  std::vector<double> slopes(start[input].size());
  for (size_t i = 0; i < slopes.size(); ++i) slopes[i] = (objective(i, kStep) - objective(i, -kStep)) / (2 * kStep);
  return slopes;
}

}  // namespace

TEST_CASE("every op that is not a collective has a CPU kernel, and some op case runs it") {
  std::set<std::string> run;
  for (const OpCase& row : op_cases()) {
    for (const Node& node : build_case(row, true).graph.nodes) run.insert(node.op);
  }
  for (const OpDef* op : all_ops()) {
    if (op->collective) continue;
    CHECK_MESSAGE(find_cpu_kernel(op->name) != nullptr, "no CPU kernel of op ", op->name, " in all_cpu_kernels.cpp");
    CHECK_MESSAGE(run.contains(op->name), "no row of tests/op_cases/cases.cpp reaches op ", op->name);
  }
}

TEST_CASE("an op infers the shapes that a person works out") {
  for (const OpCase& row : op_cases()) {
    const CaseGraph built = build_case(row, false);
    const Node& last = built.graph.nodes[built.last];
    REQUIRE_MESSAGE(last.outputs.size() == row.outputs.size(), row.name());
    for (size_t o = 0; o < row.outputs.size(); ++o) {
      CHECK_MESSAGE(built.graph.tensors[last.outputs[o]].shape == row.outputs[o], row.name());
    }
  }
}

TEST_CASE("a forward kernel gives what the naive loop in double gives") {
  for (const OpCase& row : op_cases()) {
    const CaseGraph built = build_case(row, false);
    Values expected = initial_values(row, built);
    run_reference(built.graph, built.last, expected);
    const Values got = plain_run(row, built);
    for (const Node& node : built.graph.nodes) {
      for (TensorId t : node.outputs) {
        CAPTURE(built.graph.tensors[t].name);
        CHECK_MESSAGE(error(got[t], expected[t]) <= row.tolerance, row.name());
      }
    }
  }
}

TEST_CASE("backward kernels give the slopes of finite differences") {
  for (const OpCase& row : op_cases()) {
    if (row.fused) continue;
    const CaseGraph built = build_case(row, true);
    const Values start = initial_values(row, built);
    const Values got = plain_run(row, built);
    for (size_t i = 0; i < row.inputs.size(); ++i) {
      if (!row.inputs[i].differentiable) continue;
      CAPTURE(i);
      REQUIRE_MESSAGE(built.in_grads[i] >= 0, row.name());
      const auto slopes = finite_differences(built, start, built.inputs[i]);
      const auto& gradient = got[built.in_grads[i]];
      // A gradient that is 0 in truth (softmax over one class) has no size to compare with.
      const bool vanishes = std::all_of(slopes.begin(), slopes.end(), [](double s) { return std::fabs(s) < 1e-9; });
      const double off = vanishes ? error(gradient, slopes) * 1e-30 : error(gradient, slopes);
      CHECK_MESSAGE(off <= 10 * row.tolerance, row.name());
    }
  }
}

TEST_CASE("every cut that the rule permits gives the unsharded result, forward and backward") {
  int cuts_run = 0;
  for (const OpCase& row : op_cases()) {
    const CaseGraph built = build_case(row, true);
    const Values expected = plain_run(row, built);
    for (const Cuts& cuts : permitted_cuts(built.graph)) {
      CAPTURE(to_string(cuts, built.graph));
      Values got = initial_values(row, built);
      run_graph(built.graph, cuts, got);
      check_same(row, built.graph, got, expected, 5e-6);
      ++cuts_run;
    }
  }
  CHECK(cuts_run > 200);
}

TEST_CASE("a kernel that can accumulate adds to what is there") {
  for (const OpCase& row : op_cases()) {
    const CaseGraph built = build_case(row, true);
    Values expected = initial_values(row, built), got = expected;
    for (const Node& node : built.graph.nodes) {
      // Node by node, so that each reads the plain results of those before it.
      Graph one = built.graph;
      one.nodes = {node};
      run_graph(one, uncut(one), expected);
      Values added = expected;
      run_graph(one, uncut(one), added, {.accumulate = true});
      for (size_t o = 0; o < node.outputs.size(); ++o) {
        std::vector<double> sum = expected[node.outputs[o]];
        const bool adds = (find_op(node.op)->can_accumulate >> o & 1) != 0;
        const bool relu_after = node.attrs.text("activation") == "relu";
        if (relu_after) continue;  // the compiler accumulates no activation
        for (double& v : sum) v += adds ? kBefore : 0.0;
        CHECK_MESSAGE(error(added[node.outputs[o]], sum) <= 5e-6, row.name(), " node ", node.op);
      }
    }
  }
}

TEST_CASE("an op that may work in place gives the same there") {
  for (const OpCase& row : op_cases()) {
    const CaseGraph built = build_case(row, true);
    const Values expected = plain_run(row, built);
    Values got = initial_values(row, built);
    run_graph(built.graph, uncut(built.graph), got, {.in_place = true});
    check_same(row, built.graph, got, expected, 0.0);
  }
}

TEST_CASE("two threads give what one gives") {
  for (const OpCase& row : op_cases()) {
    const CaseGraph built = build_case(row, true);
    const Values expected = plain_run(row, built);
    Values got = initial_values(row, built);
    run_graph(built.graph, uncut(built.graph), got, {.threads = 2});
    check_same(row, built.graph, got, expected, 5e-6);
  }
}

TEST_CASE("a run twice gives the same bits") {
  for (const OpCase& row : op_cases()) {
    const CaseGraph built = build_case(row, true);
    check_same(row, built.graph, plain_run(row, built), plain_run(row, built), 0.0);
  }
}

}  // namespace trainctl
