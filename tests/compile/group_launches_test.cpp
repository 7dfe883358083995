// Tests of instructions that may share a launch.
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

/// The launches in order, each as text: "matmul*3 mae_with_grad".
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

const std::string kUpdates = "matmul_weight_grad matmul_weight_grad matmul_weight_grad";

}  // namespace

TEST_CASE("the updates of a small step move behind the products that follow, and are one launch") {
  for (const char* batch : {"dataset.batch=32", "dataset.batch=512"}) {
    const Program p = mlp({batch});
    CHECK(launches(p) == std::vector<std::string>{kUpdates});
    CHECK(p.instructions.back().op == "matmul_weight_grad");
  }
}

TEST_CASE("weight gradients that are kept or summed over ranks share a launch too") {
  CHECK(launches(mlp({"optimizer={type: adam}"})) == std::vector<std::string>{kUpdates});
  CHECK(launches(mlp({"launch.ranks=2", "parallel.mode=data_parallel"})) == std::vector<std::string>{kUpdates});
}

TEST_CASE("each micro-batch has its own launches") {
  CHECK(launches(mlp({"dataset.batch=1024", "parallel.micro_batches=2"})) ==
        std::vector<std::string>{kUpdates, kUpdates});
}

TEST_CASE("weight gradients of more rows, of large products or not in f32 are launched alone") {
  CHECK(launches(mlp({"dataset.batch=4096"})).empty());
  CHECK(launches(mlp({"precision=bf16"})).empty());
  CHECK(launches(mlp({"dataset.batch=1024",
                      "network=[{name: a, type: dense, units: 8192}, {name: b, type: dense, units: 1}]"}))
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
}

TEST_CASE("small loads are at the start of their micro-batch") {
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
  const size_t last = right.instructions.size() - 1;
  REQUIRE(right.instructions[last - 2].launch >= 0);
  Program shared = right;
  shared.instructions[last].outputs[0].offset = shared.instructions[last - 1].outputs[0].offset;
  CHECK(faults(shared) > 0);
  Program torn = right;
  torn.instructions[last - 1].launch = -1;
  CHECK(faults(torn) > 0);
}
