// Tests of learning rates, of the scalars of a step, and of the lines that a run prints.
#include "engine/train/trainer/learning_rate.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/train/files/metrics.h"
#include "engine/train/trainer/trainer.h"

using namespace trainctl;

TEST_CASE("warm-up rises linearly to the base") {
  ScheduleSpec schedule{.base = 0.4, .warmup_steps = 4};
  CHECK(learning_rate(schedule, 0, 100) == doctest::Approx(0.1));
  CHECK(learning_rate(schedule, 3, 100) == doctest::Approx(0.4));
  CHECK(learning_rate(schedule, 4, 100) == doctest::Approx(0.4));
  CHECK(learning_rate(schedule, 99, 100) == doctest::Approx(0.4));
}

TEST_CASE("a step schedule falls by gamma every step_size steps after the warm-up") {
  ScheduleSpec schedule{.type = "step", .base = 1, .warmup_steps = 2, .step_size = 10, .gamma = 0.5};
  CHECK(learning_rate(schedule, 11, 100) == doctest::Approx(1));
  CHECK(learning_rate(schedule, 12, 100) == doctest::Approx(0.5));
  CHECK(learning_rate(schedule, 22, 100) == doctest::Approx(0.25));
}

TEST_CASE("a cosine schedule falls from the base to min over the run, and stays there") {
  ScheduleSpec schedule{.type = "cosine", .base = 1, .warmup_steps = 10, .min = 0.2};
  CHECK(learning_rate(schedule, 10, 110) == doctest::Approx(1));
  CHECK(learning_rate(schedule, 60, 110) == doctest::Approx(0.6));
  CHECK(learning_rate(schedule, 110, 110) == doctest::Approx(0.2));
  schedule.total_steps = 60;
  CHECK(learning_rate(schedule, 35, 110) == doctest::Approx(0.6));
  CHECK(learning_rate(schedule, 100, 110) == doctest::Approx(0.2));
}

TEST_CASE("a linear schedule falls to min over the run, and a polynomial one along a power of the remaining steps") {
  ScheduleSpec schedule{.type = "linear", .base = 1, .warmup_steps = 10, .min = 0.2};
  CHECK(learning_rate(schedule, 10, 110) == doctest::Approx(1));
  CHECK(learning_rate(schedule, 60, 110) == doctest::Approx(0.6));
  CHECK(learning_rate(schedule, 200, 110) == doctest::Approx(0.2));
  schedule.type = "polynomial";
  schedule.power = 2;
  CHECK(learning_rate(schedule, 60, 110) == doctest::Approx(0.2 + 0.8 * 0.25));
}

TEST_CASE("wsd keeps the base until the last decay_steps steps, and ends at min") {
  for (const char* shape : {"linear", "cosine", "sqrt"}) {
    const ScheduleSpec schedule{
        .type = "wsd", .base = 1, .warmup_steps = 5, .min = 0.1, .decay_steps = 20, .decay_shape = shape};
    CHECK(learning_rate(schedule, 4, 100) == doctest::Approx(1));
    CHECK(learning_rate(schedule, 80, 100) == doctest::Approx(1));
    CHECK(learning_rate(schedule, 81, 100) < 1);
    CHECK(learning_rate(schedule, 100, 100) == doctest::Approx(0.1));
  }
}

TEST_CASE("cosine_restarts begins again after each period, the next restart_factor times as long") {
  const ScheduleSpec schedule{.type = "cosine_restarts", .base = 1, .restart_steps = 10, .restart_factor = 2};
  for (const int64_t start : {0, 10, 30, 70}) CHECK(learning_rate(schedule, start, 100) == doctest::Approx(1));
  CHECK(learning_rate(schedule, 5, 100) == doctest::Approx(0.5));
  CHECK(learning_rate(schedule, 20, 100) == doctest::Approx(0.5));
  CHECK(learning_rate(schedule, 69, 100) < 0.01);
}

TEST_CASE("a piecewise schedule is linear between its points, and constant outside of them") {
  const ScheduleSpec schedule{.type = "piecewise", .points = {10, 20, 40}, .rates = {0, 1, 0.5}};
  CHECK(learning_rate(schedule, 0, 100) == 0);
  CHECK(learning_rate(schedule, 15, 100) == doctest::Approx(0.5));
  CHECK(learning_rate(schedule, 20, 100) == doctest::Approx(1));
  CHECK(learning_rate(schedule, 30, 100) == doctest::Approx(0.75));
  CHECK(learning_rate(schedule, 99, 100) == doctest::Approx(0.5));
}

TEST_CASE("segments follow one another, and each counts its steps from its start") {
  ScheduleSpec schedule{.type = "segments"};
  schedule.segments.push_back({.type = "linear", .base = 1, .min = 3, .steps = 4});
  schedule.segments.push_back({.type = "exponential", .base = 2, .gamma = 0.5, .decay_steps = 1, .steps = 3});
  schedule.segments.push_back({.type = "linear", .base = 1, .min = 0});
  const double expected[] = {1, 1.5, 2, 2.5, 2, 1, 0.5, 1, 0.9, 0.8};
  for (int64_t step = 0; step < 10; ++step) CHECK(learning_rate(schedule, step, 17) == doctest::Approx(expected[step]));
  CHECK(outlived_schedule(schedule, 17).empty());
  schedule.segments.back().steps = 10;
  CHECK(
      outlived_schedule(schedule, 20) ==
      "the learning rate is 0 after step 17 (optimizer.learning_rate.segments), but the run has 20 steps; later steps "
      "have no effect");
}

TEST_CASE("a rate falls on a plateau after more than patience validations without an improvement") {
  const ScheduleSpec schedule{
      .type = "plateau", .base = 1, .min = 0.3, .factor = 0.5, .patience = 1, .threshold = 0.1, .cooldown = 2};
  PlateauState state;
  std::vector<double> scales;
  for (const double loss : {1.0, 0.95, 0.8, 0.79, 0.78, 0.77, 0.76, 0.75, 0.74, 0.1}) {
    state = plateau_after(schedule, state, loss);
    scales.push_back(state.scale);
  }
  CHECK(scales == std::vector<double>{1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.3, 0.3});
  CHECK(state.best == 0.1);
}

TEST_CASE("the warning for a run that outlasts its schedule states the rate of its last steps") {
  ScheduleSpec schedule{.type = "linear", .base = 1, .total_steps = 50, .min = 0.25};
  CHECK(outlived_schedule(schedule, 50).empty());
  CHECK(
      outlived_schedule(schedule, 60) ==
      "the learning rate stays at 0.25 after step 50 (optimizer.learning_rate.total_steps), but the run has 60 steps");
  schedule.min = 0;
  CHECK(outlived_schedule(schedule, 60) ==
        "the learning rate is 0 after step 50 (optimizer.learning_rate.total_steps), but the run has 60 steps; later "
        "steps have no effect");
  CHECK(outlived_schedule({.type = "exponential", .decay_steps = 1}, 60).empty());
}

TEST_CASE("the curve of a schedule has a column for each of its parts, and a constant rate has none") {
  CHECK(rate_curve({}, 100, 60).empty());
  CHECK(rate_curve({.type = "linear", .base = 1}, 5, 60) == "█▇▅▄▂");
  const std::string curve = rate_curve({.type = "wsd", .warmup_steps = 10, .decay_steps = 10}, 1000, 60);
  CHECK(curve.size() == 60 * std::string("█").size());
}

TEST_CASE("adam's bias corrections count updates from 1") {
  const OptimizerSpec adam{.type = "adam", .attrs = {{"betas", std::vector<double>{0.9, 0.99}}}};
  const Optimizer optimizer(adam.type, adam.attrs);
  const StepScalars first = step_scalars(adam.learning_rate, optimizer, 0, 0, 10),
                    third = step_scalars(adam.learning_rate, optimizer, 2, 1, 10);
  CHECK(first.adam_bias1 == doctest::Approx(0.1));
  CHECK(first.adam_bias2 == doctest::Approx(0.01));
  CHECK(third.adam_bias1 == doctest::Approx(1 - 0.729));
  CHECK(third.step == 2);
  CHECK(third.epoch == 1);
}

TEST_CASE("a run has all its epochs' steps, or train.steps if they are fewer or it is the only limit") {
  CHECK(total_steps({.epochs = 0, .steps = 100}, 44) == 100);
  CHECK(total_steps({.epochs = 3}, 44) == 132);
  CHECK(total_steps({.epochs = 3, .steps = 100}, 44) == 100);
  CHECK(total_steps({.epochs = 1, .steps = 100}, 44) == 44);
}

TEST_CASE("a loss line reads as MindSpore's") {
  CHECK(loss_line(1, 44, 2.10342) == "epoch: 1 step: 44, loss is 2.1034");
  CHECK(loss_line(10, 1875, 11.69612) == "epoch: 10 step: 1875, loss is 11.6961");
}

TEST_CASE("a loss that is not a number prints as nan, whatever its sign") {
  const double negative = std::copysign(std::numeric_limits<double>::quiet_NaN(), -1.0);
  CHECK(loss_line(1, 1, negative) == "epoch: 1 step: 1, loss is nan");
  CHECK(epoch_line({.epoch = 1, .steps = 1, .has_loss = true, .mean_loss = negative}) == "epoch: 1, mean loss is nan");
}

TEST_CASE("a metrics line has the learning rate as the shortest text of the float that it was") {
  StepReport report;
  report.learning_rate = 0.01f;
  CHECK(metrics_line(report).find(R"("learning_rate":0.01,)") != std::string::npos);
}

TEST_CASE("a metrics line is JSON, and null where the loss is not finite") {
  StepReport report{.epoch = 2, .step = 3, .run_step = 47, .has_loss = true, .loss = 0.5f, .seconds = 0.0012345678};
  CHECK(metrics_line(report) ==
        R"({"epoch":2,"step":3,"run_step":47,"loss":0.5,"learning_rate":0.0,"seconds":0.001235})");
  using Limits = std::numeric_limits<float>;
  for (const float loss : {Limits::quiet_NaN(), -Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
    report.loss = loss;
    const auto line = nlohmann::json::parse(metrics_line(report));
    CHECK(line.contains("loss"));
    CHECK(line["loss"].is_null());
    CHECK(line["not_finite"] == (std::isnan(loss) ? "nan" : loss > 0 ? "inf" : "-inf"));
  }
  report.loss = 0.5f;
  CHECK_FALSE(nlohmann::json::parse(metrics_line(report)).contains("not_finite"));
  report.has_loss = false;
  CHECK_FALSE(nlohmann::json::parse(metrics_line(report)).contains("loss"));
}

TEST_CASE("a loss in a metrics line reads back as the float that it was") {
  StepReport report{.has_loss = true};
  for (const float loss : {2.1f, 1e-30f, 3.4028235e38f, 1.0f / 3.0f, -0.0f, 16777217.0f}) {
    report.loss = loss;
    CHECK(nlohmann::json::parse(metrics_line(report))["loss"].get<float>() == loss);
  }
}

TEST_CASE("the metrics line of an epoch has its mean loss and duration, and no field of a step") {
  EpochReport report{.epoch = 2, .steps = 44, .run_step = 88, .has_loss = true, .mean_loss = 0.5, .seconds = 1.25};
  CHECK(metrics_line(report) == R"({"epoch_end":2,"last_step":88,"steps":44,"mean_loss":0.5,"epoch_seconds":1.25})");
  report.mean_loss = std::numeric_limits<double>::quiet_NaN();
  const auto line = nlohmann::json::parse(metrics_line(report));
  CHECK(line["mean_loss"].is_null());
  CHECK(line["not_finite"] == "nan");
  report.has_loss = false;
  CHECK_FALSE(nlohmann::json::parse(metrics_line(report)).contains("mean_loss"));
}
