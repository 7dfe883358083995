// Runs whose loss becomes nan or infinite.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/error.h"
#include "launcher/run_directory.h"
#include "tests/cli/command.h"
#include "tests/jobs/jobs.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

struct Diverging {
  Scratch scratch;
  CommandResult result;
  std::vector<nlohmann::json> metrics;  ///< its lines, all of them JSON

  Diverging(const std::string& job, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"run",
                                      job_file(job),
                                      "launch.log_dir=" + scratch.path() + "/log_output",
                                      "launch.device=cpu",
                                      "optimizer.learning_rate=1e38",
                                      "train.epochs=20"};
    words.insert(words.end(), more.begin(), more.end());
    result = trainctl_command(scratch.path(), words);
    std::istringstream lines(slurp(scratch.path() + "/log_output/1/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      metrics.push_back(nlohmann::json::parse(line, nullptr, false));
      CHECK(metrics.back().is_object());
    }
  }
  /// The first step in the metrics whose loss is marked; 0: none.
  int marked() const {
    for (const nlohmann::json& line : metrics)
      if (line.contains("run_step") && line.contains("not_finite")) return line["run_step"];
    return 0;
  }
};

void check_that_it_stops(const std::string& job, const std::vector<std::string>& more) {
  CAPTURE(job);
  const Diverging run(job, more);
  INFO(run.result.out << run.result.err);
  CHECK(run.result.exit_code == kExitRankFailed);
  CHECK(run.marked() > 1);
  CHECK(run.metrics.back()["run_step"] == run.marked());
  CHECK(run.metrics.back()["loss"].is_null());
  const std::string what = "loss is " + run.metrics.back()["not_finite"].get<std::string>() + " since step " +
                           std::to_string(run.marked()) + " (epoch ";
  CHECK(count(run.result.out + run.result.err, " since step ") == 1);
  CHECK(run.result.err.starts_with(what));
  CHECK(count(run.result.err, "\n") == 1);
  const nlohmann::json error = nlohmann::json::parse(slurp(run.scratch.path() + "/log_output/1/error.json"), nullptr, false);
  CHECK(contains(error["first_cause"]["message"], what));
  std::string all_stderr;
  const RunDirectory directory(run.scratch.path() + "/log_output", 1);
  for (const int rank : directory.ranks()) all_stderr += slurp(directory.rank_file(rank, "stderr"));
  CHECK(count(all_stderr, " since step ") == 1);
}

}  // namespace

TEST_CASE("a run whose loss becomes nan or infinite ends with 5 and says so once, under any plan") {
  check_that_it_stops("small", {});
  check_that_it_stops("small", {"launch.ranks=4", "parallel.mode=data_parallel"});
  check_that_it_stops("small", {"launch.ranks=4", "parallel.mode=data_parallel", "launch.max_restarts=2"});
  check_that_it_stops("small", {"launch.ranks=4", "parallel.mode=data_parallel", "train.sink_steps=5"});
  check_that_it_stops("small", {"launch.ranks=2", "parallel.mode=data_parallel", "launch.comm=gloo"});
  check_that_it_stops(
      "small", {"launch.ranks=4", "parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.micro_batches=4"});
  check_that_it_stops("small", {"launch.ranks=3", "parallel.mode=semi_auto_parallel", "parallel.stages=3",
                                "parallel.micro_batches=2", "train.sink_steps=3", "train.log_every=1000"});
  check_that_it_stops("hybrid_tensor_parallel", {"loss=mse"});
  check_that_it_stops("hybrid_groups", {});
  check_that_it_stops("small", {"launch.ranks=2", "parallel.mode=hybrid_parallel"});
}

TEST_CASE("with on_nan: warn a run continues to its end, after one line about the loss") {
  const Diverging run("small", {"launch.ranks=2", "parallel.mode=data_parallel", "train.on_nan=warn", "train.steps=12",
                                "train.log_every=5"});
  INFO(run.result.out << run.result.err);
  CHECK(run.result.exit_code == kExitDone);
  CHECK(run.result.err.empty());
  CHECK(count(run.result.out, " since step ") == 1);
  CHECK(contains(run.result.out, "; continuing because train.on_nan is warn"));
  CHECK(run.marked() > 1);
  CHECK(run.marked() < 5);  // not one of every 5 steps, but logged
  CHECK(run.metrics.back()["epoch_end"] == 2);
  CHECK(run.metrics.back()["not_finite"].is_string());
  const nlohmann::json outcome = nlohmann::json::parse(slurp(run.scratch.path() + "/log_output/1/outcome.json"), nullptr, false);
  CHECK(outcome["loss"].is_null());
  CHECK(outcome["not_finite"].is_string());
}

TEST_CASE("a loss of nan is reported even if the lines of the first rank are not shown") {
  const Scratch scratch;
  small_job(scratch.path());
  const CommandResult result =
      trainctl_command(scratch.path(), {"run", "job.yaml", "launch.ranks=2", "parallel.mode=data_parallel",
                                        "train.on_nan=warn", "optimizer.learning_rate=1e38", "--show", "1"});
  CHECK(result.exit_code == kExitDone);
  CHECK(count(result.out, " since step ") == 1);
}
