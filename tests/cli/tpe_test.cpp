// Tests of trials that are chosen from the results of earlier trials.
#include "cli/sweep/tpe.h"

#include <doctest/doctest.h>

#include <cmath>

#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

double number_in(const std::string& field) { return std::stod(field.substr(field.find('=') + 1)); }

/// The best (lowest) badness among `count` trials of a function whose minimum is at rate 1e-2 and word b.
double best_of_trials(uint64_t seed, size_t count, bool chosen) {
  const std::vector<SweptField> fields = {parse_swept_field("rate=1e-6..10*"), parse_swept_field("word=a,b,c")};
  std::vector<Observation> ended;
  double best = INFINITY;
  for (size_t i = 0; i < count; ++i) {
    const TrialFields trial =
        chosen ? choose_trial(fields, ended, seed, i) : random_trials(fields, static_cast<int64_t>(i) + 1, seed).back();
    const double distance = std::log10(number_in(trial[0])) + 2;
    const double badness = distance * distance + (trial[1] == "word=b" ? 0 : 1);
    best = std::min(best, badness);
    ended.push_back({trial, badness});
  }
  return best;
}

}  // namespace

TEST_CASE("chosen trials come closer to the minimum than random ones, for most seeds") {
  int closer = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed)
    if (best_of_trials(seed, 40, true) <= best_of_trials(seed, 40, false)) ++closer;
  CHECK(closer >= 14);
}

TEST_CASE("a chosen trial is a function of the results, and stays in the ranges") {
  const std::vector<SweptField> fields = {parse_swept_field("units=16..256"), parse_swept_field("rate=0..0.5")};
  std::vector<Observation> ended;
  for (size_t i = 0; i < 30; ++i) {
    const TrialFields trial = choose_trial(fields, ended, 3, i);
    CHECK(trial == choose_trial(fields, ended, 3, i));
    const double units = number_in(trial[0]), rate = number_in(trial[1]);
    CHECK(units == std::floor(units));
    CHECK((units >= 16 && units <= 256 && rate >= 0 && rate <= 0.5));
    ended.push_back({trial, i % 5 == 0 ? INFINITY : std::abs(units - 100)});
  }
}

TEST_CASE("sweep --tpe runs its trials, and the same command finds them done") {
  const Scratch scratch;
  small_job(scratch.path());
  const std::vector<std::string> words = {
      "sweep", "job.yaml", "optimizer.learning_rate=1e-4..1e-1*", "train.epochs=1", "--tpe", "4", "--jobs", "2"};
  const CommandResult first = trainctl_command(scratch.path(), words);
  INFO(first.out << first.err);
  REQUIRE(first.exit_code == kExitDone);
  CHECK(contains(first.out, "trial 4/"));
  const CommandResult again = trainctl_command(scratch.path(), words);
  CHECK(again.exit_code == kExitDone);
  CHECK_FALSE(contains(again.out, "started"));
}
