// trainctl sweep --asha: trials that are not among the best at a rung end early.
#include "cli/sweep/halving.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>

#include "engine/base/error.h"
#include "launcher/run_directory.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

/// A trial whose metric is `value` at each of `steps` steps.
std::vector<StepValue> constant_trial(int64_t steps, double value) {
  std::vector<StepValue> values;
  for (int64_t step = 1; step <= steps; ++step) values.push_back({step, value});
  return values;
}

}  // namespace

TEST_CASE("the first trial of a rung continues, and a later one only among the best 1/factor of those that came") {
  const Halving halving{10, 2, "loss"};
  CHECK_FALSE(rung_that_ends({constant_trial(15, 3.0)}, 0, halving));
  const std::vector<std::vector<StepValue>> four = {constant_trial(15, 3.0), constant_trial(15, 1.0),
                                                    constant_trial(15, 2.0), constant_trial(9, 9.0)};
  const auto worst = rung_that_ends(four, 0, halving);
  REQUIRE(worst);
  CHECK(worst->rung == 10);
  CHECK(worst->value == 3.0);
  CHECK(worst->cutoff == 2.0);
  CHECK_FALSE(rung_that_ends(four, 1, halving));
  CHECK_FALSE(rung_that_ends(four, 2, halving));
  CHECK_FALSE(rung_that_ends(four, 3, halving));  // it has not reached a rung
  const Halving accuracy{10, 2, "accuracy"};
  CHECK_FALSE(rung_that_ends(four, 0, accuracy));
  CHECK(rung_that_ends(four, 1, accuracy));
}

TEST_CASE("rungs grow by the factor, and a value that is not finite ends a trial") {
  const Halving halving{4, 3, "validation loss"};
  const auto later = rung_that_ends({constant_trial(12, 1.0), {{4, 0.5}, {12, 2.0}}}, 1, halving);
  REQUIRE(later);
  CHECK(later->rung == 12);
  CHECK(rung_that_ends({constant_trial(5, NAN)}, 0, halving)->rung == 4);
}

TEST_CASE("the value at a rung is a validation at or after it, the best one up to there, or a mean of steps") {
  const std::vector<StepValue> values = {{2, 5.0}, {4, 1.0}, {6, 3.0}, {8, 4.0}};
  CHECK(value_at_rung(values, 5, "validation loss") == 3.0);
  CHECK(value_at_rung(values, 5, "best validation loss") == 1.0);
  CHECK(value_at_rung(values, 5, "best validation accuracy") == 5.0);
  CHECK(value_at_rung(values, 8, "loss") == (1.0 + 3.0 + 4.0) / 3);
  CHECK_FALSE(value_at_rung(values, 9, "loss"));
  CHECK_FALSE(value_at_rung({}, 1, "loss"));
}

TEST_CASE("sweep --asha ends a bad trial early, and the same command runs nothing again") {
  const Scratch scratch;
  // The second trial learns nothing, and would run nearly forever.
  std::ofstream(scratch.path() + "/job.yaml") << R"(
name: halved
vars: {good: 1}
dataset: {type: random, shape: [8], label_dtype: f32, samples: 64, batch: 8}
network:
  - {name: out, type: dense, units: 1}
loss: mse
optimizer: {type: sgd, learning_rate: "${0.05*good + 1e-9}"}
train: {steps: "${100000000 - 99999800*good}"}
)";
  const std::vector<std::string> words = {"sweep", "job.yaml", "vars.good=1,0", "--asha", "40", "--jobs", "1"};
  const CommandResult result = trainctl_command(scratch.path(), words);
  INFO(result.out << result.err);
  CHECK(result.exit_code == kExitDone);
  CHECK(contains(result.out, "ended early: loss "));
  const std::string folder = scratch.path() + "/sweep_output/halved";
  CHECK(state_of(RunDirectory(folder + "/trial.1", 1)) == RunState::done);
  CHECK(state_of(RunDirectory(folder + "/trial.2", 1)) == RunState::stopped);
  const CommandResult again = trainctl_command(scratch.path(), words);
  CHECK(again.exit_code == kExitDone);
  CHECK_FALSE(contains(again.out, "started"));
  CHECK(contains(again.out, "ended early"));
}

TEST_CASE("--asha by a metric that the job does not report is refused, with those that it reports") {
  const Scratch scratch;
  small_job(scratch.path());
  const CommandResult result = trainctl_command(
      scratch.path(), {"sweep", "job.yaml", "seed=1,2", "--asha", "10", "--by", "validation accuracy"});
  CHECK(result.exit_code == kExitSpec);
  CHECK(contains(result.err, "available: loss"));
}
