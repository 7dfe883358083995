// Tests of run folders and of error.json.
#include "launcher/run_directory.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "engine/base/error.h"
#include "launcher/rank_error.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
namespace fs = std::filesystem;

TEST_CASE("runs count 1, 2, 3 and never reuse a number") {
  const Scratch scratch;
  CHECK(RunDirectory::create(scratch.path(), 2).run() == 1);
  CHECK(RunDirectory::create(scratch.path(), 2).run() == 2);
  fs::remove_all(scratch.path() + "/1");
  CHECK(RunDirectory::create(scratch.path(), 2).run() == 3);
  CHECK(list_runs(scratch.path()) == std::vector<int>{2, 3});
  CHECK(RunDirectory(scratch.path(), 3).ranks() == std::vector<int>{0, 1});
}

TEST_CASE("the folder of a run that fails before its ranks start is deleted, and its number is free again") {
  const Scratch scratch;
  {
    const RunDirectory directory = RunDirectory::create(scratch.path(), 2);
    const NewRunFolder folder(directory);
    directory.write("job.yaml", "name: early\n");
  }
  CHECK(list_runs(scratch.path()).empty());
  {
    const RunDirectory directory = RunDirectory::create(scratch.path(), 2);
    NewRunFolder folder(directory);
    folder.keep();
  }
  CHECK(list_runs(scratch.path()) == std::vector<int>{1});
}

TEST_CASE("folders that are not runs are ignored") {
  const Scratch scratch;
  fs::create_directories(scratch.path() + "/notes");
  fs::create_directories(scratch.path() + "/7b");
  std::ofstream(scratch.path() + "/9") << "a file";
  fs::create_directories(scratch.path() + "/4");
  CHECK(RunDirectory::create(scratch.path(), 1).run() == 5);
}

TEST_CASE("20 processes that start at once get 20 folders") {
  const Scratch scratch;
  constexpr int kLaunchers = 20;
  std::vector<pid_t> pids;
  for (int i = 0; i < kLaunchers; ++i) {
    const pid_t pid = fork();
    if (pid == 0) {
      const int run = RunDirectory::create(scratch.path() + "/deep/logs", 2).run();
      _exit(run);
    }
    pids.push_back(pid);
  }
  std::set<int> runs;
  for (const pid_t pid : pids) {
    int status = 0;
    waitpid(pid, &status, 0);
    runs.insert(WEXITSTATUS(status));
  }
  CHECK(runs.size() == kLaunchers);
  CHECK(*runs.begin() == 1);
  CHECK(*runs.rbegin() == kLaunchers);
}

TEST_CASE("the error for a log folder that cannot be created names it and the field to set") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/file") << "x";
  try {
    RunDirectory::create(scratch.path() + "/file/logs", 1);
    FAIL("a folder below a file");
  } catch (const EnvError& error) {
    CHECK(std::string(error.what()).find("/file/logs") != std::string::npos);
    CHECK(std::string(error.what()).find("launch.log_dir") != std::string::npos);
  }
}

TEST_CASE("error.json is read back as it was written") {
  const Scratch scratch;
  CHECK_FALSE(read_rank_error(scratch.path()).has_value());
  write_rank_error(scratch.path(), {.kind = ErrorKind::comm,
                                    .what = "rank 1 has \"not\" arrived\n",
                                    .instruction = "all_reduce grad.0",
                                    .instruction_index = 881,
                                    .step = 412,
                                    .missing = {1, 5},
                                    .time = 12.25,
                                    .stack = ""});
  const auto error = read_rank_error(scratch.path());
  REQUIRE(error.has_value());
  CHECK(error->kind == ErrorKind::comm);
  CHECK(error->what == "rank 1 has \"not\" arrived\n");
  CHECK(error->instruction == "all_reduce grad.0");
  CHECK(error->instruction_index == 881);
  CHECK(error->step == 412);
  CHECK(error->missing == std::vector<int>{1, 5});
  CHECK(error->time == doctest::Approx(12.25));
}

TEST_CASE("a broken error.json is ignored") {
  CHECK_FALSE(parse_rank_error("").has_value());
  CHECK_FALSE(parse_rank_error("{\"kind\": \"comm\"").has_value());
  CHECK_FALSE(parse_rank_error("[1, 2]").has_value());
  CHECK_FALSE(parse_rank_error("{\"kind\": \"weather\"}").has_value());
  CHECK_FALSE(parse_rank_error("{\"kind\": \"env\", \"what\": 7}").has_value());
  CHECK_FALSE(parse_rank_error("{\"kind\": 3}").has_value());
}

// A regression found by fuzzing: a step outside the range of integers was converted.
TEST_CASE("numbers in error.json that do not fit their type are ignored") {
  const auto error = parse_rank_error(R"({"kind": "comm", "step": 3e33, "missing": [1, 1e99, "x", 5000000000, 2]})");
  REQUIRE(error.has_value());
  CHECK(error->step == 0);
  CHECK(error->missing == std::vector<int>{1, 2});
}

TEST_CASE("a run is running while its lock is held, then its outcome gives the state, or it is lost") {
  const Scratch scratch;
  const RunDirectory run = RunDirectory::create(scratch.path(), 1);
  {
    const RunLock lock(run);
    CHECK(state_of(run) == RunState::running);
  }
  CHECK(state_of(run) == RunState::lost);
  run.write("outcome.json", "{\"exit_code\": 5}");
  CHECK(state_of(run) == RunState::failed);
  run.write("outcome.json", "{\"exit_code\": 143}");
  CHECK(state_of(run) == RunState::stopped);
  run.write("outcome.json", "{\"exit_code\": 0}");
  CHECK(state_of(run) == RunState::done);
  run.write("outcome.json", "{\"exit_code\": \"?\"}");
  CHECK(state_of(run) == RunState::lost);
}

TEST_CASE("outcome.json is written in the space that was reserved for it, briefly if it needs more") {
  const Scratch scratch;
  const RunDirectory run = RunDirectory::create(scratch.path(), 1);
  run.reserve_outcome();
  CHECK(state_of(run) == RunState::lost);
  const pid_t pid = fork();
  if (pid == 0) {  // no file of it grows beyond what is reserved
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1024, 1024};
    setrlimit(RLIMIT_FSIZE, &limit);
    run.write_outcome(R"({"exit_code": 0, "restarts": ")" + std::string(2000, 'x') + "\"}", R"({"exit_code": 0})");
    _exit(0);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  CHECK(status == 0);
  CHECK(state_of(run) == RunState::done);
  CHECK(fs::file_size(run.file("outcome.json")) == 16);
  CHECK_FALSE(fs::exists(run.file("outcome.json.reserved")));
}

TEST_CASE("outcome.json is written whole if there is room, reserved or not") {
  const Scratch scratch;
  for (const bool reserved : {true, false}) {
    const RunDirectory run = RunDirectory::create(scratch.path(), 1);
    if (reserved) run.reserve_outcome();
    const std::string text = R"({"exit_code": 5, "restarts": ")" + std::string(2000, 'x') + "\"}";
    run.write_outcome(text, R"({"exit_code": 5})");
    CHECK(state_of(run) == RunState::failed);
    CHECK(fs::file_size(run.file("outcome.json")) == text.size());
  }
}
