// The states and update kernels in a program for each optimizer of the list (engine/ops/optimizer_def.h).
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/compile/compile.h"
#include "engine/compile/verify/verify_programs.h"
#include "engine/model/model.h"
#include "engine/ops/optimizer_def.h"
#include "engine/spec/parse.h"

using namespace trainctl;

namespace {

struct OptimizersCompiled {
  JobSpec spec;
  Program program;
};

/// A layer of 16 x 32 and its bias, on two ranks so that gradients are summed and updated separately.
OptimizersCompiled optimizers_compiled(const std::string& optimizer) {
  OptimizersCompiled made;
  made.spec = parse_job(R"(
dataset: {type: random, shape: [16], label_shape: [32], label_dtype: f32, batch: 8}
network: [{name: fc, type: dense, units: 32}]
loss: mse
parallel: {mode: data_parallel}
launch: {ranks: 2}
optimizer: )" + optimizer + "\n",
                        "job.yaml");
  const Graph graph = build_graph(made.spec, data_and_label({16}, {32}));
  const CostModel cost = CostModel();
  const std::vector<Program> programs = compile_all(graph, make_plan(graph, made.spec, cost), cost);
  CHECK(verify_programs(programs).empty());
  made.program = programs[0];
  return made;
}

void check_updates(const std::string& text) {
  CAPTURE(text);
  const auto [spec, program] = optimizers_compiled(text);
  const Optimizer optimizer(spec.optimizer.type, spec.optimizer.attrs);
  const std::vector<std::string> states = optimizer.states();
  int updates = 0;
  for (const Instruction& i : program.instructions) {
    if (i.op != optimizer.def.kernel->name) continue;
    ++updates;
    REQUIRE(i.outputs.size() == 1 + states.size());
    for (size_t s = 0; s < states.size(); ++s) CHECK(i.outputs[1 + s].tensor.starts_with(states[s] + "."));
    for (const auto& [name, value] : optimizer.kernel_attrs())
      CHECK(to_string(*i.attrs.find(name)) == to_string(value));
    CHECK(i.attrs.number("clip_norm") == spec.optimizer.clip_norm);
  }
  CHECK(updates == static_cast<int>(program.buckets.size()));
  int64_t elements = 0;
  for (const Bucket& bucket : program.buckets) elements += bucket.elements;
  CHECK(program.memory.optimizer == static_cast<int64_t>(states.size()) * elements * byte_size(DType::f32));
}

}  // namespace

TEST_CASE("every optimizer of the list: its kernel updates each bucket and has the states that it names") {
  for (const OptimizerDef* def : all_optimizers()) {
    const std::string name = def->name;
    check_updates("{type: " + name + "}");
    check_updates("{type: " + name + ", weight_decay: 0.1, clip_norm: 2}");
  }
  check_updates("{type: sgd, momentum: 0.9, nesterov: true}");
  check_updates("{type: adamw, amsgrad: true}");
  check_updates("{type: rmsprop, momentum: 0.9, centered: true}");
}

TEST_CASE("parameters with different settings are in different buckets, each updated with its own") {
  const Program program =
      optimizers_compiled(
          "{type: sgd, momentum: 0.5, weight_decay: 0.1, clip_norm: 2, groups: [{parameters: [fc.bias], momentum: 0, "
          "learning_rate_scale: 0.25}]}")
          .program;
  REQUIRE(program.buckets.size() == 2);
  int updates = 0;
  for (const Instruction& i : program.instructions) {
    if (i.op != "sgd_update") continue;
    ++updates;
    const bool of_bias = i.outputs.size() == 1;  // without momentum there is no state
    CHECK(i.attrs.number("momentum") == (of_bias ? 0.0 : 0.5));
    CHECK(i.attrs.number("learning_rate_scale", 1.0) == (of_bias ? 0.25 : 1.0));
    CHECK(i.attrs.number("weight_decay") == 0.1);
    CHECK(i.attrs.number("clip_norm") == 2.0);
  }
  CHECK(updates == 2);
}

TEST_CASE("a group with another learning rate is no plain step, so only the others take it in their kernels") {
  JobSpec spec = parse_job(R"(
dataset: {type: random, shape: [16], label_shape: [32], label_dtype: f32, batch: 8}
network: [{name: fc, type: dense, units: 32}]
loss: mse
optimizer: {groups: [{parameters: ['*.bias'], learning_rate_scale: 0.5}]}
)",
                           "job.yaml");
  const Graph graph = build_graph(spec, data_and_label({16}, {32}));
  const CostModel cost = CostModel();
  const std::vector<Program> programs = compile_all(graph, make_plan(graph, spec, cost), cost);
  CHECK(verify_programs(programs).empty());
  int fused = 0, updates = 0;
  for (const Instruction& i : programs[0].instructions) {
    fused += i.attrs.flag("descend") ? 1 : 0;
    updates += i.op == "sgd_update" ? 1 : 0;
  }
  CHECK(fused == 1);
  CHECK(updates == 1);
}

TEST_CASE(
    "with on_nan: skip every update reads the norm of all gradients, and the step reports whether it was skipped") {
  const auto compiled_with = [](const std::string& on_nan) {
    const JobSpec spec = parse_job(R"(
dataset: {type: random, shape: [16], label_shape: [32], label_dtype: f32, batch: 8}
network: [{name: fc, type: dense, units: 32}]
loss: mse
parallel: {mode: data_parallel, optimizer_shard: {level: 2, min_kb: 0}}
launch: {ranks: 2}
train: {on_nan: )" + on_nan + "}\n",
                                   "job.yaml");
    const Graph graph = build_graph(spec, data_and_label({16}, {32}));
    const CostModel cost = CostModel();
    const std::vector<Program> programs = compile_all(graph, make_plan(graph, spec, cost), cost);
    CHECK(verify_programs(programs).empty());
    return programs[0];
  };
  const Program skips = compiled_with("skip");
  REQUIRE(skips.metrics.size() == 1);
  CHECK(skips.metrics[0].name == kSkippedMetric);
  int updates = 0;
  for (const Instruction& i : skips.instructions) {
    if (!is_update(i)) continue;
    ++updates;
    CHECK(i.attrs.flag("skip_not_finite"));
    REQUIRE(i.inputs.size() == 2);
    CHECK(i.inputs[1].tensor == "clip_norm");
  }
  CHECK(updates > 0);
  CHECK(compiled_with("warn").metrics.empty());
}

TEST_CASE("states depend on the settings: plain sgd keeps none, momentum one, adam two") {
  CHECK(Optimizer("sgd", {}).states().empty());
  CHECK(Optimizer("sgd", {{"momentum", 0.9}}).states() == std::vector<std::string>{"momentum"});
  CHECK(Optimizer("adamw", {}).states() == std::vector<std::string>{"m", "v"});
}

TEST_CASE("an optimizer's settings are its own fields, with defaults for those that a job omits") {
  const Attrs adam = Optimizer("adam", {{"eps", 1e-6}, {"momentum", 0.9}}).settings;
  CHECK(to_string(adam) == "{amsgrad: false, betas: [0.9, 0.999], eps: 1e-06, weight_decay: 0.0}");
}
