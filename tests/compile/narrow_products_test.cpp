// precision: fp8: which products take factors of 8 bits, and where those are rounded.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "engine/compile/compile.h"
#include "engine/model/model.h"
#include "engine/plan/narrow_layers.h"
#include "tests/compile/sketch.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

struct Compiled {
  JobSpec spec;
  Graph graph;
  Plan plan;
  std::vector<Program> programs;
};

Compiled narrow_compiled(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), {"vars.d=32", "vars.heads=4", "vars.length=16", "vars.vocab=64",
                                       "dataset.batch=16", "precision=fp8", "fp8.min_weight=0"});
  Compiled c;
  c.spec = job_spec("gpt", overrides);
  c.graph = build_graph(c.spec, data_and_label({16}, {16}, true, true));
  c.plan = make_plan(c.graph, c.spec, CostModel());
  c.programs = compile_all(c.graph, c.plan, CostModel());
  return c;
}

std::vector<std::string> narrow_names(const Compiled& c) {
  const std::vector<bool> narrow = c.plan.numerics.narrow_layers;
  std::vector<std::string> names;
  for (size_t l = 0; l < narrow.size(); ++l)
    if (narrow[l]) names.push_back(c.graph.layers[l].name);
  return names;
}

std::map<std::string, int> count_ops(const Program& program) {
  std::map<std::string, int> count;
  for (const Instruction& i : program.instructions)
    if (i.opcode == Opcode::kernel) ++count[i.op];
  return count;
}

const Instruction& only(const Program& program, const std::string& name) {
  const std::vector<int> found = find_all(program, Opcode::kernel, name);
  REQUIRE(found.size() == 1);
  return program.instructions[static_cast<size_t>(found[0])];
}

}  // namespace

TEST_CASE("fp8: all dense layers but the head, unless fp8.layers or the size of their weight leaves them out") {
  const std::vector<std::string> all = {"h.0.qkv", "h.0.proj", "h.0.up", "h.0.down",
                                        "h.1.qkv", "h.1.proj", "h.1.up", "h.1.down"};
  CHECK(narrow_names(narrow_compiled({})) == all);
  CHECK(narrow_names(narrow_compiled({"fp8.layers=[h.0.*, head]"})) ==
        std::vector<std::string>{"h.0.qkv", "h.0.proj", "h.0.up", "h.0.down", "head"});
  CHECK(narrow_names(narrow_compiled({"fp8.min_weight=4096"})) ==
        std::vector<std::string>{"h.0.up", "h.0.down", "h.1.up", "h.1.down"});
  CHECK(narrow_names(narrow_compiled({"vars.d=40"})).empty());  // no multiple of 16
}

TEST_CASE(
    "fp8: forward, input gradient and weight gradient of a layer multiply factors of 8 bits, and no other product") {
  const Compiled c = narrow_compiled({});
  int narrow = 0, wide = 0;
  for (const Instruction& i : c.programs[0].instructions) {
    const KernelDef* kernel = kernel_of(i);
    if (kernel == nullptr || !kernel->is_product) continue;
    const bool takes_words = i.inputs[0].dtype == DType::i32;
    CHECK(takes_words == !i.name.starts_with("head"));
    ++(takes_words ? narrow : wide);
  }
  CHECK(narrow == 3 * 8);
  CHECK(wide == 3);
}

TEST_CASE("fp8: a value is rounded once for all products that read it, a weight once per step") {
  for (const char* micro_batches : {"1", "2"}) {
    const Compiled c = narrow_compiled({std::string("parallel.micro_batches=") + micro_batches});
    const int n = micro_batches[0] - '0';
    const auto count = count_ops(c.programs[0]);
    // Each layer quantises its weight once, and x and dy for each micro-batch.
    CHECK(count.at("quantise") == 8 + 2 * 8 * n);
    const Instruction& weight = only(c.programs[0], "quantise h.0.up.weight");
    CHECK(weight.attrs.flag("rows"));
    CHECK(weight.attrs.flag("columns"));
    CHECK(weight.attrs.flag("squares"));
  }
}

TEST_CASE("fp8: of a layer's input only 8 bits are kept for the backward pass") {
  const Program program = std::move(narrow_compiled({}).programs[0]);
  const std::vector<int> found = find_all(program, Opcode::kernel, "quantise h.0.ln1");
  REQUIRE(found.size() == 1);
  const Operand& x = program.instructions[static_cast<size_t>(found[0])].inputs[0];
  for (size_t i = static_cast<size_t>(found[0]) + 1; i < program.instructions.size(); ++i) {
    for (const Operand& in : program.instructions[i].inputs) CHECK(in.tensor != x.tensor);
  }
}

TEST_CASE("fp8: tensors recomputed for the backward pass are rounded again, by columns only") {
  const Program program = std::move(narrow_compiled({"parallel.recompute=['h.*.ln1']"}).programs[0]);
  const std::vector<int> found = find_all(program, Opcode::kernel, "quantise h.0.ln1");
  REQUIRE(found.size() == 2);
  const auto attrs = [&](size_t i) { return program.instructions[static_cast<size_t>(found[i])].attrs; };
  CHECK(attrs(0).flag("rows"));
  CHECK(!attrs(0).flag("columns"));
  CHECK(!attrs(1).flag("rows"));
  CHECK(attrs(1).flag("columns"));
}

TEST_CASE("fp8: the programs of all ranks are proved, at every level of optimizer_shard and in stages") {
  for (const std::string level : {"0", "1", "2", "3"}) {
    const auto programs =
        narrow_compiled({"launch.ranks=4", "parallel.mode=data_parallel",
                         "parallel.optimizer_shard={min_kb: 0, level: " + level + "}", "parallel.micro_batches=2"})
            .programs;
    CHECK(count_ops(programs[0]).at("matmul_fp8") == 2 * 3 * 8);
  }
  const auto staged =
      narrow_compiled({"launch.ranks=4", "parallel.mode=semi_auto_parallel", "parallel.stages=2",
                       "parallel.micro_batches=2", "parallel.stage_config={'h.1.*': 1, ln_f: 1, head: 1}",
                       "parallel.strategies={'h.*.up': [[1, 1, 1], [2, 1]]}"})
          .programs;
  CHECK(count_ops(staged[0]).at("matmul_fp8") == 2 * 3 * 4);
}

TEST_CASE("fp8: recipe tensor takes the largest magnitude of a tensor on all ranks that have a part of it") {
  const auto of = [](std::vector<std::string> overrides) {
    overrides.emplace_back("fp8.recipe=tensor");
    return std::move(narrow_compiled(std::move(overrides)).programs[0]);
  };
  const auto gathers = [](const Program& program) {
    return std::count_if(program.instructions.begin(), program.instructions.end(), [](const Instruction& i) {
      return i.opcode == Opcode::collective && i.name.starts_with("all_gather amax.");
    });
  };
  const Program alone = of({}), both = of({"launch.ranks=2", "parallel.mode=data_parallel"});
  const auto count = count_ops(alone);
  CHECK(count.at("amax") == count.at("quantise"));
  CHECK(gathers(alone) == 0);
  CHECK(gathers(both) == 2 * 8);  // x and dy of each layer, of which each rank has some rows, but not the weights
  for (const Instruction& i : alone.instructions) {
    if (i.opcode != Opcode::kernel || i.op != "quantise") continue;
    CHECK(i.attrs.flag("e5m2") == i.inputs[0].tensor.starts_with("grad."));
  }
}

TEST_CASE("fp8: a delayed scale is updated once per step for each tensor, and its state is in checkpoints") {
  for (const char* micro_batches : {"1", "2"}) {
    const Compiled c =
        narrow_compiled({"fp8.recipe=delayed", "fp8.amax_history_len=16", "launch.ranks=2",
                         "parallel.mode=data_parallel", std::string("parallel.micro_batches=") + micro_batches});
    const auto count = count_ops(c.programs[0]);
    CHECK(count.at("update_fp8_scale") == 3 * 8);
    CHECK(count.at("amax") == count.at("quantise"));
    CHECK(c.programs[0].other_states.size() == 3 * 8);
    for (const OtherState& state : c.programs[0].other_states) CHECK(state.variable.shape == Shape{2 + 16});
  }
}
