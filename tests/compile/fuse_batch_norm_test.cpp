// Operations that compile() fuses into batch_norm and its gradients (engine/compile/fuse/fuse_statistics.cpp,
// fuse_products.cpp, fuse_relu_grad.cpp).
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/compile/compile.h"
#include "engine/model/model.h"
#include "engine/spec/parse.h"

using namespace trainctl;

namespace {

std::vector<Program> batch_norm_programs(const std::string& layers, const std::vector<std::string>& overrides = {}) {
  const JobSpec spec =
      parse_job("dataset: {type: random, shape: [16], label_shape: [16], label_dtype: f32, batch: 8}\nnetwork:\n" +
                    layers + "  - {name: z, type: dense, units: 16}\nloss: mse\noptimizer: {type: adam}\n",
                "job.yaml", overrides);
  const Graph graph = build_graph(spec, data_and_label(spec.dataset.shape, spec.dataset.label_shape));
  const CostModel cost = CostModel();
  return compile_all(graph, make_plan(graph, spec, cost), cost);
}

std::vector<const Instruction*> of(const Program& program, const std::string& op) {
  std::vector<const Instruction*> found;
  for (const Instruction& i : program.instructions)
    if (i.opcode == Opcode::kernel && i.op == op) found.push_back(&i);
  return found;
}

/// The collectives within the step, without those of the gradients of parameters.
std::vector<const Instruction*> exchanges_of(const Program& program) {
  std::vector<const Instruction*> found;
  for (const Instruction& i : program.instructions) {
    const bool is_counted = i.purpose == Purpose::statistics || i.purpose == Purpose::redistribute;
    if (i.opcode == Opcode::collective && is_counted) found.push_back(&i);
  }
  return found;
}

const std::string kNorm = "  - {name: a, type: dense, units: 16}\n  - {name: n, type: batch_norm}\n";
const std::string kRelu = "  - {name: r, type: relu}\n";

}  // namespace

TEST_CASE("the mean and variance are one kernel, and ranks that share the batch exchange both in one call") {
  const Program one = batch_norm_programs(kNorm)[0];
  REQUIRE(of(one, "batch_norm_mean_var").size() == 1);
  CHECK(of(one, "batch_norm_mean_var")[0]->outputs.size() == 2);
  CHECK(of(one, "batch_norm_mean").empty());
  CHECK(of(one, "batch_norm_var").empty());
  for (const Program& p : batch_norm_programs(kNorm, {"parallel.mode=data_parallel", "launch.ranks=2"})) {
    REQUIRE(of(p, "batch_norm_mean_var").size() == 1);
    CHECK(of(p, "batch_norm_mean_var")[0]->attrs.integer("count") == 4);  // of its own rows
    CHECK(of(p, "batch_norm_mean").empty());
    CHECK(of(p, "batch_norm_var").empty());
    REQUIRE(of(p, "batch_norm_merge").size() == 1);
    CHECK(of(p, "batch_norm_merge")[0]->inputs[0].shape == Shape{2, 2, 16});
    const std::vector<const Instruction*> exchanges = exchanges_of(p);
    REQUIRE(exchanges.size() == 2);
    CHECK(exchanges[0]->collective == Collective::all_gather);
    CHECK(exchanges[0]->inputs[0].shape == Shape{2, 16});
    CHECK(exchanges[1]->collective == Collective::all_reduce);  // both sums of the gradient
    CHECK(exchanges[1]->inputs[0].shape == Shape{2, 16});
  }
}

TEST_CASE("the exchange of a gradient's sums runs beside the weight's gradient of the layer behind") {
  const std::string layers = kNorm + "  - {name: b, type: dense, units: 16}\n";
  for (const Program& p : batch_norm_programs(layers, {"parallel.mode=data_parallel", "launch.ranks=2"})) {
    const auto at = [&](auto is) {
      return std::find_if(p.instructions.begin(), p.instructions.end(), is) - p.instructions.begin();
    };
    const auto sums = at([](const Instruction& i) { return i.op == "batch_norm_grad_stats"; });
    const auto product = at([](const Instruction& i) { return i.name.find("b.matmul.grad_weight") == 0; });
    const auto reader = at([](const Instruction& i) { return i.op == "batch_norm_grad"; });
    CHECK(sums + 1 < product);  // the exchange is between them
    CHECK(product < reader);
  }
}

TEST_CASE("statistics that cannot be beside each other in memory are exchanged one by one") {
  const std::string odd = "  - {name: a, type: dense, units: 10}\n  - {name: n, type: batch_norm}\n";
  for (const Program& p : batch_norm_programs(odd, {"parallel.mode=data_parallel", "launch.ranks=2"})) {
    CHECK(of(p, "batch_norm_mean").size() == 1);
    CHECK(of(p, "batch_norm_var").size() == 1);
    CHECK(exchanges_of(p).size() == 4);
  }
}

TEST_CASE("a relu behind batch_norm is part of it and of its gradients, on any number of ranks") {
  const std::string softmax = "  - {name: s, type: softmax}\n";  // a product's gradient would take relu's slope itself
  for (const std::string ranks : {"1", "2"}) {
    for (const Program& p :
         batch_norm_programs(kNorm + kRelu + softmax, {"parallel.mode=data_parallel", "launch.ranks=" + ranks})) {
      CHECK(of(p, "relu").empty());
      CHECK(of(p, "relu_grad").empty());
      REQUIRE(of(p, "batch_norm").size() == 1);
      CHECK(epilogue_of(of(p, "batch_norm")[0]->attrs).activation == Activation::relu);
      for (const auto& [op, inputs] : {std::pair{"batch_norm_grad_stats", 6}, std::pair{"batch_norm_grad", 8}}) {
        REQUIRE(of(p, op).size() == 1);
        CHECK(of(p, op)[0]->attrs.flag("behind_relu"));
        CHECK(of(p, op)[0]->inputs.size() == static_cast<size_t>(inputs));
      }
    }
  }
}

TEST_CASE("a residual is added by batch_norm, and its gradient before the relu is kept for both") {
  for (const std::string inputs : {"[n, a]", "[a, n]"}) {
    const Program p = batch_norm_programs(kNorm + "  - {name: s, type: add, inputs: " + inputs + "}\n" + kRelu)[0];
    REQUIRE(of(p, "batch_norm").size() == 1);
    const Epilogue epilogue = epilogue_of(of(p, "batch_norm")[0]->attrs);
    CHECK(epilogue.residual);
    CHECK(epilogue.activation == Activation::relu);
    CHECK(of(p, "batch_norm")[0]->inputs.back().tensor == "a");
    CHECK(of(p, "add").size() + of(p, "elementwise").size() <= 1);  // the gradients of a
    for (const char* op : {"batch_norm_grad_stats", "batch_norm_grad"})
      CHECK_FALSE(of(p, op)[0]->attrs.flag("behind_relu"));
  }
}

TEST_CASE("batch_norm whose result another layer reads writes it") {
  const Program p = batch_norm_programs(kNorm + kRelu + "  - {name: s, type: add, inputs: [r, n]}\n")[0];
  REQUIRE(of(p, "batch_norm").size() == 1);
  CHECK(epilogue_of(of(p, "batch_norm")[0]->attrs) == Epilogue{});
}

TEST_CASE("batch_norm and its relu read x twice forward and twice backward, also where ranks share the batch") {
  for (const char* ranks : {"1", "2"}) {
    for (const Program& p :
         batch_norm_programs(kNorm + kRelu + "  - {name: s, type: softmax}\n",
                             {"parallel.mode=data_parallel", std::string("launch.ranks=") + ranks})) {
      int found = 0;
      for (const Instruction& i : p.instructions)
        found += std::any_of(i.inputs.begin(), i.inputs.end(), [](const Operand& x) { return x.tensor == "a"; });
      CHECK(found == 4);
    }
  }
}
