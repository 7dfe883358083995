// Tests of plain SGD inside the kernels that compute the gradients (engine/compile/fuse/fuse_update.cpp).
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/compile/compile.h"
#include "engine/compile/verify/verify_programs.h"
#include "engine/model/model.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

/// Programs of tests/jobs/mlp.yaml; `optimizer` and `parallel` as in a job file.
std::vector<Program> update_programs(const std::string& optimizer, const std::string& parallel = "mode: stand_alone",
                                     int ranks = 1) {
  const JobSpec spec = job_spec("mlp", {"optimizer={learning_rate: 0.01, " + optimizer + "}",
                                        "parallel={" + parallel + "}", "launch.ranks=" + std::to_string(ranks)});
  const Graph graph = build_graph(spec, data_and_label(spec.dataset.shape, spec.dataset.label_shape));
  const CostModel cost = CostModel();
  return compile_all(graph, make_plan(graph, spec, cost), cost);
}

Program alone(const std::string& optimizer, const std::string& parallel = "mode: stand_alone") {
  return update_programs(optimizer, parallel)[0];
}

/// The number of parameters that kernels update themselves. The weight and the bias of a layer may be two outputs of
/// one kernel.
int64_t steps(const Program& program) {
  int64_t count = 0;
  for (const Instruction& i : program.instructions)
    if (i.attrs.flag("descend")) count += static_cast<int64_t>(i.outputs.size());
  return count;
}

}  // namespace

TEST_CASE("plain SGD on one rank keeps no gradients: each parameter is updated once, in place") {
  const Program program = alone("type: sgd");
  CHECK(program.memory.gradients == 0);
  CHECK(std::none_of(program.instructions.begin(), program.instructions.end(),
                     [](const Instruction& i) { return i.op == "sgd_update"; }));
  CHECK(steps(program) == static_cast<int64_t>(program.variables.size()));
  CHECK(verify_programs({program}).empty());
}

TEST_CASE("a step inside a kernel comes after the last read of its parameter") {
  const Program program = alone("type: sgd");
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (!program.instructions[i].attrs.flag("descend")) continue;
    for (const Operand& weights : program.instructions[i].outputs)
      for (size_t later = i + 1; later < program.instructions.size(); ++later)
        for (const Operand& in : program.instructions[later].inputs) CHECK(in.offset != weights.offset);
  }
}

TEST_CASE("gradients are kept if anything besides one kernel needs them") {
  CHECK(steps(alone("type: sgd, momentum: 0.9")) == 0);
  CHECK(steps(alone("type: sgd, weight_decay: 0.1")) == 0);
  CHECK(steps(alone("type: sgd, clip_norm: 1.0")) == 0);
  CHECK(steps(alone("type: adam")) == 0);
  CHECK(steps(alone("type: sgd", "micro_batches: 2")) == 0);
  for (const Program& program : update_programs("type: sgd", "mode: data_parallel", 2)) {
    CHECK(steps(program) == 0);
    CHECK(program.memory.gradients > 0);
  }
}

TEST_CASE("a parameter that is updated twice, or never, is a fault") {
  Program twice = alone("type: sgd");
  const auto step = std::find_if(twice.instructions.begin(), twice.instructions.end(),
                                 [](const Instruction& i) { return i.attrs.flag("descend"); });
  REQUIRE(step != twice.instructions.end());
  Program never = twice;
  never.instructions.erase(never.instructions.begin() + (step - twice.instructions.begin()));
  Instruction again = *step;
  again.launch = -1;
  twice.instructions.push_back(again);
  const auto faults_of = [](const Program& program) {
    std::string text;
    for (const ProgramFault& fault : verify_programs({program})) text += fault.message + "\n";
    return text;
  };
  CHECK(faults_of(twice).find("is updated 2 times in one step") != std::string::npos);
  CHECK(faults_of(never).find("is updated 0 times in one step") != std::string::npos);
}
