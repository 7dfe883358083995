// Searches in which ranks share the rows of sequences, and the errors of searches.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/estimate/simulate.h"
#include "engine/planning/compile_job.h"
#include "engine/planning/search_plan.h"
#include "engine/search/find_plan.h"
#include "engine/search/no_plan_fits.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/search/drawn_jobs.h"
#include "tests/search/llama_jobs.h"

using namespace trainctl;

namespace {

/// Two blocks with packed queries, keys and values.
std::string long_sequences(int64_t length, int batch) {
  return fmt::format(R"(
precision: bf16
dataset: {{type: random, shape: [{0}], dtype: i32, classes: 512, label_shape: [{0}], label_dtype: i32, batch: {1}, samples: 64}}
modules:
  block:
    - {{name: norm1, type: rms_norm}}
    - {{name: qkv, type: dense, units: 1536, bias: false}}
    - {{name: attn, type: attention, heads: 8, kv_heads: 2, causal: true}}
    - {{name: proj, type: dense, units: 1024, bias: false}}
    - {{name: sum1, type: add, inputs: [proj, input]}}
    - {{name: up, type: dense, units: 4096, bias: false}}
    - {{name: act, type: gelu}}
    - {{name: down, type: dense, units: 1024, bias: false}}
    - {{name: sum2, type: add, inputs: [down, sum1]}}
network:
  - {{name: table, type: embedding, vocab: 512, units: 1024}}
  - {{module: block, name: h, repeat: 2}}
  - {{name: head, type: dense, units: 512, bias: false}}
loss: softmax_cross_entropy
optimizer: {{type: adamw, learning_rate: 0.0003}}
launch: {{ranks: 8, device: cuda, machine: h100x8}}
)",
                     length, batch);
}

struct Step {
  double seconds = 0;
  int64_t memory = 0;
};

Step fixed_step(const std::string& text, std::vector<std::string> settings) {
  settings.emplace_back("parallel.mode=semi_auto_parallel");
  const PlannedJob job = planned(text, settings);
  const RankClasses classes = compile_one_per_stage(job);
  return {simulate(classes, job.cost.machine(), false).step.value, most_memory(classes)};
}

PlannedJob searched(const std::string& text, std::vector<std::string> settings) {
  settings.emplace_back("parallel.mode=auto_parallel");
  return planned(text, settings);
}

/// Searches for a plan of one long sequence on 8 GPUs with a substitute for find_plan, in which the plan of each size
/// takes the seconds that `seconds_of` gives for tensor, context and whether activations are offloaded; if it gives
/// 0, no plan fits. Adds the sizes that were searched without offloading to `searched`.
template <class SecondsOf>
JobSpec chosen_by(const SecondsOf& seconds_of, std::set<std::pair<int, int>>& searched) {
  const std::string text = llama({.blocks = 9, .hidden = 6144, .length = 16384, .batch = 1, .ranks = 8});
  PlannedJob job = planned(text, {"parallel.mode=semi_auto_parallel", "parallel.context=8"});
  job.spec = parse_job(text, "job.yaml", {"parallel.mode=auto_parallel"});
  search_plan(
      job, [&](const JobSpec& spec, const DataShapes&, const CostModel&, const PlanLimits& limits, const TryPlan&) {
        const ParallelSpec& parallel = spec.parallel;
        const bool offloads = !parallel.offload.activations.empty();
        if (!offloads) searched.insert({parallel.tensor, parallel.context});
        const double seconds = seconds_of(parallel.tensor, parallel.context, offloads);
        TriedPlan plan;
        plan.name = "a plan";
        plan.choice.optimizer_shard.level = 3;
        plan.trial = {.seconds = std::max(seconds, 0.001), .memory = seconds > 0 ? limits.memory : 2 * limits.memory};
        FoundPlan found;
        found.memory = limits.memory;
        found.tried = {plan};
        if (seconds == 0) throw NoPlanFits(spec, limits.memory, 2 * limits.memory, "a plan", found.tried);
        return found;
      });
  return job.spec;
}

}  // namespace

TEST_CASE("search: where the fastest sizes have no plan that fits, sizes that need less memory are searched too") {
  std::set<std::pair<int, int>> searched;
  const JobSpec chosen = chosen_by(
      [](int tensor, int context, bool offloads) {
        if (offloads) return 0.0;
        return context == 1 ? 4.0 : tensor == 1 && context == 8 ? 2.0 : 0.0;
      },
      searched);
  CHECK(searched.size() >= 3);
  CHECK(searched.contains({1, 8}));
  CHECK(chosen.parallel.tensor == 1);
  CHECK(chosen.parallel.context == 8);
}

TEST_CASE("search: offloading is tried with sizes that have no plan without it, although others have one") {
  std::set<std::pair<int, int>> searched;
  const JobSpec chosen = chosen_by(
      [](int, int context, bool offloads) {
        if (context == 1) return offloads ? 0.0 : 4.0;
        return offloads ? 2.0 : 0.0;
      },
      searched);
  CHECK(!chosen.parallel.offload.activations.empty());
  CHECK(chosen.parallel.context > 1);
}

TEST_CASE("search: with fewer samples than ranks auto_parallel is within 2 % of every size of context and tensor") {
  for (const int batch : {1, 2}) {
    const std::string text = long_sequences(32768, batch);
    const PlannedJob found = searched(text, {});
    for (const int tensor : {1, 2})
      for (const int context : {2, 4, 8}) {
        if (tensor * context > 8 || tensor * context < 8 / batch) continue;
        CAPTURE(batch);
        CAPTURE(tensor);
        CAPTURE(context);
        const Step other =
            fixed_step(text, {fmt::format("parallel.tensor={}", tensor), fmt::format("parallel.context={}", context)});
        CHECK(found.search->best().trial.seconds <= 1.02 * other.seconds);
      }
    CHECK(found.spec.parallel.context > 1);
    const PlannedJob again = plan_job(parse_job(to_yaml(found.spec), found.spec.file));
    CHECK(simulated_seconds(again) == doctest::Approx(found.search->best().trial.seconds).epsilon(0.001));
  }
}

TEST_CASE("search: ranks share sequences if samples are enough but memory is short") {
  const std::string text = long_sequences(65536, 8);
  const Step shared = fixed_step(text, {"parallel.context=8", "parallel.micro_batches=8", "parallel.optimizer_shard=3",
                                        "parallel.recompute=['h.*']"});
  const PlannedJob found =
      searched(text, {"parallel.max_memory=" + std::to_string(shared.memory * 21 / 20), "parallel.micro_batches=8"});
  CHECK(found.search->best().trial.memory <= shared.memory * 21 / 20);
  CHECK(found.search->best().trial.seconds <= 1.02 * shared.seconds);
  CHECK(found.spec.parallel.offload.activations.empty());
}

TEST_CASE("search: auto_parallel keeps the sizes that the job gives") {
  const std::string text = long_sequences(32768, 2);
  const PlannedJob found = searched(text, {"parallel.context=4"});
  CHECK(found.spec.parallel.context == 4);
  CHECK(found.spec.parallel.tensor == 1);
  CHECK(found.search->best().trial.seconds <= 1.006 * fixed_step(text, {"parallel.context=4"}).seconds);
}

TEST_CASE("search: an error that has nothing to do with memory is reported after one search") {
  PlannedJob job = planned(
      gpt(2, 64), {"launch.ranks=8", "launch.device=cuda", "launch.machine=h100x8", "parallel.mode=data_parallel"});
  job.spec =
      parse_job(gpt(2, 64), "job.yaml",
                {"launch.ranks=8", "launch.device=cuda", "launch.machine=h100x8", "parallel.mode=auto_parallel"});
  const JobSpec given = job.spec;
  int searches = 0;
  const auto fail = [&](const JobSpec&, const DataShapes&, const CostModel&, const PlanLimits&,
                        const TryPlan&) -> FoundPlan {
    ++searches;
    throw SpecError({}, "parallel.stages", "unrelated");
  };
  CHECK_THROWS_WITH_AS(search_plan(job, fail), doctest::Contains("unrelated"), SpecError);
  CHECK(searches == 1);
  const auto too_large = [&](const JobSpec& spec, const DataShapes&, const CostModel&, const PlanLimits& limits,
                             const TryPlan&) -> FoundPlan {
    ++searches;
    const bool offloads = spec.parallel.offload.optimizer == StatePlace::host;
    throw NoPlanFits(spec, limits.memory, limits.memory + (offloads ? 1024 : 4096), "a plan");
  };
  searches = 0;
  job.spec = given;
  CHECK_THROWS_WITH_AS(search_plan(job, too_large), doctest::Contains("a plan; offload optimizer"), NoPlanFits);
  CHECK(searches >= 2);
}

TEST_CASE("search: a limit that no plan comes near is rejected after few trials") {
  const std::string text = llama({.blocks = 12});
  PlannedJob job = planned(text, {"parallel.mode=data_parallel", "parallel.optimizer_shard=3"});
  job.spec = parse_job(text, "job.yaml", {"parallel.mode=auto_parallel", "parallel.max_memory=1GiB"});
  int trials = 0;
  const auto counted = [&](const JobSpec& spec, const DataShapes& data, const CostModel& cost, const PlanLimits& limits,
                           const TryPlan& try_plan) {
    return find_plan(spec, data, cost, limits, [&](JobSpec tried, TriedRanks ranks) {
      ++trials;
      return try_plan(std::move(tried), ranks);
    });
  };
  CHECK_THROWS_AS(search_plan(job, counted), NoPlanFits);
  CHECK(trials <= 100);  // of all searches: without and with shared rows and offloading
}
