// When a run validates, what follows from it, and how it is told.
#include <doctest/doctest.h>

#include "engine/base/error.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/save_policy.h"
#include "engine/train/evaluator.h"
#include "engine/train/trainer.h"

using namespace trainctl;

namespace {

const char* const kJob = R"(name: small
dataset: {type: random, shape: [3], label_dtype: f32, batch: 4, samples: 12}
network:
  - {name: out, type: dense, units: 1}
loss: mse
validation: {dataset: {samples: 10}}
optimizer: {type: sgd, learning_rate: 0.1}
train: {epochs: 3}
launch: {ranks: 1, device: cpu}
)";

/// What a run does, in order: "step 3", "validation 3", "save 3", "end 9".
std::vector<std::string> events(const std::vector<std::string>& overrides) {
  const PlannedJob job = plan_job(parse_job(kJob, "small.yaml", overrides));
  const Program program = compile(job, 0), validation = compile_validation(job, 0);
  const auto memory = SharedMemory::create({std::max(program.arena_bytes, validation.arena_bytes)});
  const auto comm = make_shared_memory_communicator(memory, 0, 10);
  std::vector<std::string> seen;
  TrainHooks hooks;
  hooks.on_step = [&](const StepReport& report) { seen.push_back("step " + std::to_string(report.run_step)); };
  hooks.on_validation = [&](const ValidationReport& report) {
    CHECK(report.samples == 10);
    seen.push_back("validation " + std::to_string(report.run_step));
  };
  hooks.at_end = [&](int64_t step, Executor&) { seen.push_back("end " + std::to_string(step)); };
  TrainOptions options;
  options.validation = &validation;
  const TrainResult result = train(job, program, *comm, hooks, options);
  if (!result.reason.empty()) seen.push_back(result.reason);
  return seen;
}

ValidationReport report_of(const std::string& metric, double value, int64_t step) {
  ValidationReport report;
  report.run_step = step;
  report.values = {{metric, value}};
  return report;
}

StopSpec stop(const std::string& metric, std::optional<double> reaches, int64_t patience) {
  StopSpec spec;
  spec.metric = metric;
  spec.reaches = reaches;
  spec.patience = patience;
  return spec;
}

CheckpointEntry saved(int64_t step, std::vector<std::pair<std::string, double>> metrics) {
  CheckpointEntry entry;
  entry.step = step;
  entry.manifest.metrics = std::move(metrics);
  return entry;
}

}  // namespace

TEST_CASE("a validation follows each epoch, between the reports of its steps and the next step") {
  CHECK(events({"train.epochs=2"}) == std::vector<std::string>{"step 1", "step 2", "step 3", "validation 3", "step 4",
                                                               "step 5", "step 6", "validation 6", "end 6"});
}

TEST_CASE("a validation follows the last step, and where losses are read later it comes after them") {
  CHECK(events({"validation.every_steps=2", "train.steps=5", "train.sink_steps=4", "train.epochs=null"}) ==
        std::vector<std::string>{"step 1", "step 2", "validation 2", "step 3", "step 4", "validation 4", "step 5",
                                 "validation 5", "end 5"});
}

TEST_CASE("stop_when ends a run after a validation") {
  const std::vector<std::string> seen = events({"train.stop_when={metric: loss, reaches: 1000}"});
  REQUIRE(seen.size() == 6);
  CHECK(seen[3] == "validation 3");
  CHECK(seen[4] == "end 3");
  CHECK(seen[5].find("train.stop_when.reaches is 1000") != std::string::npos);
}

TEST_CASE("reaches is at or beyond the value: below it for a loss, above it for all else") {
  const auto ends = [](const StopSpec& spec, double value) {
    return !StopRule(spec).reason_after(report_of(spec.metric, value, 1)).empty();
  };
  CHECK(ends(stop("loss", 0.5, 0), 0.5));
  CHECK(ends(stop("loss", 0.5, 0), 0.4));
  CHECK_FALSE(ends(stop("loss", 0.5, 0), 0.6));
  CHECK(ends(stop("accuracy", 0.5, 0), 0.6));
  CHECK_FALSE(ends(stop("accuracy", 0.5, 0), 0.4));
  CHECK_FALSE(ends(stop("loss", 0.5, 0), std::numeric_limits<double>::quiet_NaN()));
}

TEST_CASE("patience counts validations in a row that are no better than the best before") {
  StopRule rule(stop("loss", {}, 2));
  CHECK(rule.reason_after(report_of("loss", 1.0, 1)).empty());
  CHECK(rule.reason_after(report_of("loss", 1.0, 2)).empty());
  CHECK(rule.reason_after(report_of("loss", 0.9, 3)).empty());
  CHECK(rule.reason_after(report_of("loss", 0.95, 4)).empty());
  CHECK(rule.reason_after(report_of("loss", 0.92, 5)).find("since step 3") != std::string::npos);
}

TEST_CASE("the best checkpoint has the best value of the metric, and of equal ones is the newest") {
  const std::vector<CheckpointEntry> all = {saved(40, {{"loss", 0.3}, {"accuracy", 0.9}}), saved(30, {}),
                                            saved(20, {{"loss", 0.2}, {"accuracy", 0.9}}),
                                            saved(10, {{"loss", 0.4}, {"accuracy", 0.8}})};
  CHECK(best_step(all, "accuracy") == 40);
  CHECK(best_step(all, "loss") == 20);
  CHECK(best_step(all, "top_5") == std::nullopt);
}

TEST_CASE("samples that fill up a batch are refused where rows depend on each other") {
  const std::vector<std::string> mixes = {
      "network=[{name: a, type: dense, units: 1}, {name: m, type: reduce_mean, dims: [0], keep_dims: true}, "
      "{name: out, type: sub, inputs: [a, m]}]"};
  CHECK_THROWS_AS(plan_job(parse_job(kJob, "small.yaml", mixes)), SpecError);
  std::vector<std::string> divides = mixes;
  divides.emplace_back("validation.dataset.samples=8");
  CHECK_NOTHROW(plan_job(parse_job(kJob, "small.yaml", divides)));
}
