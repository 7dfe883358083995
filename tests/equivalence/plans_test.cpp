// Same numbers under every plan: each row trains 100 steps on N ranks and follows the loss curve of the same job on one
// rank with the same micro-batches. The communications that ran are those of the plan's report.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <stdexcept>

#include "engine/base/text.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/equivalence/compare.h"
#include "tests/equivalence/harness.h"
#include "tests/equivalence/plan_cases.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

/// For losses whose gradients are rounded to bf16, which keeps 8 bits.
constexpr double kBf16Tolerance = 2e-2;

/// The one-rank run without a plan; cached, since many plans share it.
const RunResult& reference_run(const PlanCase& plan, const std::vector<std::string>& more = {}) {
  static std::map<std::string, RunResult> runs;
  const std::string job = plan.reference ? plan.reference : plan.job;
  std::vector<std::string> overrides = plan.same;
  overrides.insert(overrides.end(), more.begin(), more.end());
  const std::string key = job + join(overrides);
  const auto found = runs.find(key);
  return found != runs.end() ? found->second : runs.emplace(key, run_job(job, overrides)).first->second;
}

PlannedJob planned(const PlanCase& plan, const std::vector<std::string>& more) {
  std::vector<std::string> overrides = plan.same;
  overrides.insert(overrides.end(), plan.plan.begin(), plan.plan.end());
  overrides.insert(overrides.end(), more.begin(), more.end());
  return plan_job(job_spec(plan.job, overrides));
}

RunResult run_plan(const PlanCase& plan) { return run_job(planned(plan, {})); }

/// Each plan is a subcase; one that throws fails alone.
void for_each_plan(const std::function<void(const PlanCase&)>& test) {
  for (const PlanCase& plan : plan_cases()) {
    SUBCASE(plan.name.c_str()) {
      try {
        test(plan);
      } catch (const std::runtime_error& error) {
        FAIL_CHECK(std::string(error.what()));
      } catch (const std::logic_error& error) {
        FAIL_CHECK(std::string(error.what()));
      }
    }
  }
}

}  // namespace

TEST_CASE(
    "every plan follows the one-rank loss, runs the communications and the arena of its report, and has the same bits "
    "twice") {
  for_each_plan([](const PlanCase& plan) {
    const RunResult& reference = reference_run(plan);
    const RunResult run = run_plan(plan), again = run_plan(plan);
    check_losses(run, reference, plan.tolerance);
    check_weights(run, reference, plan.tolerance);
    check_communications(run);
    CHECK(same_bits(run.losses, again.losses));
    for (const auto& [name, values] : run.weights) {
      CAPTURE(name);
      CHECK(same_bits(values, again.weights.at(name)));
    }
  });
}

TEST_CASE("a gradient computed and reduced in pieces equals the whole one bit for bit") {
  for (const char* level : {"0", "1", "2"}) {
    for (const std::vector<std::string>& more :
         {std::vector<std::string>{"launch.ranks=2"},
          {"launch.ranks=3", "optimizer={type: adam}"},
          {"launch.ranks=4", "parallel.micro_batches=2", "optimizer={type: sgd, momentum: 0.9, clip_norm: 0.1}"},
          {"launch.ranks=4", "parallel.mode=semi_auto_parallel", "parallel.strategies={layer1: [[2, 1], [2, 1]]}"},
          {"launch.ranks=4", "parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.micro_batches=2",
           "parallel.stage_config={layer2: 1}"}}) {
      std::vector<std::string> overrides = {"parallel.mode=data_parallel", "train.epochs=3",
                                            std::string("parallel.optimizer_shard={min_kb: 0, level: ") + level + "}"};
      overrides.insert(overrides.end(), more.begin(), more.end());
      CAPTURE(join(overrides));
      PlannedJob job = plan_job(job_spec("mlp", overrides));
      const RunResult whole = run_job(job);
      job.plan.gradient_piece_bytes = 512;
      const RunResult pieces = run_job(std::move(job));
      const std::vector<Bucket>& buckets = pieces.programs[0].buckets;
      CHECK(std::any_of(buckets.begin(), buckets.end(), [](const Bucket& b) { return b.pieces > 1; }));
      if (pieces.job.spec.optimizer.clip_norm == 0) CHECK(same_bits(whole.losses, pieces.losses));
      for (const auto& [name, values] : whole.weights) {
        CAPTURE(name);
        // The norm for clipping is summed by buckets, and there are other buckets here.
        if (pieces.job.spec.optimizer.clip_norm == 0) CHECK(same_bits(values, pieces.weights.at(name)));
      }
      check_weights(pieces, whole, 1e-8);
      check_communications(pieces);
    }
  }
}

TEST_CASE("gradients in bf16 follow the one-rank loss of f32 ones, and their communications are those of the report") {
  for_each_plan([](const PlanCase& plan) {
    const std::vector<std::string> shorter = {"train={steps: 25}"};
    PlannedJob job = planned(plan, shorter);
    job.plan.gradient_type = DType::bf16;  // and everything else in f32, so that nothing else is rounded
    const RunResult run = run_job(std::move(job));
    check_losses(run, reference_run(plan, shorter), kBf16Tolerance, 25);
    check_communications(run);
  });
}

TEST_CASE("bf16 jobs with bf16 gradients follow those with f32 gradients, with the same bits twice") {
  const std::string micro_batches[] = {"parallel.micro_batches=1", "parallel.micro_batches=2"};
  for (const std::string& micro : micro_batches) {
    const std::vector<std::string> same = {
        "precision=bf16", "optimizer={type: sgd, learning_rate: 0.01, momentum: 0.9}", "loss=mse", micro};
    const RunResult reference = run_job("mlp", same);
    for (const char* ranks : {"1", "2", "4"}) {
      for (const char* level : {"0", "1", "2", "3"}) {
        std::vector<std::string> overrides = same;
        overrides.insert(overrides.end(), {"gradient_precision=bf16", std::string("launch.ranks=") + ranks,
                                           "parallel.mode=data_parallel",
                                           std::string("parallel.optimizer_shard={min_kb: 0, level: ") + level + "}"});
        CAPTURE(join(overrides));
        const RunResult run = run_job("mlp", overrides), again = run_job("mlp", overrides);
        check_losses(run, reference, kBf16Tolerance);
        check_communications(run);
        CHECK(same_bits(run.losses, again.losses));
        for (const auto& [name, values] : run.weights) CHECK(same_bits(values, again.weights.at(name)));
      }
    }
  }
}

TEST_CASE("the table has the plans that the project promises") {
  CHECK(plan_cases().size() >= 45);
  std::map<std::string, int> ranks;
  for (const PlanCase& plan : plan_cases()) {
    for (const std::string& item : plan.plan) {
      if (item.starts_with("launch.ranks=")) ++ranks[item.substr(13)];
    }
  }
  // tests/gpu has a case for each of these.
  std::vector<std::string> counts;
  for (const auto& [count, plans] : ranks) counts.push_back(count);
  CHECK(counts == std::vector<std::string>{"1", "12", "2", "3", "4", "6", "7", "8"});
}
