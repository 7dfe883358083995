// The states and update kernels in a program for each optimizer of the list (engine/ops/optimizer_def.h).
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/compile/compile.h"
#include "engine/compile/verify/verify_programs.h"
#include "engine/model/evaluation.h"
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

/// Number of outputs of an update by `def`: the weight, its states and the memory that the kernel works in.
size_t num_outputs(const OptimizerDef& def, const Attrs& settings) {
  return 1 + Optimizer(def, settings).states().size() + (def.work_elements != nullptr ? 1 : 0);
}

/// The optimizer that an instruction runs: that of the job, or its companion. Both may have the same kernel, with other
/// states.
const OptimizerDef* updates_by(const Instruction& i, const OptimizerDef& def, const Attrs& settings) {
  const OptimizerDef* other = def.companion;
  if (other != nullptr && i.op == other->kernel->name &&
      (i.op != def.kernel->name || i.outputs.size() == num_outputs(*other, settings)))
    return other;
  return i.op == def.kernel->name ? &def : nullptr;
}

/// Elements of the states that a kernel other than the update writes, for the weight of the layer.
int64_t elements_of_factors(const OptimizerDef& def) {
  int64_t elements = 0;
  if (def.sums != nullptr && def.sums->states != nullptr)
    for (const auto& [name, shape] : def.sums->states({16, 32})) elements += num_elements(shape);
  return elements;
}

void check_updates(const std::string& text) {
  CAPTURE(text);
  const auto [spec, program] = optimizers_compiled(text);
  const OptimizerDef& job = get_optimizer(spec.optimizer.type);
  int updates = 0;
  int64_t kept = 0;
  for (const Instruction& i : program.instructions) {
    const OptimizerDef* const def = updates_by(i, job, spec.optimizer.attrs);
    if (def == nullptr) continue;
    ++updates;
    const Optimizer optimizer(*def, spec.optimizer.attrs);
    const std::vector<std::string> states = optimizer.states();
    REQUIRE(i.outputs.size() == num_outputs(*def, spec.optimizer.attrs));
    for (size_t s = 0; s < states.size(); ++s) CHECK(i.outputs[1 + s].tensor.starts_with(states[s] + "."));
    for (const auto& [name, value] : optimizer.kernel_attrs())
      CHECK(to_string(*i.attrs.find(name)) == to_string(value));
    CHECK(i.attrs.number("clip_norm") == spec.optimizer.clip_norm);
    kept += static_cast<int64_t>(states.size()) * num_elements(i.outputs[0].shape) * byte_size(DType::f32);
    kept += elements_of_factors(*def) * byte_size(DType::f32);
  }
  CHECK(updates == static_cast<int>(program.buckets.size()));
  CHECK(program.memory.optimizer == kept);
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

TEST_CASE("muon updates the weights of products, and adamw vectors and the groups that ask for it") {
  const auto updates_of = [](const std::string& text, const char* kernel) {
    const Program program = optimizers_compiled(text).program;
    return std::count_if(program.instructions.begin(), program.instructions.end(),
                         [&](const Instruction& i) { return i.op == kernel; });
  };
  CHECK(updates_of("muon", "muon_update") == 1);
  CHECK(updates_of("muon", "adam_update") == 1);
  CHECK(updates_of("{type: muon, adamw: true}", "muon_update") == 0);
  CHECK(updates_of("{type: muon, groups: [{parameters: [fc.weight], adamw: true}]}", "muon_update") == 0);
}

TEST_CASE("an optimizer that needs whole parameters has each of them in one shard, and shards of equal sizes") {
  const JobSpec spec = parse_job(R"(
dataset: {type: random, shape: [16], label_shape: [5], label_dtype: f32, batch: 8}
network:
  - {name: a, type: dense, units: 24}
  - {name: b, type: dense, units: 31, bias: false}
  - {name: c, type: dense, units: 7, bias: false}
  - {name: d, type: dense, units: 5}
loss: mse
parallel: {mode: data_parallel, optimizer_shard: {level: 2, min_kb: 0}}
launch: {ranks: 4}
optimizer: {type: lamb, clip_norm: 1, average: ema}
)",
                                 "job.yaml");
  const Graph graph = build_graph(spec, data_and_label({16}, {5}));
  const CostModel cost = CostModel();
  const std::vector<Program> programs = compile_all(graph, make_plan(graph, spec, cost), cost);
  CHECK(verify_programs(programs).empty());
  for (const Program& program : programs) {
    int in_shards = 0;
    for (const Variable& v : program.variables) {
      const Bucket& bucket = program.buckets[static_cast<size_t>(v.bucket)];
      const int64_t first = v.bucket_element / bucket.shard_elements();
      CHECK((v.bucket_element + num_elements(v.shape) - 1) / bucket.shard_elements() == first);
      in_shards += bucket.shards > 1 ? 1 : 0;
    }
    CHECK(in_shards == 6);
    for (const Instruction& i : program.instructions)
      if (i.op == "lamb_update") CHECK(i.attrs.int_lists("parameters").size() == 4);
  }
}

TEST_CASE(
    "with an average each bucket has a copy of its weights, and one more program exchanges both and gathers them") {
  for (const int level : {0, 1, 2, 3}) {
    CAPTURE(level);
    const JobSpec spec = parse_job(R"(
dataset: {type: random, shape: [16], label_shape: [32], label_dtype: f32, batch: 8}
network: [{name: fc, type: dense, units: 32}]
loss: mse
parallel: {mode: data_parallel, optimizer_shard: {level: )" +
                                       std::to_string(level) +
                                       R"(, min_kb: 0}}
launch: {ranks: 2}
optimizer: {type: adamw, average: swa}
)",
                                   "job.yaml");
    const Graph graph = build_graph(spec, data_and_label({16}, {32}));
    const CostModel cost = CostModel();
    const Plan plan = make_plan(graph, spec, cost);
    const std::vector<Program> programs = compile_all(graph, plan, cost);
    CHECK(verify_programs(programs).empty());
    const Graph evaluated = evaluation_graph(graph);
    const EvaluationOf of{.trained = graph, .only = EvaluationOf::Only::exchange};
    std::vector<Program> exchanges;
    for (int rank = 0; rank < 2; ++rank) exchanges.push_back(compile(evaluated, plan, cost, rank, &of));
    CHECK(verify_programs(exchanges).empty());
    for (size_t b = 0; b < programs[0].buckets.size(); ++b) {
      CHECK(programs[0].buckets[b].average_offset >= 0);
      CHECK(programs[0].buckets[b].average_offset == exchanges[0].buckets[b].average_offset);
      CHECK(programs[0].buckets[b].weights_offset == exchanges[0].buckets[b].weights_offset);
    }
    const auto gathers = std::count_if(exchanges[0].instructions.begin(), exchanges[0].instructions.end(),
                                       [](const Instruction& i) { return i.opcode == Opcode::collective; });
    CHECK(gathers == (level == 1 || level == 2 ? static_cast<long>(exchanges[0].buckets.size()) : 0));
  }
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
