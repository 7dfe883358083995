// The checks of op cases. Each failure names the row that fails.
#include "tests/op_cases/op_case_checks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <set>
#include <thread>

#include "engine/ops/random.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

/// The largest difference, relative to the largest expected element. A NaN counts as an infinite difference.
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

/// Returns whether the kernel chooses the order of the elements of this output, so that they cannot be compared.
bool is_private(const Node& node, size_t output) { return (get_op(node.op).kernel.private_outputs >> output & 1) != 0; }

/// All tensors that nodes write or update, except private outputs.
std::set<TensorId> results(const Graph& graph) {
  std::set<TensorId> all;
  for (const Node& node : graph.nodes) {
    for (size_t o = 0; o < node.outputs.size(); ++o)
      if (!is_private(node, o)) all.insert(node.outputs[o]);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if ((get_op(node.op).kernel.updates_input >> i & 1) != 0) all.insert(node.inputs[i]);
    }
  }
  return all;
}

/// Checks that a run gives the same result as the plain run of the same graph.
void check_same(const OpCase& row, const Graph& graph, const Values& got, const Values& expected, double tolerance) {
  for (TensorId t : results(graph)) {
    CAPTURE(graph.tensors[t].name);
    CHECK_MESSAGE(error(got[t], expected[t]) <= tolerance, row.name());
  }
}

CaseGraph both_ways(const OpCase& row, const CaseRun& run) {
  CaseGraph built = build_case(row, true, run.floats);
  for (const TensorId gradient : built.in_grads) {
    if (run.bf16_gradients && gradient >= 0 && built.graph.consumers(gradient).empty())
      built.graph.tensors[gradient].dtype = DType::bf16;
  }
  return built;
}

Values plain_run(const OpCase& row, const CaseGraph& built, const CaseDevice& device) {
  Values values = initial_values(row, built);
  run_graph(built.graph, uncut(built.graph), values, {.device = &device});
  return values;
}

/// Elements of an input that are moved together, each of them up or down.
struct Direction {
  std::vector<size_t> elements;
  std::vector<double> signs;
};

/// Directions that together move each element of an input once. If the slope of one element is wrong, the sum of eight
/// slopes is wrong too. The reference, which took most of the time of these tests, is then evaluated an eighth as
/// often.
std::vector<Direction> directions(size_t elements) {
  constexpr size_t kTogether = 8, kAlone = 64;
  const size_t count = elements <= kAlone ? elements : (elements + kTogether - 1) / kTogether;
  std::vector<Direction> all(count);
  for (size_t i = 0; i < elements; ++i) {
    Direction& direction = all[i % count];  // The elements of a direction are far from each other.
    direction.elements.push_back(i);
    direction.signs.push_back(philox_uniform(kCaseSeed, i, 2) < 0.5f ? -1.0 : 1.0);
  }
  return all;
}

/// The slope along each direction of a function with these derivatives.
std::vector<double> along(const std::vector<Direction>& directions, const std::vector<double>& derivatives) {
  std::vector<double> slopes;
  for (const Direction& direction : directions) {
    double slope = 0;
    for (size_t i = 0; i < direction.elements.size(); ++i)
      slope += direction.signs[i] * derivatives[direction.elements[i]];
    slopes.push_back(slope);
  }
  return slopes;
}

/// The slope of sum(out * dy) along each direction of an input, by central differences of the double reference.
std::vector<double> finite_differences(const CaseGraph& built, const Values& start, TensorId input,
                                       const std::vector<Direction>& directions) {
  constexpr double kStep = 1e-5;
  const TensorId out = built.graph.nodes[built.last].outputs[0];
  const auto objective = [&](const Direction& direction, double move) {
    Values values = start;
    for (size_t i = 0; i < direction.elements.size(); ++i)
      values[input][direction.elements[i]] += move * direction.signs[i];
    run_reference(built.graph, built.last, values);
    double sum = 0;
    for (size_t i = 0; i < values[out].size(); ++i) sum += values[out][i] * start[built.out_grad][i];
    return sum;
  };
  std::vector<double> slopes(directions.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < slopes.size(); i = next++)
      slopes[i] = (objective(directions[i], kStep) - objective(directions[i], -kStep)) / (2 * kStep);
  };
  if (slopes.size() < 64) {
    work();
    return slopes;
  }
  const unsigned cores = std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
  std::vector<std::jthread> threads(cores);
  for (std::jthread& each : threads) each = std::jthread(work);
  threads.clear();  // joins them
  return slopes;
}

/// Differences between slopes, relative to the largest of the derivatives that are summed in them.
struct SlopeErrors {
  double largest = 0;
  /// The root mean square of the differences. Because roundings are independent, it is far below the largest difference
  /// if there are only roundings, but not if the formula is wrong.
  double mean = 0;

  SlopeErrors(const std::vector<double>& got, const std::vector<double>& expected,
              const std::vector<double>& derivatives) {
    double scale = 1e-30, squares = 0;
    for (const double derivative : derivatives) scale = std::max(scale, std::fabs(derivative));
    for (size_t i = 0; i < got.size(); ++i) {
      const double off = std::fabs(got[i] - expected[i]) / scale;
      if (!(off <= largest)) largest = std::isnan(off) ? INFINITY : off;
      squares += off * off;
    }
    mean = std::sqrt(squares / static_cast<double>(std::max<size_t>(got.size(), 1)));
  }
};

/// The cuts to try. With every_nth() these are at least one of the permitted cuts in one of the two types, if there are
/// any. Different rows begin at different cuts.
std::vector<Cuts> tried_cuts(const OpCase& row, const Graph& graph, DType floats) {
  std::vector<Cuts> permitted = permitted_cuts(graph);
  const size_t n = every_nth();
  if (n == 1 || permitted.empty()) return permitted;
  std::vector<Cuts> tried;
  const size_t hash = std::hash<std::string>()(row.name());
  if ((hash / 64 % 2 == 0) != (floats == DType::f32)) return tried;
  const size_t first = hash % std::min(n, permitted.size());
  for (size_t i = first; i < permitted.size(); i += n) tried.push_back(permitted[i]);
  return tried;
}

/// Returns whether a row is run twice: every nth row of an op, in the order of op_cases(), and one in n of the rows
/// that are not in op_cases().
bool is_repeated(const OpCase& row) {
  const size_t n = every_nth();
  if (n == 1) return true;
  const std::string name = row.name();
  size_t number = 0;
  for (const OpCase& other : op_cases()) {
    if (other.op != row.op) continue;
    if (other.name() == name) return number % n == 0;
    ++number;
  }
  return std::hash<std::string>()(name) % n == 0;
}

}  // namespace

size_t every_nth() {
  const char* text = std::getenv("TRAINCTL_EVERY_NTH");
  return text == nullptr ? 1 : static_cast<size_t>(std::max(1, std::atoi(text)));
}

void check_forward(const OpCase& row, const CaseRun& run) {
  const CaseGraph built = build_case(row, false, run.floats);
  Values expected = initial_values(row, built);
  run_reference(built.graph, built.last, expected);
  const Values got = plain_run(row, built, run.device);
  for (const Node& node : built.graph.nodes) {
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      if (is_private(node, o)) continue;
      const TensorId t = node.outputs[o];
      CAPTURE(built.graph.tensors[t].name);
      CHECK_MESSAGE(error(got[t], expected[t]) <= run.tolerance(row.tolerance), row.name());
    }
  }
}

bool has_backward(const OpCase& row) {
  const auto differentiable = [](const CaseInput& input) { return input.differentiable; };
  return !row.fused && std::any_of(row.inputs.begin(), row.inputs.end(), differentiable);
}

bool has_cuts(const OpCase& row) { return !permitted_cuts(build_case(row, true).graph).empty(); }

void check_backward(const OpCase& row, const CaseRun& run) {
  if (!has_backward(row) || row.has_losses) return;  // a KernelCase compares that gradient
  if (row.has_kinks && run.floats != DType::f32) return;
  const CaseGraph built = build_case(row, true, run.floats);
  const Values start = initial_values(row, built);
  const Values got = plain_run(row, built, run.device);
  for (size_t i = 0; i < row.inputs.size(); ++i) {
    if (!row.inputs[i].differentiable) continue;
    CAPTURE(i);
    REQUIRE_MESSAGE(built.in_grads[i] >= 0, row.name());
    const auto& gradient = got[built.in_grads[i]];
    const std::vector<Direction> ways = directions(gradient.size());
    const std::vector<double> expected = finite_differences(built, start, built.inputs[i], ways);
    const std::vector<double> slopes = along(ways, gradient);
    // A gradient that is exactly 0 (softmax over one class) has no scale to compare with.
    const bool vanishes = std::all_of(expected.begin(), expected.end(), [](double s) { return std::fabs(s) < 1e-9; });
    const SlopeErrors off(slopes, expected, vanishes ? std::vector<double>{1.0} : gradient);
    // Each element of a sum is rounded separately. In f32 the tolerance leaves room for that.
    const double roundings =
        run.floats == DType::f32 ? 1.0 : std::sqrt(double(gradient.size() + 1) / double(ways.size() + 1));
    CHECK_MESSAGE(off.largest <= roundings * run.tolerance(10 * row.tolerance), row.name());
    CHECK_MESSAGE(off.mean <= run.tolerance(10 * row.tolerance), row.name());
  }
}

int check_cuts(const OpCase& row, const CaseRun& run) {
  const CaseGraph built = build_case(row, true, run.floats);
  const std::vector<Cuts> tried = tried_cuts(row, built.graph, run.floats);
  if (tried.empty()) return 0;
  const Values expected = plain_run(row, built, run.device);
  for (const Cuts& cuts : tried) {
    CAPTURE(to_string(cuts, built.graph));
    Values got = initial_values(row, built);
    run_graph(built.graph, cuts, got, {.device = &run.device});
    check_same(row, built.graph, got, expected, run.tolerance(5e-6));
    if (!can_work_in_place(built.graph)) continue;
    Values in_place = initial_values(row, built);
    run_graph(built.graph, cuts, in_place, {.in_place = true, .device = &run.device});
    check_same(row, built.graph, in_place, got, 0.0);
  }
  return static_cast<int>(tried.size());
}

bool has_accumulation(const OpCase& row) {
  const Graph graph = build_case(row, true).graph;
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), can_accumulate);
}

void check_accumulate(const OpCase& row, const CaseRun& run) {
  if (!has_accumulation(row)) return;
  const CaseGraph built = both_ways(row, run);
  Values expected = initial_values(row, built), got = expected;
  for (const Node& node : built.graph.nodes) {
    // Each node runs separately, so that it reads the plain results of the previous nodes.
    Graph one = built.graph;
    one.nodes = {node};
    run_graph(one, uncut(one), expected, {.device = &run.device});
    if (!can_accumulate(node)) continue;
    const Epilogue epilogue = epilogue_of(node.attrs);
    if (epilogue.residual || epilogue.activation != Activation::none || epilogue.slope != Activation::none)
      continue;  // the compiler never accumulates into these
    Values added = expected;
    run_graph(one, uncut(one), added, {.accumulate = true, .device = &run.device});
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      if (is_private(node, o)) continue;
      std::vector<double> sum = expected[node.outputs[o]];
      const bool adds = (get_op(node.op).kernel.accumulates >> o & 1) != 0;
      for (double& v : sum) v += adds ? kBefore : 0.0;
      CHECK_MESSAGE(error(added[node.outputs[o]], sum) <= run.tolerance(5e-6), row.name(), " node ", node.op);
    }
  }
}

bool has_in_place(const OpCase& row) { return can_work_in_place(build_case(row, true).graph); }

void check_in_place(const OpCase& row, const CaseRun& run) {
  const CaseGraph built = build_case(row, true, run.floats);
  if (!can_work_in_place(built.graph)) return;
  const Values expected = plain_run(row, built, run.device);
  Values got = initial_values(row, built);
  run_graph(built.graph, uncut(built.graph), got, {.in_place = true, .device = &run.device});
  check_same(row, built.graph, got, expected, 0.0);
}

void check_threads(const OpCase& row, const CaseRun& run) {
  const CaseGraph built = build_case(row, true, run.floats);
  const Values expected = plain_run(row, built, run.device);
  Values got = initial_values(row, built);
  run_graph(built.graph, uncut(built.graph), got, {.threads = 2, .device = &run.device});
  // oneDNN adds the parts of a convolution's weight gradient per thread.
  check_same(row, built.graph, got, expected, row.op.starts_with("conv") ? 5e-6 : 0.0);
}

void check_same_bits_twice(const OpCase& row, const CaseRun& run) {
  if (!is_repeated(row)) return;
  const CaseGraph built = both_ways(row, run);
  check_same(row, built.graph, plain_run(row, built, run.device), plain_run(row, built, run.device), 0.0);
}

void check_as_on(const CaseDevice& other, const OpCase& row, const std::vector<CaseRun>& runs) {
  const CaseGraph built = both_ways(row, runs.front()), wide = build_case(row, true);
  const Values start = initial_values(row, built);
  Values expected = start;
  run_graph(wide.graph, uncut(wide.graph), expected, {.device = &other});
  if (row.has_kinks && runs.front().floats != DType::f32) return;
  for (const CaseRun& run : runs) {
    REQUIRE(run.floats == runs.front().floats);
    REQUIRE(run.bf16_gradients == runs.front().bf16_gradients);
    Values got = start;
    run_graph(built.graph, uncut(built.graph), got, {.device = &run.device});
    const double of_f32 = run.floats == DType::f32 ? 1e-5 : 10 * row.tolerance;
    check_same(row, built.graph, got, expected, run.tolerance(of_f32));
  }
}

void check_as_on(const CaseDevice& other, const OpCase& row, const CaseRun& run) {
  check_as_on(other, row, std::vector<CaseRun>{run});
}

}  // namespace trainctl
