// Tests of the contents of the arena, and of everything that makes it smaller.
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/compile/verify/verify_programs.h"
#include "tests/compile/sketch.h"

using namespace trainctl;

namespace {

const Graph kMlp = mlp_graph(48, 64, {256, 256, 128, 1});

Program first(const Plan& plan, const JobSpec& spec = {}) { return programs_of(kMlp, plan, spec)[0]; }

}  // namespace

TEST_CASE("the kinds of memory add up to the arena") {
  for (int ranks : {1, 2, 4, 6}) {
    for (int level = 0; level <= 3; ++level) {
      Plan plan = data_parallel_plan(kMlp, ranks, 1, 2);
      plan.optimizer_shard_level = level;
      for (const Program& p : programs_of(kMlp, plan)) {
        CHECK(p.memory.arena() == p.arena_bytes);
        CHECK(p.memory.buffers >= 0);
      }
    }
  }
}

TEST_CASE(
    "the buffers in use at each instruction fit in the arena, and their largest total of activations is that of the "
    "plan") {
  for (int level = 0; level <= 3; ++level) {
    Plan plan = data_parallel_plan(kMlp, 4, 2, 4);
    plan.optimizer_shard_level = level;
    for (const Program& p : programs_of(kMlp, plan)) {
      const int64_t lasting = p.memory.weights + p.memory.master + p.memory.optimizer;
      int64_t most = 0;
      REQUIRE(p.live.size() == p.instructions.size());
      for (const LiveBytes& live : p.live) {
        CHECK(lasting + live.activations + live.gradients + live.scratch <= p.arena_bytes);
        most = std::max(most, live.activations);
      }
      CHECK(most == p.memory.activations);
    }
  }
}

TEST_CASE("recompute lowers activation bytes") {
  Plan plan = data_parallel_plan(kMlp, 1, 1, 4);
  plan.schedule = Schedule::gpipe;
  const int64_t kept = first(plan).memory.activations;
  for (LayerPlan& layer : plan.layers) layer.recompute = true;
  CHECK(first(plan).memory.activations < kept);
}

TEST_CASE("1f1b needs fewer activation bytes than gpipe") {
  Plan plan = data_parallel_plan(kMlp, 2, 2, 8);
  plan.schedule = Schedule::gpipe;
  const int64_t gpipe = first(plan).memory.activations;
  plan.schedule = Schedule::one_f_one_b;
  CHECK(first(plan).memory.activations < gpipe);
}

TEST_CASE("each level of optimizer sharding needs less memory than the one before") {
  JobSpec spec;
  spec.optimizer.type = "adam";
  Plan plan = data_parallel_plan(kMlp, 4);
  std::vector<Memory> memory;
  for (int level = 0; level <= 3; ++level) {
    plan.optimizer_shard_level = level;
    memory.push_back(first(plan, spec).memory);
  }
  CHECK(memory[1].optimizer * 3 < memory[0].optimizer);
  CHECK(memory[2].gradients * 3 < memory[1].gradients);
  CHECK(memory[3].weights * 3 < memory[2].weights);
}

TEST_CASE("gradients of one micro-batch reuse the memory of its activations, and those of several have their own") {
  const Graph deep = mlp_graph(4096, 256, std::vector<int64_t>(12, 256));
  for (int level : {0, 2}) {
    CAPTURE(level);
    Plan plan = data_parallel_plan(deep, 2);
    plan.optimizer_shard_level = level;
    plan.optimizer_shard_min_bytes = 0;
    plan.bucket_bytes = 256 * 256 * 4;
    const Program one = programs_of(deep, plan)[0];
    const int64_t kept = 11 * 256 * 256 * 4 / (level == 0 ? 1 : 2);
    CHECK(one.memory.gradients < kept / 4);
    plan.micro_batches = 2;
    CHECK(programs_of(deep, plan)[0].memory.gradients >= kept / 2);
    plan.numerics.keeps_gradients = true;  // histograms read them after the step
    for (const Program& p : programs_of(deep, plan)) CHECK(p.memory.gradients >= kept);
  }
}

TEST_CASE("verify_programs: a value in the memory of gradients that have not been used yet is a fault") {
  const Graph deep = mlp_graph(512, 64, std::vector<int64_t>(6, 64));
  Plan plan = data_parallel_plan(deep, 2);
  plan.bucket_bytes = 64 * 64 * 4;
  std::vector<Program> programs = programs_of(deep, plan);
  const auto shares = [](const Bucket& b) { return b.gradients_share_memory && b.gradients_offset >= 0; };
  const auto bucket = std::find_if(programs[0].buckets.begin(), programs[0].buckets.end(), shares);
  REQUIRE(bucket != programs[0].buckets.end());
  std::vector<Instruction>& code = programs[0].instructions;
  const auto reduced = std::find_if(code.begin(), code.end(), [&](const Instruction& i) {
    return i.opcode == Opcode::collective && i.inputs[0].offset == bucket->gradients_offset;
  });
  REQUIRE(reduced != code.end());
  const auto after = std::find_if(reduced, code.end(), [](const Instruction& i) {
    return i.opcode == Opcode::kernel && !is_update(i) && i.outputs.size() == 1 && !i.outputs[0].accumulate;
  });
  REQUIRE(after != code.end());
  after->outputs[0].offset = bucket->gradients_offset;
  CHECK(!verify_programs(programs).empty());
}

TEST_CASE("buffers of tensors that are never alive together share bytes") {
  const Program one = first(data_parallel_plan(kMlp, 1, 1, 1)), many = first(data_parallel_plan(kMlp, 1, 1, 6));
  // With one stage the backward pass of a micro-batch runs right after its forward pass.
  CHECK(many.memory.activations == one.memory.activations);
}
