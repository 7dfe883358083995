// Tests of a whole run on one rank: its counts, its reports, and how it stops.
#include "engine/train/trainer/trainer.h"

#include <doctest/doctest.h>

#include <atomic>
#include <limits>

#include "engine/base/error.h"
#include "engine/planning/compile_job.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/finite_state.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/train/function_observer.h"

using namespace trainctl;

namespace {

const char* const kJob = R"(name: small
dataset: {type: random, shape: [3], label_dtype: f32, batch: 4, samples: 10}
network:
  - {name: out, type: dense, units: 1}
loss: mse
optimizer: {type: sgd, learning_rate: {type: step, base: 0.1, step_size: 3, gamma: 0.5}}
train: {epochs: 3}
launch: {ranks: 1, device: cpu}
)";

struct OneRank {
  PlannedJob job;
  Program program;
  std::shared_ptr<SharedMemory> memory;
  std::unique_ptr<Communicator> comm;

  explicit OneRank(const std::vector<std::string>& overrides = {})
      : job(plan_job(parse_job(kJob, "small.yaml", overrides))),
        program(compile(job, 0)),
        memory(SharedMemory::create({program.arena_bytes})),
        comm(make_shared_memory_communicator(memory, 0, 10)) {}
};

}  // namespace

TEST_CASE("after the first step a run reports how the time until then was spent, with earlier phases") {
  OneRank rank;
  std::vector<std::string> phases, order;
  FunctionObserver seen;
  seen.first_step = [&](const StartUpClock& clock) {
    order.emplace_back("start-up");
    for (const auto& phase : clock.phases()) phases.push_back(phase.name);
  };
  seen.step = [&](const StepReport&) { order.emplace_back("step"); };
  TrainOptions options;
  options.start_up.ended("launch");
  train(rank.job, rank.program, *rank.comm, seen.alone(), options);
  CHECK(phases == std::vector<std::string>{"launch", "data", "memory", "connect", "kernels", "weights", "step"});
  CHECK(order == std::vector<std::string>{"start-up", "step", "step", "step", "step", "step", "step"});
}

TEST_CASE("epochs and steps count from 1, and an epoch reports the mean of its losses") {
  OneRank rank;
  std::vector<StepReport> steps;
  std::vector<EpochReport> epochs;
  FunctionObserver seen;
  seen.step = [&](const StepReport& report) { steps.push_back(report); };
  seen.epoch = [&](const EpochReport& report) { epochs.push_back(report); };
  const TrainResult result = train(rank.job, rank.program, *rank.comm, seen.alone());

  REQUIRE(steps.size() == 6);  // two whole batches of 10 samples, three epochs
  CHECK(result.steps == 6);
  CHECK_FALSE(result.stopped);
  CHECK(steps[0].epoch == 1);
  CHECK(steps[0].step == 1);
  CHECK(steps[3].epoch == 2);
  CHECK(steps[3].step == 2);
  CHECK(steps[3].run_step == 4);
  CHECK(steps[5].run_steps == 6);
  CHECK(steps[2].learning_rate == doctest::Approx(0.1));
  CHECK(steps[3].learning_rate == doctest::Approx(0.05));
  REQUIRE(epochs.size() == 3);
  CHECK(epochs[1].steps == 2);
  CHECK(epochs[1].mean_loss == doctest::Approx((steps[2].loss + steps[3].loss) / 2.0));
  CHECK(result.last_loss == steps[5].loss);
  CHECK(result.last_epoch.epoch == 3);
}

TEST_CASE("train.steps ends a run in the middle of an epoch, which still reports") {
  OneRank rank({"train.steps=3"});
  std::vector<EpochReport> epochs;
  FunctionObserver seen;
  seen.epoch = [&](const EpochReport& report) { epochs.push_back(report); };
  CHECK(train(rank.job, rank.program, *rank.comm, seen.alone()).steps == 3);
  REQUIRE(epochs.size() == 2);
  CHECK(epochs[1].steps == 1);
}

TEST_CASE("a run ends before the step that may not start, and every started step is reported") {
  OneRank rank;
  std::vector<int64_t> asked;
  std::vector<EpochReport> epochs;
  FunctionObserver seen;
  TrainOptions options;
  options.may_start = [&](int64_t step) {
    asked.push_back(step);
    return step < 3;
  };
  seen.epoch = [&](const EpochReport& report) { epochs.push_back(report); };
  const TrainResult result = train(rank.job, rank.program, *rank.comm, seen.alone(), options);
  CHECK(result.stopped);
  CHECK(result.steps == 3);
  CHECK(asked == std::vector<int64_t>{0, 1, 2, 3});
  CHECK(epochs.size() == 1);
}

TEST_CASE("the end of a run is reported once, after the last step, however many steps are read together") {
  for (const char* sink : {"1", "2", "100"}) {
    OneRank rank({std::string("train.sink_steps=") + sink});
    std::vector<int64_t> reported, ended;
    FunctionObserver seen;
    seen.position = [&](const TrainPosition& position) {
      CHECK(ended.empty());
      reported.push_back(position.step);
    };
    seen.end = [&](int64_t step, Executor&) { ended.push_back(step); };
    train(rank.job, rank.program, *rank.comm, seen.alone());
    CHECK(reported == std::vector<int64_t>{1, 2, 3, 4, 5, 6});
    CHECK(ended == std::vector<int64_t>{6});
  }
}

TEST_CASE("train.sink_steps reports the same losses, some steps at a time and at an epoch's end") {
  const auto run = [](const std::string& sink) {
    OneRank rank({"train.steps=5", "dataset.samples=16", "train.sink_steps=" + sink});
    std::vector<float> losses;
    std::string order;  // s: a step starts, r: a step is reported, e: an epoch ends
    FunctionObserver seen;
    TrainOptions options;
    options.may_start = [&](int64_t) { return !(order += 's').empty(); };
    seen.step = [&](const StepReport& report) {
      order += 'r';
      losses.push_back(report.loss);
    };
    seen.epoch = [&](const EpochReport&) { order += 'e'; };
    const TrainResult result = train(rank.job, rank.program, *rank.comm, seen.alone(), options);
    CHECK(result.steps == 5);
    CHECK_FALSE(result.stopped);
    return std::pair{losses, order};
  };
  const auto one = run("1"), three = run("3"), many = run("100");
  CHECK(one.second == "srsrsrsresre");
  CHECK(three.second == "sssrrrsresre");
  CHECK(many.second == "ssssrrrresre");
  CHECK(three.first == one.first);
  CHECK(many.first == one.first);
}

TEST_CASE("steps between two reads of the losses share their time evenly") {
  OneRank rank({"train.steps=4", "dataset.samples=16", "train.sink_steps=3"});
  std::vector<double> seconds;
  FunctionObserver seen;
  seen.step = [&](const StepReport& report) { seconds.push_back(report.seconds); };
  train(rank.job, rank.program, *rank.comm, seen.alone());
  REQUIRE(seconds.size() == 4);
  CHECK(seconds[0] > 0);
  CHECK(seconds[1] == seconds[0]);
  CHECK(seconds[2] == seconds[0]);
}

TEST_CASE("asking the data set for a field that it lacks is an error at the line of the job file") {
  const auto position = [](const std::vector<std::string>& overrides, const std::string& text) {
    try {
      plan_job(parse_job(text, "small.yaml", overrides));
    } catch (const SpecError& error) {
      const Diagnostic& d = error.diagnostics().at(0);
      return d.path + " " + std::to_string(d.pos.line) + ":" + std::to_string(d.pos.column);
    }
    return std::string("no error");
  };
  const std::string text = R"(name: lost
dataset:
  type: mnist
  path: nowhere/at/all
network:
  - {name: out, type: dense, units: 1}
)";
  CHECK(position({}, text) == "dataset.path 4:9");
  CHECK(position({}, kJob) == "no error");

  std::string large = kJob;
  large.replace(large.find("batch: 4"), 8, "batch: 12");
  CHECK(position({}, large) == "dataset.batch 2:62");
  CHECK(position({"dataset.repeat=2"}, large) == "no error");
  CHECK(position({"dataset.drop_last=false"}, large) == "no error");
  CHECK(position({"dataset.samples=0"}, large) == "no error");
}

namespace {

/// The events of a job whose loss is infinite from its second step on. s: a step starts. r: a step is reported. !r: the
/// first step with an infinite loss is reported. e: an epoch ends.
std::string diverging(const std::vector<std::string>& more, int64_t* thrown_at = nullptr) {
  std::vector<std::string> overrides = {"optimizer.learning_rate=1e30", "train.steps=4", "dataset.samples=8"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  OneRank rank(overrides);
  std::string order;
  FunctionObserver seen;
  TrainOptions options;
  options.may_start = [&](int64_t) { return !(order += 's').empty(); };
  seen.step = [&](const StepReport& report) {
    order += report.is_first_not_finite ? "!r" : "r";
    if (!report.is_first_not_finite) return;
    CHECK(report.run_step == 2);
    CHECK(not_finite_line(report) == "loss is inf since step 2 (epoch 1, step 2)");
  };
  seen.epoch = [&](const EpochReport&) { order += 'e'; };
  try {
    train(rank.job, rank.program, *rank.comm, seen.alone(), options);
  } catch (const LossNotFinite& error) {
    if (thrown_at != nullptr) *thrown_at = error.run_step();
    CHECK(std::string(error.what()).find("train.on_nan: warn") != std::string::npos);
  }
  return order;
}

}  // namespace

TEST_CASE("a run ends after the first step whose loss is nan or infinite, which it still reports") {
  int64_t at = 0;
  CHECK(diverging({}, &at) == "srs!r");
  CHECK(at == 2);
}

TEST_CASE("with sink_steps a run ends with the first such loss among those read together") {
  int64_t at = 0;
  CHECK(diverging({"train.sink_steps=3", "dataset.samples=16"}, &at) == "sssr!r");
  CHECK(at == 2);
}

TEST_CASE("with on_nan: warn a run continues, and names the first such loss once") {
  int64_t at = 0;
  CHECK(diverging({"train.on_nan=warn"}, &at) == "srs!resrsre");
  CHECK(at == 0);
}

TEST_CASE(
    "train.steps without epochs runs as many epochs as it needs, and with both the first limit reached ends the run") {
  const auto steps = [](const std::string& text, const std::vector<std::string>& overrides) {
    const PlannedJob job = plan_job(parse_job(text, "small.yaml", overrides));
    return total_steps(job.spec.train, 2);
  };
  std::string text = kJob;
  const std::string no_train = std::string(text).replace(text.find("train: {epochs: 3}\n"), 19, "");
  CHECK(steps(no_train, {}) == 2);
  CHECK(steps(no_train, {"train.steps=1000"}) == 1000);
  CHECK(steps(no_train, {"train.steps=1000", "train.epochs=null"}) == 1000);
  CHECK(steps(no_train, {"train.steps=1000", "train.epochs=1"}) == 2);
  CHECK(steps(text, {"train.steps=5"}) == 5);
  CHECK(steps(text, {"train.steps=1000"}) == 6);
}

TEST_CASE("an epoch reports its duration and its last step") {
  OneRank rank({"train.steps=3"});
  std::vector<EpochReport> epochs;
  double steps = 0;
  FunctionObserver seen;
  seen.step = [&](const StepReport& report) { steps += report.seconds; };
  seen.epoch = [&](const EpochReport& report) { epochs.push_back(report); };
  train(rank.job, rank.program, *rank.comm, seen.alone());
  REQUIRE(epochs.size() == 2);
  CHECK(epochs[0].run_step == 2);
  CHECK(epochs[1].run_step == 3);
  CHECK(epochs[0].seconds > 0);
  CHECK(epochs[1].seconds > 0);
  CHECK(epochs[0].seconds + epochs[1].seconds >= doctest::Approx(steps));
}

TEST_CASE("a run of more steps than 32 bits can count is refused at the field that requests them") {
  const auto error = [](const std::vector<std::string>& overrides) {
    try {
      plan_job(parse_job(kJob, "small.yaml", overrides));
    } catch (const SpecError& e) {
      return e.diagnostics().at(0).path + ": " + e.diagnostics().at(0).message;
    }
    return std::string("no error");
  };
  const std::string most = std::to_string(std::numeric_limits<int64_t>::max());
  CHECK(error({"train.epochs=" + most}).starts_with("train.epochs: the run would have more than 9,223,372"));
  CHECK(error({"dataset.repeat=4611686018427387904"}).starts_with("dataset.repeat: the run would have "));
  CHECK(
      error({"dataset.samples=" + most, "dataset.shuffle=false"}).starts_with("dataset.samples: the run would have "));
  CHECK(error({"dataset.repeat=4611686018427387904", "train.steps=3"}) == "no error");
  CHECK(error({"train.epochs=" + most, "train.steps=3"}) == "no error");
}

TEST_CASE("a run of few steps over an endless epoch takes those steps") {
  OneRank rank({"dataset.repeat=4611686018427387904", "train.epochs=4611686018427387904", "train.steps=3"});
  CHECK(train(rank.job, rank.program, *rank.comm, {}).steps == 3);
}

TEST_CASE("weights that the last update leaves not finite end the run with an error, before its end is saved") {
  // The loss is about 1e12, and its gradient times the learning rate overflows.
  const std::vector<std::string> overflow = {
      "dataset={type: constant, shape: [3], value: 1000000, label_value: 1, label_dtype: f32, batch: 4, samples: 8}",
      "optimizer.learning_rate=1e30", "train.steps=1"};
  const auto ends = [&](const std::string& on_nan) {
    std::vector<std::string> overrides = overflow;
    overrides.push_back("train.on_nan=" + on_nan);
    OneRank rank(overrides);
    bool has_ended = false;
    FunctionObserver seen;
    seen.end = [&](int64_t, Executor&) { has_ended = true; };
    try {
      train(rank.job, rank.program, *rank.comm, seen.alone());
    } catch (const StateNotFinite& error) {
      CHECK(error.run_step() == 1);
      CHECK(std::string(error.what()).find("out.") != std::string::npos);
      CHECK_FALSE(has_ended);
      return std::string("not finite");
    }
    return std::string(has_ended ? "end" : "nothing");
  };
  CHECK(ends("stop") == "not finite");
  CHECK(ends("warn") == "end");
}
