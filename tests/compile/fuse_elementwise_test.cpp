// Tests of chains of element-wise kernels that are fused into one instruction.
#include <doctest/doctest.h>

#include <set>

#include "engine/compile/compile.h"
#include "engine/model/model.h"
#include "engine/spec/parse.h"
#include "tests/compile/sketch.h"

using namespace trainctl;

namespace {

std::vector<Program> compiled(const std::string& layers, const std::vector<std::string>& overrides = {}) {
  const JobSpec spec =
      parse_job("dataset: {type: random, shape: [32], label_dtype: f32, label_shape: [32], batch: 16}\nnetwork:\n" +
                    layers + "loss: mse\n",
                "job.yaml", overrides);
  const Graph graph = build_graph(spec, data_and_label(spec.dataset.shape, spec.dataset.label_shape));
  return compile_all(graph, make_plan(graph, spec, CostModel()), CostModel());
}

std::vector<std::string> expressions(const Program& program) {
  std::vector<std::string> found;
  for (const Instruction& i : program.instructions)
    if (i.op == "elementwise") found.push_back(i.attrs.text("expression"));
  return found;
}

const std::string kFirst = "  - {name: a, type: dense, units: 32}\n";
const std::string kLast = "  - {name: z, type: dense, units: 32}\n";

}  // namespace

TEST_CASE("activations, dropout and a residual sum are one instruction, and so is their backward pass") {
  const Program p = compiled(kFirst +
                             "  - {name: s, type: sigmoid}\n"
                             "  - {name: d, type: dropout, p: 0.25}\n"
                             "  - {name: r, type: add, inputs: [d, a]}\n" +
                             kLast)[0];
  const std::vector<std::string> found = expressions(p);
  REQUIRE(found.size() == 2);
  // The sigmoid's output is kept for its gradient.
  CHECK(found[0].starts_with("x0 sigmoid :0 =0 $0 dropout(0.25,"));
  CHECK(found[0].ends_with(") x0 + =1"));
  CHECK(found[1].starts_with("x0 x0 dropout(0.25,"));
  CHECK(found[1].ends_with(") x1 sigmoid_grad + =0"));
}

TEST_CASE("a single op is not fused, and values that other instructions read are written") {
  CHECK(expressions(compiled(kFirst + "  - {name: s, type: sigmoid}\n" + kLast)[0]).empty());
  const Program p = compiled(kFirst + "  - {name: s, type: sigmoid}\n  - {name: t, type: tanh}\n" + kLast)[0];
  const std::vector<std::string> found = expressions(p);
  CHECK(found == std::vector<std::string>{"x0 sigmoid :0 =0 $0 tanh =1", "x0 x1 tanh_grad x2 sigmoid_grad =0"});
}

TEST_CASE("a value that is only read inside the chain is not written, even if it is used twice") {
  const std::string square = "  - {name: s, type: add, inputs: [a, data]}\n  - {name: q, type: mul, inputs: [s, s]}\n";
  for (const std::string& e : expressions(compiled("  - {name: a, type: relu, inputs: [data]}\n" + square)[0]))
    CHECK(e == "x0 relu x0 + :0 $0 * =0");
}

TEST_CASE("chains do not grow beyond the limits of a kernel") {
  std::string layers = kFirst;
  for (int i = 0; i < 30; ++i) layers += "  - {name: s" + std::to_string(i) + ", type: dropout}\n";
  const Program p = compiled(layers + kLast)[0];
  CHECK(expressions(p).size() == 2);  // 30 steps are within 40 tokens
  layers = "";
  for (int i = 0; i < 60; ++i) layers += "  - {type: tanh}\n";
  CHECK(expressions(compiled(layers + kLast)[0]).size() >= 2);
}

TEST_CASE("a chain stops where ranks exchange its results, and at the ends of tasks") {
  const std::string layers = kFirst +
                             "  - {name: s, type: sigmoid}\n"
                             "  - {name: t, type: tanh}\n"
                             "  - {name: g, type: gelu}\n" +
                             kLast;
  const std::vector<std::string> cut = {"launch.ranks=2", "parallel.mode=semi_auto_parallel",
                                        "parallel.strategies={s: [[2, 1]], t: [[2, 1]], g: [[1, 2]]}"};
  for (const Program& p : compiled(layers, cut))
    for (const std::string& e : expressions(p))
      CHECK((e.find("tanh") == std::string::npos || e.find("gelu") == std::string::npos));
  const std::vector<std::string> stages = {"launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.stages=2",
                                           "parallel.micro_batches=2",
                                           "parallel.stage_config={a: 0, s: 0, t: 1, g: 1, z: 1}"};
  for (const Program& p : compiled(layers, stages)) {
    std::set<int> micro_batches;
    for (const Instruction& i : p.instructions)
      if (i.op == "elementwise") micro_batches.insert(i.micro_batch);
    CHECK(micro_batches == (p.rank == 0 ? std::set<int>{} : std::set<int>{0, 1}));
  }
}
