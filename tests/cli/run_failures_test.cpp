// trainctl run: ranks that are killed, hang or skip a collective, and launchers that are stopped or killed.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "launcher/run_directory.h"
#include "tests/cli/command.h"
#include "tests/gpu/gpus.h"
#include "tests/jobs/jobs.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

/// An endless run of four ranks that have all trained a step.
struct EndlessRun {
  Scratch scratch;
  int launcher;
  std::vector<int> workers;

  explicit EndlessRun(const std::vector<std::string>& more = {}) {
    small_job(scratch.path());
    std::vector<std::string> words = {"run",
                                      "job.yaml",
                                      "launch.ranks=4",
                                      "parallel.mode=data_parallel",
                                      "train.epochs=100000000",
                                      "launch.grace=5s"};
    words.insert(words.end(), more.begin(), more.end());
    launcher = start_trainctl(scratch.path(), words);
    for (int rank = 0; rank < 4; ++rank) {
      const std::string out = scratch.path() + "/log_output/1/rank." + std::to_string(rank) + "/stdout";
      REQUIRE(eventually([&] { return contains(slurp(out), "step: 2,"); }));
    }
    workers = workers_of(launcher, 4);
    for (const int worker : workers) REQUIRE(worker > 0);
  }
  CommandResult finish() const { return finish_trainctl(scratch.path(), launcher); }
  bool nobody_is_left() const {
    return eventually([&] { return std::none_of(workers.begin(), workers.end(), [](int pid) { return alive(pid); }); });
  }
};

}  // namespace

TEST_CASE("a rank survives a peer's closed connection, so that it can name the lost peer") {
  const EndlessRun run;
  std::ifstream status("/proc/" + std::to_string(run.workers[1]) + "/status");
  std::string line;
  while (std::getline(status, line) && !line.starts_with("SigIgn:")) {
  }
  REQUIRE(line.starts_with("SigIgn:"));
  CHECK((std::stoull(line.substr(7), nullptr, 16) >> (SIGPIPE - 1) & 1) == 1);
  kill(run.launcher, SIGTERM);
  CHECK(run.finish().exit_code == 128 + SIGTERM);
}

TEST_CASE("a rank that is killed is named, all others stop, exit code 5") {
  const EndlessRun run;
  kill(run.workers[2], SIGKILL);
  const CommandResult result = run.finish();
  CHECK(result.exit_code == kExitRankFailed);
  CHECK(contains(result.err, "rank 2 ("));
  CHECK(contains(result.err, "was killed by SIGKILL at step "));
  CHECK(run.nobody_is_left());
  CHECK(state_of(RunDirectory(run.scratch.path() + "/log_output", 1)) == RunState::failed);
  const auto json = nlohmann::json::parse(slurp(run.scratch.path() + "/log_output/1/error.json"), nullptr, false);
  REQUIRE(json.is_object());
  CHECK(json["first_cause"]["rank"] == 2);
}

TEST_CASE("a rank that makes no progress is named as the one that stopped responding") {
  // The other ranks must not stand still for as long as this timeout: a busy machine delays any process for a second or
  // two.
  const EndlessRun run({"launch.timeout=10s", "launch.grace=1s"});
  kill(run.workers[1], SIGSTOP);
  const CommandResult result = run.finish();
  INFO(result.err);
  CHECK(result.exit_code == kExitRankFailed);
  CHECK(contains(result.err, "rank 1 ("));
  // Either the peer of the rank or the launcher reports it first.
  CHECK((contains(result.err, "stopped responding at step ") || contains(result.err, "has made no progress for ")));
  CHECK(run.nobody_is_left());
}

namespace {

void check_left_out_collective(const std::string& device, const std::string& timeout) {
  const Scratch scratch;
  setenv("TRAINCTL_TEST_FAULT", "1:3:skip", 1);
  const CommandResult result =
      trainctl_command(scratch.path(), {"run", job_file("bench_mlp"), "launch.ranks=2", "parallel.mode=data_parallel",
                                        "launch.timeout=" + timeout, "launch.log_dir=" + scratch.path() + "/log_output",
                                        "launch.device=" + device});
  unsetenv("TRAINCTL_TEST_FAULT");
  INFO(result.err);
  CHECK(result.exit_code == kExitRankFailed);
  CHECK(contains(result.err, "rank 1"));
  CHECK(contains(result.err, "step 3"));
  CHECK(contains(result.err, "all_reduce"));
  CHECK(contains(result.out, "step: 2, loss is"));
  CHECK_FALSE(contains(result.out, "step: 3, loss is"));
}

}  // namespace

TEST_CASE("a rank that skips a collective is named on CPUs") { check_left_out_collective("cpu", "60s"); }

TEST_CASE("a rank that skips a collective is named on GPUs") {
  if (have_gpus(2)) check_left_out_collective("cuda", "3s");
}

TEST_CASE("Ctrl-C ends a run with 130") {
  const EndlessRun run;
  kill(run.launcher, SIGINT);
  const CommandResult result = run.finish();
  CHECK(result.exit_code == 130);
  CHECK(contains(result.out, "stopped by SIGINT"));
  CHECK(run.nobody_is_left());
}

TEST_CASE("a launcher that is killed takes its ranks with it") {
  const EndlessRun run;
  kill(run.launcher, SIGKILL);
  CHECK(run.finish().exit_code == 128 + SIGKILL);
  CHECK(run.nobody_is_left());
  CHECK(eventually([&] { return state_of(RunDirectory(run.scratch.path() + "/log_output", 1)) == RunState::lost; }));
}
