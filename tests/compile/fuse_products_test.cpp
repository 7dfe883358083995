// Operations that compile() fuses into a matrix product or a norm's gradient (engine/compile/fuse/fuse_products.cpp,
// fuse_bias_grad.cpp, fuse_norm_grads.cpp).
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/compile/compile.h"
#include "engine/compile/verify/verify_programs.h"
#include "engine/model/model.h"
#include "engine/spec/parse.h"

using namespace trainctl;

namespace {

/// Two dense layers with an activation between them; `more` as in a job file.
std::vector<Program> product_programs(const std::string& activation, const std::string& more, int ranks = 1) {
  const JobSpec spec = parse_job(R"(
dataset: {type: random, shape: [16], label_shape: [8], label_dtype: f32, batch: 8}
network:
  - {name: layer1, type: dense, units: 32}
  - {name: middle, )" + activation +
                                     R"(}
  - {name: layer2, type: dense, units: 8}
loss: mse
)" + more + "\nlaunch: {ranks: " + std::to_string(ranks) +
                                     "}\n",
                                 "job.yaml");
  const Graph graph = build_graph(spec, data_and_label({16}, {8}));
  const CostModel cost = CostModel();
  return compile_all(graph, make_plan(graph, spec, cost), cost);
}

constexpr const char* kAdam = "optimizer: {type: adam, learning_rate: 0.01}\n";
constexpr const char* kSgd = "optimizer: {type: sgd, learning_rate: 0.01}\n";

std::vector<const Instruction*> fuse_products_of(const Program& program, const std::string& op) {
  std::vector<const Instruction*> found;
  for (const Instruction& i : program.instructions)
    if (i.opcode == Opcode::kernel && i.op == op) found.push_back(&i);
  return found;
}

int fuse_products_count(const Program& program, const std::string& op) { return static_cast<int>(fuse_products_of(program, op).size()); }

}  // namespace

TEST_CASE("bias, relu and relu's gradient are fused into the adjacent products") {
  const Program program = product_programs("type: relu", std::string(kAdam) + "parallel: {mode: stand_alone}")[0];
  for (const char* op : {"add_bias", "relu", "relu_grad", "bias_grad"}) CHECK_MESSAGE(fuse_products_count(program, op) == 0, op);
  const auto products = fuse_products_of(program, "matmul");
  REQUIRE(products.size() == 3);
  CHECK(products[0]->attrs.text("activation") == "relu");
  CHECK(products[0]->outputs.size() == 1);
  CHECK(products[2]->attrs.text("activation_grad") == "relu");
  CHECK(products[2]->inputs[2].offset == products[0]->outputs[0].offset);
}

TEST_CASE("gelu also writes its input, and its gradient reads that") {
  const Program program =
      product_programs("type: gelu, approximate: tanh", std::string(kAdam) + "parallel: {mode: stand_alone}")[0];
  for (const char* op : {"add_bias", "gelu", "gelu_grad"}) CHECK_MESSAGE(fuse_products_count(program, op) == 0, op);
  const auto products = fuse_products_of(program, "matmul");
  REQUIRE(products.size() == 3);
  CHECK(products[0]->attrs.text("activation") == "gelu");
  CHECK(products[0]->attrs.text("approximate") == "tanh");
  REQUIRE(products[0]->outputs.size() == 2);
  CHECK(products[2]->attrs.text("activation_grad") == "gelu");
  CHECK(products[2]->attrs.text("approximate") == "tanh");
  CHECK(products[2]->inputs[2].offset == products[0]->outputs[1].offset);
}

TEST_CASE("without a backward pass gelu keeps nothing") {
  const Program program =
      product_programs("type: gelu", std::string(kAdam) + "parallel: {mode: stand_alone, recompute: [layer1, middle]}")[0];
  CHECK(verify_programs({program}).empty());
  int forward = 0;
  for (const Instruction* i : fuse_products_of(program, "matmul")) {
    if (i->attrs.text("activation") != "gelu") continue;
    ++forward;
    CHECK(i->outputs.size() == (i->recompute ? 2u : 1u));
  }
  CHECK(forward == 2);
}

TEST_CASE("one kernel computes a layer's gradients of weight and bias, or updates both") {
  for (const char* optimizer : {kAdam, kSgd}) {
    const Program program = product_programs("type: relu", std::string(optimizer) + "parallel: {mode: stand_alone}")[0];
    CHECK(fuse_products_count(program, "bias_grad") == 0);
    const auto grads = fuse_products_of(program, "matmul_weight_grad");
    REQUIRE(grads.size() == 2);
    for (const Instruction* i : grads) {
      REQUIRE(i->outputs.size() == 2);
      CHECK(i->attrs.flag("bias_grad"));
      CHECK(i->attrs.flag("descend") == (optimizer == kSgd));
      CHECK(i->outputs[1].shape == Shape{i->inputs[1].shape.back()});
      CHECK(i->outputs[0].accumulate == i->outputs[1].accumulate);
    }
  }
}

TEST_CASE("gradients that are reduced over ranks are computed before their reductions") {
  for (const char* shard : {"1", "2", "3"}) {
    const auto all = product_programs(
        "type: relu",
        std::string(kAdam) + "parallel: {mode: data_parallel, micro_batches: 2, optimizer_shard: {level: " + shard +
            ", min_kb: 0}}",
        2);
    CHECK(verify_programs(all).empty());
    for (const Instruction* i : fuse_products_of(all[0], "matmul_weight_grad")) CHECK(i->outputs.size() == 2);
  }
}

TEST_CASE("an activation of a sum over ranks is not fused into one rank's product") {
  // The contraction is cut: the products are partial sums until they are reduced.
  const auto all =
      product_programs("type: relu",
               std::string(kAdam) + "parallel: {mode: semi_auto_parallel, strategies: {layer1: [[1, 2], [1, 2]]}}", 2);
  CHECK(verify_programs(all).empty());
  const auto products = fuse_products_of(all[0], "matmul");
  CHECK(std::none_of(products.begin(), products.end(),
                     [](const Instruction* i) { return i->name.starts_with("layer1") && i->attrs.has("activation"); }));
}

namespace {

/// Two residual blocks: x + dense(norm(x)).
std::vector<Program> residual_blocks(const std::string& norm, const std::string& more = "", int ranks = 1) {
  const JobSpec spec = parse_job(R"(
dataset: {type: random, shape: [16], label_shape: [16], label_dtype: f32, batch: 8}
network:
  - {name: first, type: dense, units: 16}
  - {name: norm1, type: )" + norm + R"(}
  - {name: dense1, type: dense, units: 16}
  - {name: sum1, type: add, inputs: [first, dense1]}
  - {name: norm2, type: )" + norm + R"(}
  - {name: dense2, type: dense, units: 16}
  - {name: sum2, type: add, inputs: [sum1, dense2]}
  - {name: last, type: dense, units: 16}
loss: mse
optimizer: {type: adam, learning_rate: 0.01}
)" + more + "\nlaunch: {ranks: " + std::to_string(ranks) +
                                     "}\n",
                                 "job.yaml");
  const Graph graph = build_graph(spec, data_and_label({16}, {16}));
  const CostModel cost = CostModel();
  return compile_all(graph, make_plan(graph, spec, cost), cost);
}

}  // namespace

TEST_CASE("a residual is added by the product before it, and its gradient by the norm's") {
  const Program program = residual_blocks("layer_norm", "parallel: {mode: stand_alone}")[0];
  CHECK(fuse_products_count(program, "add") == 0);
  int residuals = 0;
  for (const Instruction* product : fuse_products_of(program, "matmul")) residuals += product->attrs.flag("residual") ? 1 : 0;
  CHECK(residuals == 2);
  const auto gradients = fuse_products_of(program, "layer_norm_grad");
  REQUIRE(gradients.size() == 2);
  for (const Instruction* gradient : gradients) {
    CHECK(gradient->attrs.flag("residual"));
    CHECK(gradient->inputs.size() == 6);
  }
}

TEST_CASE("one kernel computes the gradients of a norm's input and parameters") {
  for (const auto& [norm, parameters] : {std::pair{"layer_norm", 2}, std::pair{"rms_norm", 1}}) {
    CAPTURE(norm);
    const Program program = residual_blocks(norm, "parallel: {mode: stand_alone, micro_batches: 2}")[0];
    CHECK(fuse_products_count(program, std::string(norm) + "_param_grad") == 0);
    const auto gradients = fuse_products_of(program, std::string(norm) + "_grad");
    REQUIRE(gradients.size() == 4);
    for (const Instruction* gradient : gradients)
      CHECK(gradient->outputs.size() == static_cast<size_t>(1 + parameters));
    CHECK_FALSE(gradients[0]->outputs[1].accumulate);
    CHECK(gradients[3]->outputs[1].accumulate);
  }
}

TEST_CASE("a norm without parameters has only the gradient of its input") {
  const Program program = residual_blocks("layer_norm, affine: false", "parallel: {mode: stand_alone}")[0];
  for (const Instruction* gradient : fuse_products_of(program, "layer_norm_grad")) {
    CHECK(gradient->outputs.size() == 1);
    CHECK(gradient->attrs.flag("residual"));
  }
}
