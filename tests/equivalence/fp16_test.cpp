// precision: fp16. Scaled gradients overflow in the same steps on all ranks of every plan, and such steps change
// nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "engine/base/text.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/equivalence/compare.h"
#include "tests/equivalence/harness.h"
#include "tests/equivalence/plan_cases.h"
#include "tests/equivalence/saved_run.h"
#include "tests/jobs/jobs.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

/// Gradients and activations are rounded to 11 bits.
constexpr double kF16Tolerance = 4e-3;

/// The scale begins where gradients overflow, and grows every 4 steps until they overflow again.
const Overrides kOverflows = {"precision=fp16", "fp16={initial_scale: 1073741824, growth_interval: 4}", "loss=mse",
                              "train={steps: 40}"};

const Overrides kPlans[] = {
    {"launch.ranks=2", "parallel.mode=data_parallel"},
    {"launch.ranks=4", "parallel.mode=data_parallel", "parallel.optimizer_shard={level: 1, min_kb: 0}"},
    {"launch.ranks=4", "parallel.mode=data_parallel", "parallel.optimizer_shard={level: 2, min_kb: 0}"},
    {"launch.ranks=2", "parallel.mode=data_parallel", "parallel.optimizer_shard={level: 3, min_kb: 0}"},
    {"launch.ranks=4", "parallel.mode=semi_auto_parallel", "parallel.strategies={layer1: [[2, 1], [2, 1]]}"},
    {"launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.stage_config={layer2: 1}"},
    {"launch.ranks=4", "parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.stage_config={layer2: 1}",
     "parallel.optimizer_shard={level: 2, min_kb: 0}"}};

PlannedJob planned_fp16(const Overrides& overrides) { return plan_job(job_spec("mlp", overrides)); }

size_t skipped_steps(const RunResult& run) {
  const std::vector<double>& skipped = run.metrics.at("skipped");
  return static_cast<size_t>(std::count(skipped.begin(), skipped.end(), 1.0));
}

}  // namespace

TEST_CASE("fp16: gradients overflow in the same steps on all ranks of every plan, whose weights follow one rank") {
  for (const char* optimizer : {"optimizer={type: sgd, learning_rate: 0.01, momentum: 0.9}",
                                "optimizer={type: adamw, learning_rate: 0.01, clip_norm: 0.5}"}) {
    const Overrides same = kOverflows + Overrides{optimizer, "parallel.micro_batches=2"};
    const RunResult one = run_job(planned_fp16(same));
    const std::vector<double>& skipped = one.metrics.at("skipped");
    CHECK(skipped.front() == 1);
    CHECK(skipped_steps(one) >= 6);
    CHECK(skipped_steps(one) < skipped.size() / 2);
    CHECK(std::count(skipped.begin() + 20, skipped.end(), 1.0) >= 2);  // also in the middle
    for (const Overrides& plan : kPlans) {
      CAPTURE(join(plan));
      const RunResult run = run_job(planned_fp16(same + plan));
      CHECK(run.metrics.at("skipped") == skipped);
      check_losses(run, one, kF16Tolerance, 40);
      check_weights(run, one, kF16Tolerance);
      check_communications(run);
    }
  }
}

TEST_CASE("fp16: every ninth plan of the table follows one rank, and skips its steps") {
  const std::vector<PlanCase>& cases = plan_cases();
  for (size_t c = 0; c < cases.size(); c += 9) {
    const PlanCase& plan = cases[c];
    if (plan.reference != nullptr) continue;  // the one-rank run is of another network
    CAPTURE(plan.name);
    const Overrides more = {"precision=fp16", "fp16={initial_scale: 16777216, growth_interval: 3}", "train={steps: 8}"};
    const RunResult one = run_job(plan.job, plan.same + more), run = run_job(plan.job, plan.same + plan.plan + more);
    check_losses(run, one, 1e-2, 8);
    CHECK(run.metrics.at("skipped") == one.metrics.at("skipped"));
  }
}

TEST_CASE("fp16: a step whose gradients are not finite changes neither weights nor optimizer states") {
  const Overrides all = {"precision=fp16", "fp16={initial_scale: 1e30, min_scale: 1e30}", "loss=mse",
                         "train={steps: 5, on_nan: warn}", "optimizer={type: adamw, learning_rate: 0.1}"};
  const RunResult run = run_job(planned_fp16(all)), none = run_job(planned_fp16(all + Overrides{"train.steps=1"}));
  CHECK(skipped_steps(run) == 5);
  for (const auto& [name, values] : run.weights) CHECK(same_bits(values, none.weights.at(name)));
}

TEST_CASE("fp16: gradients that are not finite at the least scale end the run, unless on_nan continues") {
  const Overrides all = {"precision=fp16", "fp16={initial_scale: 4e30, min_scale: 1e30}",
                         "loss=mse",       "train={steps: 5}",
                         "launch.ranks=2", "parallel.mode=data_parallel"};
  CHECK_THROWS_WITH_AS(run_job(planned_fp16(all)), doctest::Contains("although the loss scale is"), LossNotFinite);
}

TEST_CASE("fp16: scaled gradients follow fp32, and those of a scale that is too small are 0") {
  const Overrides all = {"precision=fp16", "loss=mse", "optimizer={type: sgd, learning_rate: 0.01}",
                         "train={steps: 20}"};
  const RunResult exact = run_job(planned_fp16(all + Overrides{"precision=fp32"}));
  const RunResult scaled = run_job(planned_fp16(all + Overrides{"fp16={initial_scale: 1024}"}));
  const RunResult lost = run_job(planned_fp16(all + Overrides{"fp16={initial_scale: 1e-8, min_scale: 0}"}));
  CHECK(skipped_steps(scaled) == 0);
  CHECK(skipped_steps(lost) == 0);
  check_losses(scaled, exact, 2e-2, 20);
  const RunResult one =
      run_job(planned_fp16(all + Overrides{"fp16={initial_scale: 1e-8, min_scale: 0}", "train={steps: 1}"}));
  for (const auto& [name, values] : lost.weights) {
    CHECK(same_bits(values, one.weights.at(name)));
    CHECK(!same_bits(values, scaled.weights.at(name)));
  }
}

TEST_CASE("fp16: a resumed run has the bits of the whole one, its scale included") {
  for (const int64_t at : {3, 13, 30}) {
    CAPTURE(at);
    const Overrides all = kOverflows + Overrides{"optimizer={type: adamw, learning_rate: 0.01}"} + kPlans[2];
    const ScratchFolder folder;
    const SavedRun saved = run_and_save(planned_fp16(all), at, folder.path());
    const RunResult again = resume(planned_fp16(all), saved.path);
    const std::vector<float>& losses = saved.result.losses;
    const std::vector<double>& skipped = saved.result.metrics.at("skipped");
    CHECK(again.losses == std::vector<float>(losses.begin() + at, losses.end()));
    CHECK(again.metrics.at("skipped") == std::vector<double>(skipped.begin() + at, skipped.end()));
    CHECK(same_weights(again, saved.result));
  }
}

TEST_CASE("fp16: a spike is skipped without a change of the scale, and an overflow is no spike") {
  const Overrides all = kOverflows + Overrides{"optimizer={type: sgd, learning_rate: 0.01}",
                                               "train.on_spike={norm: 1.05x, window: 8, least: 4}"};
  const RunResult one = run_job(planned_fp16(all));
  const std::vector<double>&skipped = one.metrics.at("skipped"), &overflowed = one.metrics.at("overflowed");
  CHECK(overflowed.front() == 1);
  for (size_t step = 0; step < skipped.size(); ++step) CHECK(overflowed[step] <= skipped[step]);
  CHECK(std::count(skipped.begin(), skipped.end(), 1.0) > std::count(overflowed.begin(), overflowed.end(), 1.0));
  const RunResult cut = run_job(planned_fp16(all + kPlans[5]));
  CHECK(cut.metrics.at("overflowed") == overflowed);
}
