// Tests of metrics: they are the same numbers under every plan, and travel with the loss.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "engine/base/error.h"
#include "engine/compile/compile.h"
#include "engine/planning/compile_job.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/equivalence/harness.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

const char* const kNoMetrics = "metrics=[]";
const char* const kSteps = "train.epochs=5";  // 20 steps

std::vector<std::string> short_run(std::vector<std::string> overrides) {
  overrides.emplace_back(kSteps);
  return overrides;
}

std::string error_of(const std::string& job, const std::vector<std::string>& overrides) {
  try {
    plan_job(job_spec(job, overrides));
  } catch (const SpecError& error) {
    return error.diagnostics().at(0).path + ": " + error.diagnostics().at(0).message;
  }
  return "no error";
}

}  // namespace

TEST_CASE("metrics count rows of the global batch, whatever the plan") {
  const RunResult one = run_job("classifier", short_run({}));
  REQUIRE(one.metrics.size() == 2);
  REQUIRE(one.metrics.at("accuracy").size() == 20);
  for (size_t step = 0; step < 20; ++step) {
    const double accuracy = one.metrics.at("accuracy")[step], top_3 = one.metrics.at("top_3")[step];
    CHECK(accuracy * 24 == doctest::Approx(std::round(accuracy * 24)));
    CHECK(top_3 >= accuracy);
    CHECK(top_3 <= 1);
  }
  const auto& top_3 = one.metrics.at("top_3");
  CHECK(std::accumulate(top_3.end() - 4, top_3.end(), 0.0) > std::accumulate(top_3.begin(), top_3.begin() + 4, 0.0));
  const std::vector<std::vector<std::string>> plans = {
      {"launch.ranks=2", "parallel.mode=data_parallel"},
      {"launch.ranks=3", "parallel.mode=data_parallel", "parallel.optimizer_shard={level: 2, min_kb: 0}"},
      {"launch.ranks=4", "parallel.mode=data_parallel", "parallel.full_batch=true"},
      {"launch.ranks=1", "parallel.micro_batches=4"},
      {"launch.ranks=2", "parallel.mode=data_parallel", "parallel.stages=2"},
      {"launch.ranks=4", "parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.micro_batches=3"},
      {"launch.ranks=8", "parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.micro_batches=2"},
      {"launch.ranks=4", "parallel.mode=semi_auto_parallel",
       "parallel.strategies={head: [[2, 1], [2, 1]], loss: [[1, 1], [1]]}"},
      {"launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.strategies={loss: [[2, 1], [2]]}"}};
  for (const std::vector<std::string>& plan : plans) {
    CAPTURE(plan);
    CHECK(run_job("classifier", short_run(plan)).metrics == one.metrics);
  }
}

TEST_CASE("rows that the loss ignores do not count in a metric, whatever the plan") {
  const char* const ignored = "loss={type: softmax_cross_entropy, ignore_index: 3}";
  const RunResult all = run_job("classifier", short_run({})), one = run_job("classifier", short_run({ignored}));
  CHECK(one.metrics.at("top_3") != all.metrics.at("top_3"));
  for (const double top_3 : one.metrics.at("top_3")) CHECK((top_3 >= 0 && top_3 <= 1.000001));
  for (const char* plan : {"launch.ranks=2", "parallel.micro_batches=3", "launch.ranks=6"})
    CHECK(run_job("classifier", short_run({ignored, plan, "parallel.mode=data_parallel"})).metrics == one.metrics);
}

TEST_CASE("the loss and all metrics are one collective of a step, with metrics as without") {
  const auto of_loss = [](const std::vector<std::string>& overrides) {
    const PlannedJob job = plan_job(job_spec("classifier", overrides));
    int calls = 0;
    int64_t bytes = 0;
    for (const Instruction& i : compile(job, 0).instructions) {
      if (i.opcode != Opcode::collective || i.purpose != Purpose::loss) continue;
      ++calls;
      bytes += i.bytes();
    }
    return std::pair(calls, bytes);
  };
  const std::vector<std::string> plan = {"launch.ranks=4", "parallel.mode=data_parallel"};
  CHECK(of_loss(plan) == std::pair(1, int64_t{12}));
  CHECK(of_loss({plan[0], plan[1], kNoMetrics}) == std::pair(1, int64_t{4}));
}

TEST_CASE("metrics do not change the losses") {
  for (const char* ranks : {"launch.ranks=1", "launch.ranks=4"}) {
    std::vector<std::string> plan = {ranks, kSteps, "parallel.mode=data_parallel"};
    const RunResult with = run_job("classifier", plan);
    plan.emplace_back(kNoMetrics);
    const RunResult without = run_job("classifier", plan);
    CHECK(without.metrics.empty());
    CHECK(with.losses == without.losses);
  }
}

TEST_CASE("a metric that cannot be computed from the prediction is refused at its position") {
  CHECK(error_of("classifier", {"metrics=[accuracy, {type: top_k, k: 13}]"}) ==
        "metrics[1].k: k is 13, but the prediction [24, 12] has 12 classes");
  CHECK(error_of("classifier", {"metrics=[accuracy, {type: top_k, k: 12}]"}) == "no error");
}
