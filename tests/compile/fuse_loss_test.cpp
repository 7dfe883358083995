// Tests of a loss and its gradient that are fused into one instruction.
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/compile/compile.h"
#include "engine/model/model.h"
#include "engine/spec/parse.h"
#include "tests/compile/sketch.h"

using namespace trainctl;

namespace {

std::vector<Program> loss_compiled(const std::string& loss, const std::vector<std::string>& overrides) {
  const bool classes = loss == "softmax_cross_entropy";
  const JobSpec spec =
      parse_job("dataset: {type: random, shape: [32], batch: 16, " +
                    std::string(classes ? "label_dtype: i32, classes: 8}" : "label_dtype: f32, label_shape: [8]}") +
                    R"(
network:
  - {name: a, type: dense, units: 24}
  - {name: act, type: tanh}
  - {name: d, type: dense, units: 8}
loss: )" + loss + "\n",
                "job.yaml", overrides);
  const Graph graph = build_graph(spec, data_and_label(spec.dataset.shape, spec.dataset.label_shape, false, classes));
  return compile_all(graph, make_plan(graph, spec, CostModel()), CostModel());
}

int count(const Program& program, const std::string& op) {
  const auto is = [&](const Instruction& i) { return i.opcode == Opcode::kernel && i.op == op; };
  return static_cast<int>(std::count_if(program.instructions.begin(), program.instructions.end(), is));
}

}  // namespace

TEST_CASE(
    "each micro-batch's loss and gradient are one kernel, the gradient in the prediction's memory "
    "unless both are in one launch") {
  for (const std::string loss : {"softmax_cross_entropy", "mae", "mse"}) {
    for (const std::string precision : {"fp32", "bf16"}) {
      CAPTURE(loss);
      CAPTURE(precision);
      const std::vector<Program> programs = loss_compiled(loss, {"launch.ranks=4", "parallel.mode=data_parallel",
                                                                 "parallel.micro_batches=2", "precision=" + precision});
      for (const Program& p : programs) {
        CHECK(count(p, loss + "_with_grad") == 2);
        CHECK(count(p, loss) == 0);
        CHECK(count(p, loss + "_grad") == 0);
        for (const Instruction& i : p.instructions) {
          if (i.op != loss + "_with_grad") continue;
          CHECK(i.outputs[0].accumulate == (i.micro_batch > 0));
          CHECK((i.outputs[1].offset == i.inputs[0].offset) == (i.launch < 0));
          CHECK(i.outputs[1].dtype == i.inputs[0].dtype);
        }
      }
    }
  }
}

TEST_CASE("if the backward pass comes much later, the gradient takes no more memory than the prediction did") {
  const std::vector<std::string> gpipe = {"launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.stages=2",
                                          "parallel.micro_batches=4", "parallel.schedule=gpipe"};
  const Program last = loss_compiled("mse", gpipe)[1];
  CHECK(count(last, "mse_with_grad") == 4);
  // The second layer that reads the prediction needs it unchanged.
  std::vector<std::string> read_again = gpipe;
  read_again.emplace_back(
      "network=[{name: a, type: dense, units: 24}, {name: d, type: dense, units: 8}, {name: act, type: tanh}]");
  CHECK(count(loss_compiled("mse", read_again)[1], "mse_with_grad") == 0);
  std::vector<std::string> at_once = read_again;
  at_once.emplace_back("parallel.schedule=1f1b");
  CHECK(count(loss_compiled("mse", at_once)[1], "mse_with_grad") == 4);
}

TEST_CASE("a prediction that is recomputed for the backward pass is not the one that the loss read") {
  const Program p = loss_compiled("mse", {"parallel.recompute=[d]"})[0];
  CHECK(count(p, "mse") == 1);
  CHECK(count(p, "mse_grad") == 1);
}
