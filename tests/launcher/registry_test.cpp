// Tests of the registry of runs and its contents.
#include "launcher/registry.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <optional>

#include "engine/base/error.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

/// A registry that only one test uses.
struct OwnRegistry {
  Scratch scratch;
  OwnRegistry() {
    setenv("XDG_RUNTIME_DIR", scratch.path().c_str(), 1);
    setenv("TMPDIR", scratch.path().c_str(), 1);
  }
  OwnRegistry(const OwnRegistry&) = delete;
  OwnRegistry& operator=(const OwnRegistry&) = delete;
  ~OwnRegistry() {
    unsetenv("XDG_RUNTIME_DIR");
    unsetenv("TMPDIR");
  }
  std::string folder() const { return scratch.path() + "/trainctl"; }
  int files() const {
    int count = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder())) ++count;
    return count;
  }
};

RegisteredRun a_run(int number) {
  RegisteredRun run;
  run.run = number;
  run.name = "mine";
  run.log_dir = "/home/me/log_output";
  run.job = "/home/me/job.yaml";
  run.launcher = getpid();
  run.ranks = 4;
  run.started = 100.0 + number;
  return run;
}

}  // namespace

TEST_CASE("a run is listed while its launcher lives, with its status") {
  const OwnRegistry registry;
  CHECK(running_runs().empty());
  std::optional<Registration> first(a_run(2)), second(a_run(1));
  LiveStatus status;
  status.state = "running";
  status.step = 7;
  status.loss = 0.5f;
  status.tokens_per_second = 1500;
  status.share_of_peak = 0.25;
  status.memory_bytes = 325261721;
  status.gpu_memory_bytes = int64_t{41} << 30;
  status.slowest = 3;
  status.pids = {10, 11, 12, 0};
  status.gpus = {1, 0, 3, 2};
  status.ranks = {{"0-2", "training"}, {"3", "waiting in all_reduce grad.0 for 1"}};
  first->publish(status);

  const std::vector<RegisteredRun> runs = running_runs();
  REQUIRE(runs.size() == 2);
  CHECK(runs[0].run == 1);  // the oldest first
  CHECK(runs[1].run == 2);
  CHECK(runs[1].log_dir == "/home/me/log_output");
  CHECK(runs[1].launcher == getpid());
  CHECK(live_status(runs[1]) == status);
  CHECK_FALSE(live_status(runs[0]));
  CHECK(still_runs(runs[1]));

  first.reset();
  CHECK_FALSE(still_runs(runs[1]));
  CHECK(running_runs().size() == 1);
  second.reset();
  CHECK(registry.files() == 0);
}

TEST_CASE("the registry entry of a killed launcher is found and removed") {
  const OwnRegistry registry;
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t pid = fork();
  if (pid == 0) {
    const Registration registration(a_run(1));
    registration.publish({});
    if (write(ends[1], "x", 1) == 1) pause();
    _exit(1);
  }
  char byte = 0;
  REQUIRE(read(ends[0], &byte, 1) == 1);
  CHECK(running_runs().size() == 1);
  CHECK(registry.files() == 2);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  CHECK(running_runs().empty());
  CHECK(registry.files() == 0);
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("a registry folder that other users can enter is not used") {
  const OwnRegistry registry;
  const std::string in_temporary = registry.scratch.path() + "/trainctl-" + std::to_string(getuid());
  { const Registration registration(a_run(1)); }
  struct stat info {};
  REQUIRE(stat(registry.folder().c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  fs::permissions(registry.folder(), fs::perms::all);
  {
    const Registration registration(a_run(1));  // goes to the temporary folder instead
    CHECK(fs::exists(in_temporary));
    CHECK(running_runs().size() == 1);
  }
  fs::permissions(in_temporary, fs::perms::all);
  CHECK_THROWS_AS(Registration(a_run(1)), EnvError);
  CHECK(running_runs().empty());
}

TEST_CASE("a damaged entry is not listed") {
  CHECK_FALSE(parse_live_status("[1]"));
  CHECK_FALSE(parse_live_status(""));
  const auto status =
      parse_live_status(R"({"state": 3, "step": "x", "loss": null, "ranks": [1, ["0", 2], ["0", "a"]]})");
  REQUIRE(status);
  CHECK(status->step == 0);
  CHECK_FALSE(status->loss);
  CHECK(status->ranks.size() == 1);
}

TEST_CASE("ranks in the same state are one group, the largest first") {
  const std::vector<RankGroup> groups = group_ranks({"a", "b", "a", "a", "b", "a"});
  REQUIRE(groups.size() == 2);
  CHECK(groups[0] == RankGroup{"0,2,3,5", "a"});
  CHECK(groups[1] == RankGroup{"1,4", "b"});
  CHECK(format_ranks({0, 1, 2, 5, 7, 8}) == "0-2,5,7,8");
  CHECK(format_ranks({}).empty());
}

TEST_CASE("a status with a loss that is not finite is JSON, and reads back as it was") {
  using Limits = std::numeric_limits<float>;
  LiveStatus status;
  status.seconds_left = 12.5;
  for (const float loss : {Limits::infinity(), -Limits::infinity()}) {
    status.loss = loss;
    CHECK(parse_live_status(to_json(status)) == status);
  }
  status.loss = Limits::quiet_NaN();
  const auto read = parse_live_status(to_json(status));
  REQUIRE(read);
  REQUIRE(read->loss);
  CHECK(std::isnan(*read->loss));
  CHECK(read->seconds_left == 12.5);
}
