// precision: what the programs of bf16 and tf32 jobs keep, move and update.
#include <doctest/doctest.h>

#include "engine/compile/compile.h"
#include "engine/compile/verify_programs.h"
#include "engine/model/model.h"
#include "engine/spec/parse.h"
#include "tests/compile/sketch.h"

using namespace trainctl;

namespace {

const std::string kJob = R"(
dataset: {type: random, shape: [32], label_dtype: f32, batch: 16}
network:
  - {name: a, type: dense, units: 64}
  - {name: ln, type: layer_norm}
  - {name: act, type: relu}
  - {name: d, type: dense, units: 1}
loss: mse
optimizer: {type: adam, learning_rate: 0.01}
parallel: {mode: data_parallel}
launch: {ranks: 4}
)";

std::vector<Program> compiled(const std::vector<std::string>& overrides) {
  const JobSpec spec = parse_job(kJob, "job.yaml", overrides);
  const Graph graph = build_graph(spec, {spec.dataset.shape, spec.dataset.label_shape, false, false});
  const Plan plan = make_plan(graph, spec, CostModel::cpu());
  return compile_all(graph, plan, spec, CostModel::cpu());
}

std::vector<Program> bf16(int level) {
  return compiled({"precision=bf16", "parallel.optimizer_shard={level: " + std::to_string(level) + ", min_kb: 0}"});
}

const Instruction& update_of(const Program& program, const Bucket& bucket) {
  const std::vector<int> found = find_all(program, Opcode::kernel, "update " + bucket.name);
  REQUIRE(found.size() == 1);
  return program.instructions[static_cast<size_t>(found[0])];
}

}  // namespace

TEST_CASE("bf16: an update steps this rank's f32 weights and writes as much of the copy that kernels read") {
  for (int level = 0; level <= 3; ++level) {
    CAPTURE(level);
    for (const Program& p : bf16(level)) {
      for (const Bucket& b : p.buckets) {
        REQUIRE(b.has_compute_copy());
        CHECK(b.weights_are_cut() == (level > 0));
        const Instruction& update = update_of(p, b);
        REQUIRE(update.outputs.size() == 4);
        const Operand &master = update.outputs.front(), &copy = update.outputs.back();
        CHECK(master.dtype == DType::f32);
        CHECK(master.offset == b.weights_offset);
        CHECK(copy.dtype == DType::bf16);
        CHECK(copy.shape == master.shape);
        CHECK(copy.shape == Shape{b.shard_elements()});
        const bool in_place_of_whole = level == 1 || level == 2;
        CHECK(copy.offset == b.compute_offset + (in_place_of_whole ? b.shard * copy.bytes() : 0));
      }
    }
  }
}

TEST_CASE("bf16: weights are gathered in bf16, gradients are summed in f32") {
  for (int level = 1; level <= 3; ++level) {
    CAPTURE(level);
    for (const Program& p : bf16(level)) {
      CHECK(!collectives(p, Purpose::weights).empty());
      for (const Instruction* i : collectives(p, Purpose::weights)) CHECK(i->inputs[0].dtype == DType::bf16);
      for (const Instruction* i : collectives(p, Purpose::gradient)) CHECK(i->inputs[0].dtype == DType::f32);
    }
  }
}

TEST_CASE("bf16: memory shows the f32 weights apart, halves what kernels read, and leaves the optimizer alone") {
  for (int level = 0; level <= 3; ++level) {
    CAPTURE(level);
    const std::string cut = "parallel.optimizer_shard={level: " + std::to_string(level) + ", min_kb: 0}";
    const Memory half = compiled({"precision=bf16", cut})[0].memory, whole = compiled({cut})[0].memory;
    CHECK(whole.master == 0);
    CHECK(half.optimizer == whole.optimizer);
    CHECK(half.gradients == whole.gradients);
    CHECK(half.activations < whole.activations);
    const int64_t slack = 64 * 8;  // each range starts at a cache line
    CHECK(std::abs(2 * half.weights - whole.weights) <= 2 * slack);
    const int64_t kept = level == 1 || level == 2 ? whole.weights / 4 : whole.weights;
    CHECK(std::abs(half.master - kept) <= slack);
    CHECK(half.total() == compiled({"precision=bf16", cut})[0].arena_bytes);
  }
}

TEST_CASE("bf16: what is never updated is kept in bf16 alone") {
  const JobSpec spec = parse_job(R"(
precision: bf16
dataset: {type: random, shape: [32], batch: 4}
network: [{name: a, type: dense, units: 64}]
print: [a]
)",
                                 "job.yaml");
  const Graph graph = build_graph(spec, {{32}, {}, false, false});
  const Plan plan = make_plan(graph, spec, CostModel::cpu());
  const Program p = compile_all(graph, plan, spec, CostModel::cpu())[0];
  CHECK(p.memory.master == 0);
  CHECK(p.memory.weights == (32 * 64 + 64) * 2);
  for (const Variable& v : p.variables) CHECK(v.arena_offset == -1);
}

TEST_CASE("bf16: plain SGD is no part of the kernels that make gradients") {
  const std::vector<std::string> plain = {"optimizer={type: sgd, learning_rate: 0.1}", "launch.ranks=1",
                                          "network=[{type: dense, units: 64}, {type: relu}, {type: dense, units: 1}]"};
  CHECK(compiled(plain)[0].buckets[0].updated_by_parts);
  std::vector<std::string> half = plain;
  half.emplace_back("precision=bf16");
  CHECK(!compiled(half)[0].buckets[0].updated_by_parts);
}

TEST_CASE("verify_programs: an update that leaves out the bf16 copy, or writes another's part of it, is a fault") {
  for (int level = 0; level <= 2; ++level) {
    std::vector<Program> programs = bf16(level);
    for (Instruction& i : programs[1].instructions) {
      if (i.op == "adam_update") i.outputs.pop_back();
    }
    CHECK(!verify_programs(programs).empty());
    if (level == 0) continue;
    programs = bf16(level);
    for (Instruction& i : programs[1].instructions) {
      if (i.op == "adam_update") i.outputs.back().offset -= i.outputs.back().bytes();
    }
    CHECK(!verify_programs(programs).empty());
  }
}

TEST_CASE("tf32: every product says so, and nothing else does") {
  for (const std::string precision : {"fp32", "tf32"}) {
    int products = 0;
    const std::vector<Program> programs = compiled({"precision=" + precision});
    for (const Instruction& i : programs[0].instructions) {
      const bool product = i.op == "matmul" || i.op == "matmul_weight_grad";
      products += product;
      CHECK(i.attrs.flag("tf32") == (product && precision == "tf32"));
    }
    CHECK(products == 5);
  }
}
