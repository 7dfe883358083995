// Tests which images are stored channels last (compile/lower/choose_formats.cpp), and where they are transposed.
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/compile/compile.h"
#include "engine/spec/parse.h"
#include "tests/compile/jobs.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

std::vector<Program> programs(const std::string& shape, const std::string& network, const std::string& more = "") {
  const Job j = job(parse_job("dataset: {type: random, shape: " + shape +
                                  ", label_shape: [], label_dtype: i32, classes: 4, batch: 8}\nnetwork:\n" + network +
                                  "  - {type: flatten}\n  - {name: out, type: dense, units: 4}\n"
                                  "loss: softmax_cross_entropy\n" +
                                  more,
                              "job.yaml"));
  return compile_all(j.graph, j.plan, CostModel());
}

std::vector<std::string> names_of(const Program& program, const std::string& op) {
  std::vector<std::string> names;
  for (const Instruction& i : program.instructions)
    if (i.opcode == Opcode::kernel && i.op == op) names.push_back(i.name);
  return names;
}

const Operand& output(const Program& program, const std::string& op) {
  const auto found = std::find_if(program.instructions.begin(), program.instructions.end(),
                                  [&](const Instruction& i) { return i.op == op; });
  REQUIRE(found != program.instructions.end());
  return found->outputs[0];
}

using Names = std::vector<std::string>;

constexpr const char* kTwoConvolutions =
    "  - {name: a, type: conv2d, channels: 6, kernel: 3}\n  - {type: relu}\n"
    "  - {name: pool, type: max_pool2d, kernel: 2}\n  - {name: b, type: conv2d, channels: 8, kernel: 2}\n";

}  // namespace

TEST_CASE("images between convolutions are channels last, and data and flattened images are transposed") {
  const Program program = programs("[3, 8, 8]", kTwoConvolutions)[0];
  CHECK(names_of(program, "transpose") == Names{"transpose data", "transpose b", "transpose grad.b"});
  const Operand& y = output(program, "conv2d");
  CHECK(y.format == Format::channels_last);
  CHECK(y.shape == Shape{8, 6, 6, 6});
  CHECK(output(program, "max_pool2d").shape == Shape{8, 3, 3, 6});
  CHECK(output(program, "conv2d_weight_grad").format == Format::declared);
  CHECK(to_string(program).find("[8, 3, 3, 6] channels_last @") != std::string::npos);
}

TEST_CASE("images of one channel, or of one pixel, are not moved by a change of format") {
  const Program program =
      programs("[1, 8, 8]", std::string(kTwoConvolutions) + "  - {type: global_avg_pool, keep_dims: true}\n")[0];
  CHECK(names_of(program, "transpose").empty());
  CHECK(output(program, "conv2d").format == Format::channels_last);
}

TEST_CASE("concat, split and a transpose to channels last take images as they are stored") {
  const Job j = job(job_spec("joined_images"));
  const Program program = compile_all(j.graph, j.plan, CostModel())[0];
  CHECK(names_of(program, "transpose") == Names{"transpose data", "pixels", "pixels.grad_in0"});
  for (const char* op : {"concat", "split"}) CHECK_MESSAGE(output(program, op).format == Format::channels_last, op);
}

TEST_CASE("images that no kernel prefers channels last stay as the graph declares them") {
  const Program program = programs("[3, 8, 8]", "  - {type: max_pool2d, kernel: 2}\n  - {type: relu}\n")[0];
  CHECK(names_of(program, "transpose").empty());
  CHECK(output(program, "max_pool2d").format == Format::declared);
}

TEST_CASE("a convolution's bias and relu are fused into it, and the gradients of its weight and bias are one kernel") {
  const Program program = programs("[3, 8, 8]", kTwoConvolutions, "optimizer: {type: adam}\n")[0];
  for (const char* op : {"add_bias", "relu", "bias_grad"}) CHECK_MESSAGE(names_of(program, op).empty(), op);
  CHECK(names_of(program, "conv2d").size() == 2);
}

TEST_CASE("tensors that are sent or redistributed stay channels last, and the programs pass verification") {
  for (const char* parallel :
       {"parallel: {mode: semi_auto_parallel, stages: 2, micro_batches: 2}\nlaunch: {ranks: 4}\n",
        "parallel: {mode: semi_auto_parallel, strategies: {a: [[2, 1, 1, 1], [2, 1, 1, 1]], b: [[1, 2, 1, 1]]}}\n"
        "launch: {ranks: 4}\n",
        "parallel: {mode: data_parallel, recompute: ['*']}\nlaunch: {ranks: 2}\n"}) {
    CAPTURE(std::string(parallel));
    const std::vector<Program> all = programs("[3, 8, 8]", kTwoConvolutions, parallel);
    for (const Program& program : all)
      for (const Instruction& i : program.instructions)
        if (i.opcode == Opcode::send && i.inputs[0].shape.size() == 4)
          CHECK(i.inputs[0].format == Format::channels_last);
  }
}

TEST_CASE("a split of an image into more parts than a mask has bits runs on the declared layout") {
  std::string parts = "s.0";
  for (int i = 1; i < 33; ++i) parts += ", s." + std::to_string(i);
  const Program program = programs("[3, 8, 8]",
                                   "  - {name: a, type: conv2d, channels: 33, kernel: 3}\n"
                                   "  - {name: s, type: split, dim: 1, parts: 33}\n"
                                   "  - {name: j, type: concat, dim: 1, inputs: [" +
                                       parts + "]}\n  - {name: b, type: conv2d, channels: 8, kernel: 2}\n")[0];
  for (const Instruction& i : program.instructions) {
    if (i.op != "split") continue;
    REQUIRE(i.outputs.size() == 33);
    for (const Operand& part : i.outputs) CHECK(part.format == Format::declared);
  }
}
