// trainctl sweep: the values of fields, the trials that come of them, and runs of them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <set>

#include "cli/sweep/swept_field.h"
#include "engine/base/error.h"
#include "launcher/run_directory.h"
#include "tests/cli/command.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

using SweepTexts = std::vector<std::string>;

double value_of(const std::string& field) { return std::stod(field.substr(field.find('=') + 1)); }

}  // namespace

TEST_CASE("values are a list, or a range with a step or a factor") {
  CHECK(parse_swept_field("a.b=1e-3,3e-3").values == SweepTexts{"1e-3", "3e-3"});
  CHECK(parse_swept_field("a=[1, 2],[3, 4]").values == SweepTexts{"[1, 2]", "[3, 4]"});
  CHECK(parse_swept_field("a={type: sgd, momentum: 0.9},adam").values == SweepTexts{"{type: sgd, momentum: 0.9}", "adam"});
  CHECK(parse_swept_field("vars.d=64..512*2").values == SweepTexts{"64", "128", "256", "512"});
  CHECK(parse_swept_field("a=64..500*2").values == SweepTexts{"64", "128", "256"});
  CHECK(parse_swept_field("a=0..0.3+0.1").values == SweepTexts{"0", "0.1", "0.2", "0.3"});
  CHECK(parse_swept_field("a=1e-4..1e-1*10").values == SweepTexts{"0.0001", "0.001", "0.01", "0.1"});
  CHECK(parse_swept_field("a=-1..1+1").values == SweepTexts{"-1", "0", "1"});
  CHECK(parse_swept_field("a=data/x..y").values == SweepTexts{"data/x..y"});
  CHECK(parse_swept_field("a=5").name == "a");
}

TEST_CASE("values that mean nothing are refused, with the word") {
  for (const char* word :
       {"a", "=1", "a=", "a=1,,2", "a=1..0+1", "a=0..8*2", "a=1..8*1", "a=1..8+0", "a=1..8+", "a=0..1*"}) {
    CAPTURE(word);
    try {
      parse_swept_field(word);
      FAIL_CHECK("it was taken");
    } catch (const SpecError& error) {
      CHECK(contains(error.what(), word));
    }
  }
}

TEST_CASE("a grid is every combination, the last field fastest") {
  const std::vector<TrialFields> trials = grid({parse_swept_field("a=1,2"), parse_swept_field("b=x,y")});
  CHECK(trials == std::vector<TrialFields>{{"a=1", "b=x"}, {"a=1", "b=y"}, {"a=2", "b=x"}, {"a=2", "b=y"}});
  CHECK_THROWS_AS(grid({parse_swept_field("a=1..9")}), SpecError);
  CHECK_THROWS_AS(grid({parse_swept_field("a=1..200+1"), parse_swept_field("b=1..200+1")}), SpecError);
}

TEST_CASE("random trials are in their ranges, repeat with their seed, and are a prefix of those of a longer sweep") {
  const std::vector<SweptField> fields = {parse_swept_field("a=3..5"), parse_swept_field("b=0..2.5"),
                                          parse_swept_field("c=1e-4..1*"), parse_swept_field("d=p,q")};
  const std::vector<TrialFields> trials = random_trials(fields, 400, 7);
  std::set<std::string> whole, words;
  int small = 0;
  for (const TrialFields& trial : trials) {
    whole.insert(trial[0]);
    words.insert(trial[3]);
    CHECK(value_of(trial[1]) >= 0);
    CHECK(value_of(trial[1]) <= 2.5);
    CHECK(value_of(trial[2]) >= 1e-4);
    CHECK(value_of(trial[2]) <= 1);
    small += value_of(trial[2]) < 1e-2 ? 1 : 0;
  }
  CHECK(whole == std::set<std::string>{"a=3", "a=4", "a=5"});
  CHECK(words == std::set<std::string>{"d=p", "d=q"});
  CHECK(std::abs(small - 200) < 60);  // half of the decades lie below
  const std::vector<TrialFields> fewer = random_trials(fields, 5, 7);
  CHECK(std::equal(fewer.begin(), fewer.end(), trials.begin()));
  CHECK(random_trials(fields, 5, 8) != fewer);
}

TEST_CASE("a sweep runs every trial, and ends with a table, best first, and a page, and a second call runs nothing") {
  const Scratch scratch;
  small_job(scratch.path());
  const SweepTexts words = {"sweep", "job.yaml", "optimizer.learning_rate=0.0001,0.05", "train.epochs=3", "--jobs", "2"};
  const CommandResult result = trainctl_command(scratch.path(), words);
  CHECK(result.exit_code == kExitDone);
  const std::string folder = scratch.path() + "/sweep_output/small";
  CHECK(state_of(RunDirectory(folder + "/trial.1", 1)) == RunState::done);
  CHECK(state_of(RunDirectory(folder + "/trial.2", 1)) == RunState::done);
  const size_t table = result.out.find("\n  trial  optimizer.learning_rate");
  REQUIRE(table != std::string::npos);
  CHECK(result.out.find("0.05", table) < result.out.find("0.0001", table));
  CHECK(contains(slurp(folder + "/report.html"), "\"label\":\"trial 2\""));

  const CommandResult again = trainctl_command(scratch.path(), words);
  CHECK(again.exit_code == kExitDone);
  CHECK_FALSE(contains(again.out, "started"));
  CHECK(list_runs(folder + "/trial.1") == std::vector<int>{1});

  const CommandResult other = trainctl_command(scratch.path(), {"sweep", "job.yaml", "seed=1,2"});
  CHECK(other.exit_code == kExitSpec);
  CHECK(contains(other.err, "--folder"));
}

TEST_CASE("a failed trial does not end the others, and the sweep says so") {
  const Scratch scratch;
  small_job(scratch.path());
  const CommandResult result =
      trainctl_command(scratch.path(), {"sweep", "job.yaml", "optimizer.learning_rate=1e30,0.01", "--jobs", "1"});
  CHECK(result.exit_code == kExitRankFailed);
  CHECK(contains(result.out, "failed"));
  CHECK(state_of(RunDirectory(scratch.path() + "/sweep_output/small/trial.2", 1)) == RunState::done);
}

TEST_CASE("a value that no job can have is refused before any trial starts") {
  const Scratch scratch;
  small_job(scratch.path());
  const CommandResult result = trainctl_command(scratch.path(), {"sweep", "job.yaml", "dataset.batch=8,-1"});
  CHECK(result.exit_code == kExitSpec);
  CHECK_FALSE(std::filesystem::exists(scratch.path() + "/sweep_output"));
}

TEST_CASE("the same command resumes a sweep that was stopped") {
  const Scratch scratch;
  small_job(scratch.path());
  const SweepTexts words = {"sweep", "job.yaml", "train.steps=100000000,3", "--jobs", "1"};
  const int sweep = start_trainctl(scratch.path(), words);
  const std::string trial = scratch.path() + "/sweep_output/small/trial.1";
  const auto has_begun = [&](const std::string& run) {
    return eventually([&] { return slurp(trial + "/" + run + "/metrics.jsonl").size() >= 200; });
  };
  REQUIRE(has_begun("1"));
  kill(sweep, SIGINT);
  const CommandResult stopped = finish_trainctl(scratch.path(), sweep);
  CHECK(stopped.exit_code == 130);
  CHECK(contains(stopped.out, "run the same command to resume the sweep"));
  CHECK(state_of(RunDirectory(trial, 1)) == RunState::stopped);
  CHECK(list_runs(scratch.path() + "/sweep_output/small/trial.2").empty());

  const int again = start_trainctl(scratch.path(), words);
  REQUIRE(has_begun("2"));
  kill(again, SIGINT);
  CHECK(finish_trainctl(scratch.path(), again).exit_code == 130);
  CHECK(list_runs(trial) == std::vector<int>{1, 2});
}
