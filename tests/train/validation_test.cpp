// Tests when a run validates, what a validation changes, and how it is reported.
#include <doctest/doctest.h>

#include "engine/base/error.h"
#include "engine/planning/compile_job.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/save_policy.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/trainer/evaluator.h"
#include "engine/train/trainer/trainer.h"
#include "tests/train/function_observer.h"

using namespace trainctl;

namespace {

const char* const kValidationJob = R"(name: small
dataset: {type: random, shape: [3], label_dtype: f32, batch: 4, samples: 12}
network:
  - {name: out, type: dense, units: 1}
loss: mse
validation: {dataset: {samples: 10}}
optimizer: {type: sgd, learning_rate: 0.1}
train: {epochs: 3}
launch: {ranks: 1, device: cpu}
)";

/// Events of a run, in order: "step 3", "validation 3", "save 3", "end 9".
std::vector<std::string> events(const std::vector<std::string>& overrides, const TrainPosition& from = {}) {
  const PlannedJob job = plan_job(parse_job(kValidationJob, "small.yaml", overrides));
  const Program program = compile(job, 0), validation = compile_validation(job, 0);
  const auto memory = SharedMemory::create({std::max(program.arena_bytes, validation.arena_bytes)});
  const auto comm = make_shared_memory_communicator(memory, 0, 10);
  std::vector<std::string> seen;
  FunctionObserver observer;
  observer.step = [&](const StepReport& report) { seen.push_back("step " + std::to_string(report.run_step)); };
  observer.validation = [&](const ValidationReport& report) {
    CHECK(report.samples == 10);
    seen.push_back("validation " + std::to_string(report.run_step));
  };
  observer.end = [&](int64_t step, Executor&) { seen.push_back("end " + std::to_string(step)); };
  TrainOptions options;
  options.validation = &validation;
  options.from = from;
  const TrainResult result = train(job, program, *comm, observer.alone(), options);
  if (!result.reason.empty()) seen.push_back(result.reason);
  return seen;
}

ValidationReport report_of(const std::string& metric, double value, int64_t step) {
  ValidationReport report;
  report.run_step = step;
  report.values = {{metric, value}};
  return report;
}

/// The reports, as the trainer makes them, of validations at steps 1, 2, …, with these values of the metric.
std::vector<ValidationReport> validations(const std::string& metric, const std::vector<double>& values) {
  std::vector<ValidationReport> reports;
  for (const double value : values) {
    ValidationReport report = report_of(metric, value, static_cast<int64_t>(reports.size()) + 1);
    report.best = best_after(reports.empty() ? BestValues{} : reports.back().best, report);
    reports.push_back(std::move(report));
  }
  return reports;
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

TEST_CASE("a validation follows the last step, and comes after losses that are read later") {
  CHECK(events({"validation.every_steps=2", "train.steps=5", "train.sink_steps=4", "train.epochs=null"}) ==
        std::vector<std::string>{"step 1", "step 2", "validation 2", "step 3", "step 4", "validation 4", "step 5",
                                 "validation 5", "end 5"});
}

TEST_CASE("stop_when ends a run after a validation") {
  const std::vector<std::string> seen = events({"train.stop_when={metric: loss, reaches: 1000}"});
  REQUIRE(seen.size() == 6);
  CHECK(seen[3] == "validation 3");
  CHECK(seen[4] == "end 3");
  CHECK(seen[5].find("train.stop_when.reaches, which is 1000") != std::string::npos);
}

TEST_CASE("reaches is at or beyond the value: below it for a loss, above it for all else") {
  const auto ends = [](const StopSpec& spec, double value) {
    return !stop_reason(spec, report_of(spec.metric, value, 1)).empty();
  };
  CHECK(ends(stop("loss", 0.5, 0), 0.5));
  CHECK(ends(stop("loss", 0.5, 0), 0.4));
  CHECK_FALSE(ends(stop("loss", 0.5, 0), 0.6));
  CHECK(ends(stop("accuracy", 0.5, 0), 0.6));
  CHECK_FALSE(ends(stop("accuracy", 0.5, 0), 0.4));
  CHECK_FALSE(ends(stop("loss", 0.5, 0), std::numeric_limits<double>::quiet_NaN()));
}

TEST_CASE("patience counts consecutive validations that do not improve on the best one") {
  const StopSpec rule = stop("loss", {}, 2);
  const std::vector<ValidationReport> seen = validations("loss", {1.0, 1.0, 0.9, 0.95, 0.92});
  for (size_t i = 0; i < 4; ++i) CHECK(stop_reason(rule, seen[i]).empty());
  CHECK(stop_reason(rule, seen[4]).find("since step 3") != std::string::npos);
}

TEST_CASE("a number is better than nan, and nan is better than nothing") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<ValidationReport> seen = validations("accuracy", {kNan, 0.5, kNan, 0.5});
  CHECK(seen[0].best[0].second.step == 1);
  CHECK(seen[1].best[0].second.step == 2);
  CHECK(seen[3].best[0].second.step == 2);
  CHECK(seen[3].best[0].second.since == 2);
  CHECK_FALSE(stop_reason(stop("accuracy", {}, 1), validations("accuracy", {kNan, kNan}).back()).empty());
}

TEST_CASE("a resumed run counts the validations before it, and one that had been stopped stops again at once") {
  TrainPosition from;
  from.step = 3;
  from.validation = report_of("loss", 1e-9, 3);
  from.validation.best = {{"loss", {.value = 1e-12, .step = 1, .since = 1}}};
  const std::vector<std::string> seen = events({"train.stop_when={metric: loss, patience: 3}"}, from);
  REQUIRE(seen.size() == 10);  // nothing is better than 1e-12
  CHECK(seen[7] == "validation 9");
  CHECK(seen[9] == "the validation loss has not improved on 1e-12 since step 1 (train.stop_when.patience: 3)");
  const std::vector<std::string> none = events({"train.stop_when={metric: loss, patience: 1}"}, from);
  REQUIRE(none.size() == 2);
  CHECK(none[0] == "end 3");
  CHECK(none[1].find("patience: 1") != std::string::npos);
}

TEST_CASE("the best checkpoint has the best value of the metric, and of equal ones is the newest") {
  const std::vector<CheckpointEntry> all = {saved(40, {{"loss", 0.3}, {"accuracy", 0.9}}), saved(30, {}),
                                            saved(20, {{"loss", 0.2}, {"accuracy", 0.9}}),
                                            saved(10, {{"loss", 0.4}, {"accuracy", 0.8}})};
  CHECK(best_step(all, "accuracy") == 40);
  CHECK(best_step(all, "loss") == 20);
  CHECK(best_step(all, "top_5") == std::nullopt);
}

TEST_CASE("padding a batch with samples is refused if rows depend on each other") {
  const std::vector<std::string> mixes = {
      "network=[{name: a, type: dense, units: 1}, {name: m, type: reduce_mean, dims: [0], keep_dims: true}, "
      "{name: out, type: sub, inputs: [a, m]}]"};
  CHECK_THROWS_AS(plan_job(parse_job(kValidationJob, "small.yaml", mixes)), SpecError);
  std::vector<std::string> divides = mixes;
  divides.emplace_back("validation.dataset.samples=8");
  CHECK_NOTHROW(plan_job(parse_job(kValidationJob, "small.yaml", divides)));
}
