// trainctl run: real ranks that train, and the files that they leave.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "launcher/run_directory.h"
#include "tests/cli/command.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

int run_count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace

TEST_CASE("a run trains, shows the first rank's losses, and leaves its files") {
  const Scratch scratch;
  small_job(scratch.path());
  const CommandResult result = trainctl_command(
      scratch.path(),
      {"run", "job.yaml", "launch.ranks=4", "parallel.mode=data_parallel", "train.epochs=2", "--record"});
  CHECK(result.exit_code == kExitDone);
  CHECK(result.err.empty());
  CHECK(run_count(result.out, "loss is") == 16 + 2);
  CHECK(contains(result.out, "epoch: 2 step: 8, loss is "));
  CHECK(contains(result.out, "logs in log_output/1"));
  CHECK(contains(result.out, "done after"));
  const RunDirectory run(scratch.path() + "/log_output", 1);
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(run_count(slurp(run.rank_file(rank, "stdout")), "loss is") == 16 + 2);
    CHECK(slurp(run.rank_file(rank, "stderr")).empty());
    CHECK(contains(slurp(run.rank_file(rank, "collectives.jsonl")), "all_reduce"));
  }
  const std::string metrics = slurp(run.file("metrics.jsonl"));
  CHECK(run_count(metrics, "\"learning_rate\":") == 16);
  CHECK(run_count(metrics, "\"epoch_end\":") == 2);
  CHECK(std::filesystem::exists(run.file("checkpoints/step_00000016/checkpoint.json")));  // the final weights
  CHECK(nlohmann::json::parse(slurp(run.file("plan.json")), nullptr, false).is_object());
  CHECK(state_of(run) == RunState::done);
  CHECK(trainctl_command(scratch.path(), {"check", "log_output/1/job.yaml"}).exit_code == kExitDone);
}

TEST_CASE("--record writes the communications of one step, whatever sink_steps is") {
  const Scratch scratch;
  small_job(scratch.path());
  const std::vector<std::string> words = {
      "run", "job.yaml", "launch.ranks=2", "parallel.mode=data_parallel", "train.epochs=2", "--record"};
  CHECK(trainctl_command(scratch.path(), words).exit_code == kExitDone);
  CHECK(trainctl_command(scratch.path(), with(words, {"train.sink_steps=4"})).exit_code == kExitDone);
  CHECK(trainctl_command(scratch.path(), with(words, {"train.steps=1"})).exit_code == kExitDone);
  const std::string once = slurp(scratch.path() + "/log_output/1/rank.1/collectives.jsonl");
  CHECK(run_count(once, "\n") > 0);
  CHECK(slurp(scratch.path() + "/log_output/2/rank.1/collectives.jsonl") == once);
  CHECK(slurp(scratch.path() + "/log_output/3/rank.1/collectives.jsonl") == once);
}

TEST_CASE("a run records how each rank spent the time until its first step, in phases that add up") {
  const Scratch scratch;
  small_job(scratch.path());
  REQUIRE(trainctl_command(scratch.path(), {"run", "job.yaml", "launch.ranks=2", "parallel.mode=data_parallel"})
              .exit_code == kExitDone);
  const RunDirectory run(scratch.path() + "/log_output", 1);
  for (int rank = 0; rank < 2; ++rank) {
    const auto start = nlohmann::json::parse(slurp(run.rank_file(rank, "start_up.json")), nullptr, false);
    REQUIRE(start.is_object());
    double sum = 0;
    for (const auto& [name, seconds] : start["phases"].items()) sum += seconds.get<double>();
    CHECK(sum == doctest::Approx(start["seconds"].get<double>()).epsilon(1e-3));
    CHECK(start["alone"] < start["seconds"]);
    for (const char* name : {"plan", "launch", "program", "data", "kernels", "step"})
      CHECK(start["phases"].contains(name));
  }
  const std::string metrics = slurp(run.file("metrics.jsonl"));
  const auto first = nlohmann::json::parse(metrics.substr(0, metrics.find('\n')), nullptr, false);
  CHECK(first["start_up"] == nlohmann::json::parse(slurp(run.rank_file(0, "start_up.json"))));
}

TEST_CASE("the ranks may communicate over Gloo, with the same numbers") {
  const Scratch scratch;
  small_job(scratch.path());
  const std::vector<std::string> words = {
      "run", "job.yaml", "launch.ranks=3", "parallel.mode=data_parallel", "dataset.batch=12", "train.steps=5"};
  CHECK(trainctl_command(scratch.path(), words).exit_code == kExitDone);
  CHECK(trainctl_command(scratch.path(), with(words, {"launch.comm=gloo"})).exit_code == kExitDone);
  const std::string shm = slurp(scratch.path() + "/log_output/1/rank.0/stdout");
  CHECK(run_count(shm, "loss is") >= 5);
  CHECK(shm == slurp(scratch.path() + "/log_output/2/rank.0/stdout"));
}

TEST_CASE("an unusable environment exits with 3") {
  const Scratch scratch;
  small_job(scratch.path());
  std::ofstream(scratch.path() + "/file") << "x";
  const CommandResult result = trainctl_command(scratch.path(), {"run", "job.yaml", "launch.log_dir=file/logs"});
  CHECK(result.exit_code == kExitEnv);
  CHECK(contains(result.err, "launch.log_dir"));
}

TEST_CASE("logs lists runs and prints those of chosen ranks") {
  const Scratch scratch;
  small_job(scratch.path());
  CHECK(contains(trainctl_command(scratch.path(), {"logs"}).out, "no runs"));
  REQUIRE(trainctl_command(scratch.path(), {"run", "job.yaml", "launch.ranks=2", "parallel.mode=data_parallel"})
              .exit_code == 0);
  const std::string list = trainctl_command(scratch.path(), {"logs"}).out;
  CHECK(contains(list, "done"));
  CHECK(contains(list, "mean loss is"));
  const std::string all = trainctl_command(scratch.path(), {"logs", "1"}).out;
  CHECK(run_count(all, "rank 0 | epoch: 1") == 9);
  CHECK(run_count(all, "rank 1 | epoch: 1") == 9);
  CHECK(trainctl_command(scratch.path(), {"logs", "1", "--follow"}).out == all);
  const std::string some =
      trainctl_command(scratch.path(), {"logs", "1", "--rank", "1", "--tail", "3", "--grep", "step: [78]"}).out;
  CHECK(run_count(some, "\n") == 2);
  CHECK(contains(some, "rank 1 | epoch: 1 step: 8, loss is"));
  CHECK(trainctl_command(scratch.path(), {"logs", "9"}).exit_code == kExitSpec);
  CHECK(trainctl_command(scratch.path(), {"logs", "1", "--rank", "2"}).exit_code == kExitSpec);
  CHECK(trainctl_command(scratch.path(), {"logs", "1", "--rank", "x"}).exit_code == kExitSpec);
  CHECK(trainctl_command(scratch.path(), {"logs", "1", "--grep", "("}).exit_code == kExitSpec);
}

TEST_CASE("20 runs at once get 20 folders and all train") {
  const Scratch scratch;
  small_job(scratch.path());
  std::vector<int> pids;
  for (int i = 0; i < 20; ++i) {
    const std::string own = scratch.path() + "/" + std::to_string(i);
    fs::create_directory(own);
    pids.push_back(start_trainctl(
        own, {"run", "../job.yaml", "launch.ranks=2", "parallel.mode=data_parallel", "launch.log_dir=../logs"}));
  }
  for (int i = 0; i < 20; ++i) {
    CHECK(finish_trainctl(scratch.path() + "/" + std::to_string(i), pids[static_cast<size_t>(i)]).exit_code == 0);
  }
  const std::vector<int> runs = list_runs(scratch.path() + "/logs");
  CHECK(runs.size() == 20);
  for (const int run : runs) CHECK(state_of(RunDirectory(scratch.path() + "/logs", run)) == RunState::done);
}
