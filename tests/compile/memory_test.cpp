// The contents of the arena, and what makes it smaller.
#include <doctest/doctest.h>

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

TEST_CASE("what is alive at an instruction fits in the arena, and its most activations are the plan's") {
  for (int level = 0; level <= 3; ++level) {
    Plan plan = data_parallel_plan(kMlp, 4, 2, 4);
    plan.optimizer_shard_level = level;
    for (const Program& p : programs_of(kMlp, plan)) {
      const int64_t lasting = p.memory.weights + p.memory.master + p.memory.gradients + p.memory.optimizer;
      int64_t most = 0;
      REQUIRE(p.live.size() == p.instructions.size());
      for (const LiveBytes& live : p.live) {
        CHECK(lasting + live.activations + live.scratch <= p.arena_bytes);
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

TEST_CASE("each level of optimizer sharding takes less than the one before") {
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

TEST_CASE("buffers of tensors that are never alive together share bytes") {
  const Program one = first(data_parallel_plan(kMlp, 1, 1, 1)), many = first(data_parallel_plan(kMlp, 1, 1, 6));
  // One stage runs a micro-batch's backward right after its forward.
  CHECK(many.memory.activations == one.memory.activations);
}
