// Runs on GPUs follow the CPU's one-rank loss curve under every plan, and have the same bits each time.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "engine/base/text.h"
#include "engine/machine/machine.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/equivalence/harness.h"
#include "tests/equivalence/plan_cases.h"
#include "tests/gpu/gpus.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

constexpr double kTolerance = 1e-4;
constexpr double kBf16Tolerance = 2e-2;  ///< both round to bf16, each after sums in its own order
constexpr double kF16Tolerance = 4e-3;   ///< the same for f16
const char* const kMse = "loss=mse";     // mae has slopes of one size; rounding flips their signs

/// The steps of the jobs in tests/jobs, or 12 on an emulated GPU.
std::vector<std::string> steps() {
  return gpus_are_emulated() ? std::vector<std::string>{"train={steps: 12}"} : std::vector<std::string>{};
}

/// Overrides that the plan shares with the run that it is compared with.
std::vector<std::string> same_overrides(const PlanCase& plan) {
  std::vector<std::string> overrides = steps();
  overrides.insert(overrides.end(), plan.same.begin(), plan.same.end());
  return overrides;
}

std::vector<std::string> all_overrides(const PlanCase& plan) {
  std::vector<std::string> overrides = same_overrides(plan);
  overrides.insert(overrides.end(), plan.plan.begin(), plan.plan.end());
  return overrides;
}

double largest_difference(const std::vector<float>& losses, const std::vector<float>& expected) {
  REQUIRE(losses.size() == expected.size());
  double worst = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    const double difference = std::abs(double(losses[i]) - expected[i]) / std::abs(double(expected[i]));
    if (!(difference <= worst)) worst = difference;
  }
  return worst;
}

/// Every plan of `ranks` ranks. A case for each number, so that a machine with too few GPUs shows what was skipped.
void check_plans_of(int ranks) {
  if (!have_gpus(ranks)) return;
  int plans = 0;
  for (const PlanCase& plan : plan_cases()) {
    if (job_spec(plan.job, all_overrides(plan)).launch.ranks != ranks) continue;
    ++plans;
    CAPTURE(plan.name);
    const RunResult expected = run_job(plan.reference ? plan.reference : plan.job, same_overrides(plan));
    const RunResult found = run_job(plan.job, all_overrides(plan), {.cuda = true});
    const double worst = largest_difference(found.losses, expected.losses);
    std::printf("%-60s %.2g\n", plan.name.c_str(), worst);
    CHECK(worst < std::max(kTolerance, plan.tolerance));
    const RunResult again = run_job(plan.job, all_overrides(plan), {.cuda = true});
    CHECK(again.losses == found.losses);
    CHECK(again.weights == found.weights);
  }
  CHECK(plans > 0);
}

/// Networks whose gradients are bf16, at every level, on `ranks` GPUs.
void check_bf16_gradients_on(int ranks) {
  if (!have_gpus(ranks)) return;
  for (const std::string name : {"mlp", "odd", "batch_norm", "language"}) {
    for (const char* level : {"0", "1", "2", "3"}) {
      for (const char* micro : {"1", "2"}) {
        if (ranks == 1 && level[0] != '0') continue;
        std::vector<std::string> plan = {"precision=bf16",
                                         "gradient_precision=bf16",
                                         "train.epochs=3",
                                         "launch.ranks=" + std::to_string(ranks),
                                         std::string("parallel.micro_batches=") + micro,
                                         std::string("parallel.optimizer_shard={min_kb: 0, level: ") + level + "}"};
        if (name == "mlp") plan.emplace_back(kMse);
        if (ranks > 1) plan.emplace_back("parallel.mode=data_parallel");
        CAPTURE(join(plan));
        const RunResult expected = run_job(name, plan), found = run_job(name, plan, {.cuda = true});
        const double worst = largest_difference(found.losses, expected.losses);
        std::printf("%-12s %d ranks, level %s, %s micro-batches %.2g\n", name.c_str(), ranks, level, micro, worst);
        CHECK(worst < kBf16Tolerance);
        const RunResult again = run_job(name, plan, {.cuda = true});
        CHECK(again.losses == found.losses);
        CHECK(again.weights == found.weights);
      }
    }
  }
}

/// precision: fp16, with a scale of the loss that begins too high, on `ranks` GPUs.
void check_fp16_on(int ranks) {
  if (!have_gpus(ranks)) return;
  for (const std::string name : {"mlp", "batch_norm", "language"}) {
    for (const char* level : {"0", "3"}) {
      if (ranks == 1 && level[0] != '0') continue;
      std::vector<std::string> plan = {"precision=fp16", "fp16={initial_scale: 4294967296, growth_interval: 3}",
                                       "train={steps: 12}", "launch.ranks=" + std::to_string(ranks),
                                       std::string("parallel.optimizer_shard={min_kb: 0, level: ") + level + "}"};
      if (name == "mlp") plan.emplace_back(kMse);
      if (ranks > 1) plan.emplace_back("parallel.mode=data_parallel");
      CAPTURE(name);
      CAPTURE(level);
      const RunResult expected = run_job(name, plan), found = run_job(name, plan, {.cuda = true});
      CHECK(largest_difference(found.losses, expected.losses) < kF16Tolerance);
      CHECK(found.metrics.at("skipped") == expected.metrics.at("skipped"));
      CHECK(found.metrics.at("skipped").front() == 1);
      CHECK(run_job(name, plan, {.cuda = true}).losses == found.losses);
    }
  }
}

/// Optimizer state in the memory of the host and on the device, on `ranks` GPUs.
void check_offload_on(int ranks) {
  if (!have_gpus(ranks)) return;
  for (const char* level : {"0", "1", "3"}) {
    if (ranks == 1 && level[0] != '0') continue;
    CAPTURE(level);
    std::vector<std::string> plan = steps();
    plan.push_back("launch.ranks=" + std::to_string(ranks));
    plan.push_back(std::string("parallel.optimizer_shard={min_kb: 0, level: ") + level + "}");
    if (ranks > 1) plan.emplace_back("parallel.mode=data_parallel");
    const RunResult device = run_job("language", plan, {.cuda = true});
    PlannedJob job = plan_job(job_spec("language", plan));
    job.plan.offloads_optimizer = true;
    const RunResult host = run_job(std::move(job), {.cuda = true});
    CHECK(host.programs[0].memory.host > 0);
    CHECK(host.programs[0].memory.optimizer == 0);
    CHECK(host.losses == device.losses);
    CHECK(host.weights == device.weights);
  }
}

/// A captured step and one that runs stream by stream, on `ranks` GPUs.
void check_captured_step_on(int ranks) {
  if (!have_gpus(ranks)) return;
  for (const char* name : {"classifier", "language"}) {
    std::vector<std::string> overrides = {"launch.ranks=" + std::to_string(ranks), "parallel.micro_batches=2"};
    if (ranks > 1) overrides.push_back("parallel.mode=data_parallel");
    const RunResult graph = run_job(name, overrides, {.cuda = true, .graph = true});
    const RunResult eager = run_job(name, overrides, {.cuda = true, .graph = false});
    CHECK(graph.losses == eager.losses);
    CHECK(graph.weights == eager.weights);
  }
}

}  // namespace

TEST_CASE("every plan of 1 rank follows the CPU's curve on GPUs, with the same bits twice") { check_plans_of(1); }
TEST_CASE("every plan of 2 ranks follows the CPU's curve on GPUs, with the same bits twice") { check_plans_of(2); }
TEST_CASE("every plan of 3 ranks follows the CPU's curve on GPUs, with the same bits twice") { check_plans_of(3); }
TEST_CASE("every plan of 4 ranks follows the CPU's curve on GPUs, with the same bits twice") { check_plans_of(4); }
TEST_CASE("every plan of 6 ranks follows the CPU's curve on GPUs, with the same bits twice") { check_plans_of(6); }
TEST_CASE("every plan of 7 ranks follows the CPU's curve on GPUs, with the same bits twice") { check_plans_of(7); }
TEST_CASE("every plan of 8 ranks follows the CPU's curve on GPUs, with the same bits twice") { check_plans_of(8); }
TEST_CASE("every plan of 12 ranks follows the CPU's curve on GPUs, with the same bits twice") { check_plans_of(12); }

TEST_CASE("every network runs on one GPU as on the CPU") {
  if (!have_gpus(1)) return;
  for (const char* name : {"mlp", "odd", "classifier", "batch_norm", "language", "attention", "heads"}) {
    CAPTURE(name);
    const RunResult expected = run_job(name, steps()), found = run_job(name, steps(), {.cuda = true});
    const double worst = largest_difference(found.losses, expected.losses);
    std::printf("%-60s %.2g\n", name, worst);
    CHECK(worst < kTolerance);
  }
}

TEST_CASE("a gradient that is made and reduced in pieces follows the CPU's curve") {
  if (!have_gpus(2)) return;
  for (const bool half : {false, true}) {
    for (const char* more :
         {"parallel.optimizer_shard={min_kb: 0, level: 0}", "parallel.optimizer_shard={min_kb: 0, level: 1}",
          "parallel.optimizer_shard={min_kb: 0, level: 2}", "parallel.micro_batches=2"}) {
      CAPTURE(half);
      CAPTURE(more);
      std::vector<std::string> plan = {"launch.ranks=2", "parallel.mode=data_parallel", more};
      if (half) plan.insert(plan.end(), {"precision=bf16", "gradient_precision=bf16", kMse});
      const RunResult expected = run_job("mlp", plan);
      PlannedJob job = plan_job(job_spec("mlp", plan));
      job.plan.gradient_piece_bytes = 512;
      const RunResult found = run_job(std::move(job), {.cuda = true});
      const std::vector<Bucket>& buckets = found.programs[0].buckets;
      const bool apart = buckets[0].sums_offset >= 0;  // a sum kept apart is rounded as a whole
      CHECK(std::any_of(buckets.begin(), buckets.end(), [](const Bucket& b) { return b.pieces > 1; }) == !apart);
      CHECK(largest_difference(found.losses, expected.losses) < (half ? kBf16Tolerance : kTolerance));
    }
  }
}

TEST_CASE("optimizer state in the memory of the host gives the same bits as on the device, on 1 GPU") {
  check_offload_on(1);
}
TEST_CASE("optimizer state in the memory of the host gives the same bits as on the device, on 2 GPUs") {
  check_offload_on(2);
}

TEST_CASE("experts that exchange whole blocks of tokens follow the CPU's curve") {
  if (!have_gpus(2)) return;
  const std::vector<std::string> same = {"train={steps: 6}"};
  std::vector<std::string> plan = same;
  plan.insert(plan.end(), {"launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.expert=2",
                           "parallel.expert_method=all_to_all"});
  const RunResult expected = run_job("moe", same);
  PlannedJob job = plan_job(job_spec("moe", plan));
  job.cost = CostModel(std::make_shared<const Machine>(*find_machine("h100x8")),
                       job.spec.precision);  // a GPU's messages have fixed sizes
  const RunResult found = run_job(std::move(job), {.cuda = true});
  CHECK(largest_difference(found.losses, expected.losses) < kTolerance);
}

TEST_CASE("bf16 jobs with gradients in bf16 follow the CPU's curve on 1 GPU") { check_bf16_gradients_on(1); }
TEST_CASE("bf16 jobs with gradients in bf16 follow the CPU's curve on 2 GPUs") { check_bf16_gradients_on(2); }
TEST_CASE("bf16 jobs with gradients in bf16 follow the CPU's curve on 4 GPUs") { check_bf16_gradients_on(4); }

TEST_CASE("fp16 jobs follow the CPU's curve and skip its steps on 1 GPU") { check_fp16_on(1); }
TEST_CASE("fp16 jobs follow the CPU's curve and skip its steps on 2 GPUs") { check_fp16_on(2); }

TEST_CASE("a captured step and one that runs stream by stream have the same bits on 1 GPU") {
  check_captured_step_on(1);
}
TEST_CASE("a captured step and one that runs stream by stream have the same bits on 2 GPUs") {
  check_captured_step_on(2);
}

TEST_CASE("train.sink_steps changes no loss") {
  if (!have_gpus(1)) return;
  const RunResult one = run_job("mlp", {}, {.cuda = true});
  // Graphs of 1, 2, 5 and 25 steps, and the remainder.
  for (const char* sink : {"train.sink_steps=3", "train.sink_steps=4", "train.sink_steps=11", "train.sink_steps=50"}) {
    CHECK(run_job("mlp", {sink}, {.cuda = true}).losses == one.losses);
  }
}
