// Adapters and gated layers in compiled programs: what their readers compute, and kernels that read a large operand
// once.
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/compile/compile.h"
#include "engine/model/model.h"
#include "engine/spec/parse.h"
#include "tests/compile/sketch.h"

using namespace trainctl;

namespace {

/// A gated block with a residual; `more`: further lines of the job.
Program gated_block(int width, int batch, const std::string& more, const std::vector<std::string>& overrides = {}) {
  const std::string w = std::to_string(width), b = std::to_string(batch);
  const JobSpec spec = parse_job("dataset: {type: random, shape: [" + w + "], label_shape: [" + w +
                                     "], label_dtype: f32, batch: " + b + R"(}
network:
  - {name: first, type: dense, units: )" +
                                     w + R"(, bias: false}
  - {name: norm, type: rms_norm}
  - {name: gate, type: dense, units: )" +
                                     w + R"(, bias: false}
  - {name: act, type: silu}
  - {name: up, type: dense, units: )" +
                                     w + R"(, bias: false, inputs: norm}
  - {name: gated, type: mul, inputs: [act, up]}
  - {name: down, type: dense, units: )" +
                                     w + R"(, bias: false}
  - {name: sum, type: add, inputs: [down, first]}
  - {name: last_norm, type: rms_norm}
  - {name: last, type: dense, units: )" +
                                     w + R"(, bias: false}
loss: mse
optimizer: {type: adamw, learning_rate: 0.01}
parallel: {mode: stand_alone}
)" + more,
                                 "job.yaml", overrides);
  const Graph graph = build_graph(spec, data_and_label({width}, {width}));
  return compile_all(graph, make_plan(graph, spec, CostModel()), CostModel())[0];
}

const std::string kAdapters = "adapters: {lora: {layers: [first, gate, up, down], rank: 8, alpha: 16}}\n";

std::vector<std::string> expressions_in(const Program& program, Phase phase) {
  std::vector<std::string> found;
  for (const Instruction& i : program.instructions)
    if (i.op == "elementwise" && i.phase == phase) found.push_back(i.attrs.text("expression"));
  return found;
}

std::ptrdiff_t count_of(const Program& program, const std::string& op) {
  return std::ranges::count_if(program.instructions, [&](const Instruction& i) { return i.op == op; });
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("a gated layer does not keep its activation, and the gradients of both factors are one kernel") {
  const Program program = gated_block(64, 16, "");
  CHECK(expressions_in(program, Phase::forward) == Texts{"x0 silu x1 * =0"});
  CHECK(expressions_in(program, Phase::backward) == Texts{"x0 x1 silu * =0 x0 x2 * x1 silu_grad =1"});
}

TEST_CASE("element-wise readers of an adapter's sum compute it from the low-rank factors") {
  const Program program = gated_block(64, 16, kAdapters);
  CHECK(expressions_in(program, Phase::forward) == Texts{"x0 l1 + silu x3 l4 + * =0", "x0 l1 + x3 + =0"});
  CHECK(expressions_in(program, Phase::backward) ==
        Texts{"x0 m1 + :0 x3 l4 + :1 silu * =0 $0 x6 l7 + * $1 silu_grad =1"});
}

TEST_CASE(
    "a product is the residual of the wide product beside it if something else than element-wise ops reads the sum") {
  const Program program = gated_block(64, 16, kAdapters);
  const auto first =
      std::ranges::find_if(program.instructions, [](const Instruction& i) { return i.name == "first.lora"; });
  REQUIRE(first != program.instructions.end());
  CHECK(first->op == "matmul");
  CHECK(first->attrs.flag("residual"));
  CHECK(first->inputs[1].tensor == "first.weight");
}

TEST_CASE("an adapter's sum is written if its weight changes before the last reader") {
  // Plain SGD updates the weight as soon as its gradient is known.
  const Program program = gated_block(64, 16, kAdapters, {"optimizer={type: sgd, learning_rate: 0.1}"});
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (program.instructions[i].op != "elementwise") continue;
    for (const Operand& in : program.instructions[i].inputs) {
      if (!in.tensor.ends_with("lora_b.weight")) continue;
      for (size_t j = 0; j < i; ++j)
        for (const Operand& out : program.instructions[j].outputs) CHECK(out.tensor != in.tensor);
    }
  }
}

TEST_CASE("both gradients of an adapter's second layer are one kernel, which scales the first, if dy is large") {
  CHECK(count_of(gated_block(64, 16, kAdapters), "skinny_grads") == 0);
  const Program program = gated_block(2048, 2048, kAdapters);
  CHECK(count_of(program, "skinny_grads") == 4);
  for (const Instruction& i : program.instructions) {
    if (i.op != "skinny_grads") continue;
    CHECK(i.attrs.number("factor", 1.0) == 2.0);
    CHECK(i.outputs.size() == 2);
  }
}
