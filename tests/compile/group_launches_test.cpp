// Instructions that may share a launch.
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/compile/compile.h"
#include "engine/compile/verify/verify_programs.h"
#include "engine/model/model.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

std::vector<Program> all_ranks(const std::vector<std::string>& overrides) {
  const JobSpec spec = job_spec("small_step", overrides);
  const Graph graph = build_graph(spec, data_and_label(spec.dataset.shape, spec.dataset.label_shape));
  return compile_all(graph, make_plan(graph, spec, CostModel()), CostModel());
}

Program mlp(const std::vector<std::string>& overrides) { return all_ranks(overrides)[0]; }

/// "matmul*3 mae_with_grad" for each launch, in order.
std::vector<std::string> launches(const Program& p) {
  std::vector<std::string> found;
  for (size_t i = 0; i < p.instructions.size(); ++i) {
    const Instruction& code = p.instructions[i];
    if (code.launch < 0) continue;
    if (i == 0 || p.instructions[i - 1].launch != code.launch) found.emplace_back();
    found.back() += (found.back().empty() ? "" : " ") + code.op;
  }
  return found;
}

const std::string kChain = "matmul matmul matmul mae_with_grad matmul matmul";
const std::string kHead = "matmul mae_with_grad matmul";
const std::string kUpdates = "matmul_weight_grad matmul_weight_grad matmul_weight_grad";

}  // namespace

TEST_CASE("a small step on one rank is two launches: forward and backward by rows, followed by the updates") {
  for (const char* batch : {"dataset.batch=32", "dataset.batch=48"})
    CHECK(launches(mlp({batch})) == std::vector<std::string>{kChain, kUpdates});
}

TEST_CASE("weight gradients that are kept or summed over ranks share a launch too") {
  CHECK(launches(mlp({"optimizer={type: adam}"})) == std::vector<std::string>{kChain, kUpdates});
  CHECK(launches(mlp({"launch.ranks=2", "parallel.mode=data_parallel"})) == std::vector<std::string>{kChain, kUpdates});
}

TEST_CASE(
    "weight gradients with more rows than a chain allows move behind the products that follow, and are one launch") {
  const Program p = mlp({"dataset.batch=512"});
  CHECK(launches(p) == std::vector<std::string>{kHead, kUpdates});
  CHECK(p.instructions.back().op == "matmul_weight_grad");
  const std::vector<std::string> found = launches(mlp({"dataset.batch=1024", "parallel.micro_batches=2"}));
  CHECK(found == std::vector<std::string>{kHead, kUpdates, kHead, kUpdates});
}

TEST_CASE("with more rows than a chain allows, the last product, the loss and the backward product are one launch") {
  const Program p = mlp({"dataset.batch=4096"});
  CHECK(launches(p) == std::vector<std::string>{kHead});
  std::vector<std::string> names;
  for (const Instruction& i : p.instructions)
    if (i.launch >= 0) names.push_back(i.name);
  CHECK(names == std::vector<std::string>{"c", "loss", "relu_b.grad_in0"});
  CHECK(launches(mlp({"dataset.batch=49"}))[0] == kHead);
  CHECK(launches(mlp({"dataset.batch=48"}))[0] == kChain);
}

TEST_CASE("a head has few outputs, and one product on each side of its loss") {
  const auto outputs = [](const std::string& layers, const std::string& label) {
    return launches(mlp({"dataset.batch=4096", "loss=mse", "dataset.label_shape=" + label, "network=" + layers}));
  };
  const std::string kMse = "matmul mse_with_grad matmul";
  CHECK(outputs("[{name: a, type: dense, units: 64}, {name: b, type: dense, units: 16}]", "[16]") ==
        std::vector<std::string>{kMse});
  CHECK(outputs("[{name: a, type: dense, units: 64}, {name: b, type: dense, units: 17}]", "[17]").empty());
  CHECK(
      outputs("[{name: a, type: dense, units: 64}, {name: b, type: dense, units: 8}, {name: c, type: dense, units: 4}]",
              "[4]") == std::vector<std::string>{kMse});  // not the layers before, although they also have few outputs
  CHECK(outputs("[{name: a, type: dense, units: 4}]", "[4]") ==
        std::vector<std::string>{"matmul mse_with_grad"});  // the data's gradient is not needed
  CHECK(outputs("[{name: a, type: dense, units: 64}, {name: b, type: dense, units: 4}, {name: c, type: tanh}]", "[4]")
            .empty());
}

TEST_CASE("heads are launches in bf16 too, and after gelu") {
  CHECK(launches(mlp({"dataset.batch=4096", "precision=bf16"})) == std::vector<std::string>{kHead});
  const std::string gelu =
      "network=[{name: a, type: dense, units: 64}, {name: g, type: gelu}, {name: b, type: dense, units: 10}]";
  CHECK(launches(mlp({"dataset.batch=4096", "loss=mse", "dataset.label_shape=[10]", gelu})) ==
        std::vector<std::string>{"matmul mse_with_grad matmul"});
}

TEST_CASE("each micro-batch has its own launches") {
  const std::vector<std::string> found =
      launches(mlp({"parallel.micro_batches=2", "launch.ranks=2", "parallel.mode=data_parallel"}));
  CHECK(std::count(found.begin(), found.end(), kChain) == 2);
}

TEST_CASE("parallel layers are not a chain") {
  const std::vector<std::string> found =
      launches(mlp({"network=[{name: a, type: dense, units: 64}, {name: b, type: dense, units: 64, "
                    "inputs: [a]}, {name: c, type: dense, units: 64, inputs: [a]}, {name: d, type: "
                    "add, inputs: [b, c]}, {name: e, type: dense, units: 1}]"}));
  CHECK(found[0] == "matmul matmul");  // a, b
  CHECK(std::none_of(found.begin(), found.end(), [](const std::string& ops) { return ops == "matmul matmul matmul"; }));
}

TEST_CASE("large products are launched alone, and so are layers and weight gradients that are not f32") {
  CHECK(launches(mlp({"dataset.batch=8192"})) == std::vector<std::string>{kHead});
  CHECK(launches(mlp({"precision=bf16"})) == std::vector<std::string>{kHead});
  CHECK(launches(mlp({"dataset.batch=8192", "dataset.label_shape=[64]",
                      "network=[{name: a, type: dense, units: 64}, {name: b, type: dense, units: 64}]"}))
            .empty());
}

TEST_CASE("ranks that compute the same values launch the same kernels, even if one of them counts the loss or prints") {
  const std::vector<Program> ranks = all_ranks(
      {"launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.strategies={a: [[1, 1], [2, 1]]}", "print=[b]"});
  const auto of_replicas = [](const Program& p) {  // what follows the cut layer, and which kernels share a launch
    std::vector<std::string> found;
    int first = -1;
    for (const Instruction& i : p.instructions) {
      if (i.op != "matmul" && i.op != "matmul_weight_grad") continue;
      if (i.launch >= 0 && first < 0) first = i.launch;
      found.push_back(i.name + (i.launch < 0 ? "" : " " + std::to_string(i.launch - first)));
    }
    return found;
  };
  CHECK(of_replicas(ranks[0]) == of_replicas(ranks[1]));
  const std::vector<std::string> found = launches(ranks[0]);
  CHECK(std::none_of(found.begin(), found.end(), [](const std::string& ops) { return ops.find("mae") != ops.npos; }));
}

TEST_CASE("small loads stand at the start of their micro-batch") {
  const Program p = mlp({});
  CHECK(p.instructions[0].opcode == Opcode::load);
  CHECK(p.instructions[1].opcode == Opcode::load);
}

TEST_CASE(
    "verify: a launch that writes where another of its kernels reads is a fault, and so is one that is not "
    "contiguous") {
  const auto faults = [](const Program& p) { return verify_programs({p}).size(); };
  const Program right = mlp({});
  REQUIRE(faults(right) == 0);
  Program shared = right;
  shared.instructions[4].outputs[0].offset = shared.instructions[3].outputs[0].offset;
  CHECK(faults(shared) > 0);
  Program torn = right;
  torn.instructions[4].launch = -1;
  CHECK(faults(torn) > 0);
}
