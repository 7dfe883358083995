// The range test of the learning rate: its run, its curve, and what it says.
#include "cli/sweep/lr_range.h"

#include <doctest/doctest.h>

#include <cmath>

#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

TEST_CASE("the rate of a range test grows by one factor from its low end to its high end") {
  const LrRange range = parse_lr_range("1e-4..1", 5);
  CHECK(range.low == doctest::Approx(1e-4));
  CHECK(range.high == doctest::Approx(1));
  CHECK(lr_range_fields(range)[0] == "optimizer.learning_rate={type: step, base: 0.0001, step_size: 1, gamma: 10}");
  for (const char* text : {"1e-4", "..", "0..1", "1..1e-4", "a..b", "1e-4..1x", "1e-4..inf"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_lr_range(text, 10), SpecError);
  }
}

TEST_CASE("the steepest rate is where the loss falls fastest, and the curve ends where it rises") {
  std::vector<double> rates, losses;
  for (int i = 0; i <= 60; ++i) {
    const double power = -6 + i * 0.125;  // falls fastest near 1e-2, and explodes after 1
    rates.push_back(std::pow(10, power));
    losses.push_back(power > 0 ? 2 + std::pow(10, 2 * power) : 2 - 1.5 / (1 + std::exp(-6 * (power + 2))));
  }
  const LrCurve curve = lr_curve(rates, losses);
  REQUIRE(curve.steepest.has_value());
  CHECK(*curve.steepest > 3e-3);
  CHECK(*curve.steepest < 2e-1);
  CHECK(curve.diverges);
  CHECK(curve.points.back().rate < 30);
  const std::string text = lr_curve_text(curve, 80);
  CHECK(contains(text, "the loss falls fastest at "));
  CHECK(contains(text, "and rises after it"));
  CHECK(contains(text, "1e-3"));
}

TEST_CASE("a loss that never falls has no steepest rate, and one that is nan at once has no curve") {
  CHECK_FALSE(lr_curve(std::vector<double>(20, 0.1), std::vector<double>(20, 1.0)).steepest.has_value());
  CHECK(contains(lr_curve_text(lr_curve({1, 2}, {NAN, NAN}), 80), "start the range at a lower rate"));
}

TEST_CASE("sweep --lr-range runs once and draws its curve") {
  const Scratch scratch;
  small_job(scratch.path());
  const CommandResult found =
      trainctl_command(scratch.path(), {"sweep", "job.yaml", "--lr-range", "1e-5..10", "--lr-steps", "40"});
  INFO(found.out << found.err);
  REQUIRE(found.exit_code == kExitDone);
  CHECK(contains(found.out, "40 steps with learning rates from 1e-05 to 10"));
  CHECK(contains(found.out, "smoothed loss by learning rate"));
  CHECK(trainctl_command(scratch.path(), {"sweep", "job.yaml"}).exit_code == kExitSpec);
}
