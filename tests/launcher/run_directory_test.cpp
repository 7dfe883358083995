// Run folders, error.json and log pipes: the launcher's files.
#include "launcher/run_directory.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "engine/base/error.h"
#include "launcher/log_pipe.h"
#include "launcher/log_reader.h"
#include "launcher/rank_error.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
namespace fs = std::filesystem;

TEST_CASE("runs count 1, 2, 3 and never take a number again") {
  const Scratch scratch;
  CHECK(RunDirectory::create(scratch.path(), 2).run() == 1);
  CHECK(RunDirectory::create(scratch.path(), 2).run() == 2);
  fs::remove_all(scratch.path() + "/1");
  CHECK(RunDirectory::create(scratch.path(), 2).run() == 3);
  CHECK(list_runs(scratch.path()) == std::vector<int>{2, 3});
  CHECK(RunDirectory(scratch.path(), 3).ranks() == std::vector<int>{0, 1});
}

TEST_CASE("folders that are no runs are passed over") {
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

TEST_CASE("a log folder that cannot be made says which and what to set") {
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

TEST_CASE("error.json comes back as it was written") {
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

TEST_CASE("an error.json that is broken is as good as none") {
  CHECK_FALSE(parse_rank_error("").has_value());
  CHECK_FALSE(parse_rank_error("{\"kind\": \"comm\"").has_value());
  CHECK_FALSE(parse_rank_error("[1, 2]").has_value());
  CHECK_FALSE(parse_rank_error("{\"kind\": \"weather\"}").has_value());
  CHECK_FALSE(parse_rank_error("{\"kind\": \"env\", \"what\": 7}").has_value());
  CHECK_FALSE(parse_rank_error("{\"kind\": 3}").has_value());
}

// Found by fuzzing: a step that no integer holds was converted all the same.
TEST_CASE("numbers of an error.json that do not fit are left out") {
  const auto error = parse_rank_error(R"({"kind": "comm", "step": 3e33, "missing": [1, 1e99, "x", 5000000000, 2]})");
  REQUIRE(error.has_value());
  CHECK(error->step == 0);
  CHECK(error->missing == std::vector<int>{1, 2});
}

TEST_CASE("a log pipe writes every byte and hands out whole lines") {
  const Scratch scratch;
  std::vector<std::string> lines;
  LogPipe pipe(scratch.path() + "/out", [&](std::string_view line) { lines.emplace_back(line); });
  const auto put = [&](std::string_view text) { REQUIRE(write(pipe.write_end(), text.data(), text.size()) > 0); };
  CHECK(pipe.drain() == 0);
  put("epoch: 1 st");
  CHECK(pipe.drain() == 11);
  CHECK(lines.empty());
  put("ep: 2\n\nnext\nrest");
  pipe.drain();
  CHECK(lines == std::vector<std::string>{"epoch: 1 step: 2", "", "next"});
  pipe.finish();
  CHECK(lines.back() == "rest");
  std::stringstream text;
  text << std::ifstream(scratch.path() + "/out").rdbuf();
  CHECK(text.str() == "epoch: 1 step: 2\n\nnext\nrest");
}

TEST_CASE("a full disk loses lines, says so, and blocks nobody") {
  if (!fs::exists("/dev/full")) return;
  std::vector<std::string> lines;
  LogPipe pipe("/dev/full", [&](std::string_view line) { lines.emplace_back(line); });
  REQUIRE(write(pipe.write_end(), "one\ntwo\n", 8) == 8);
  CHECK(pipe.drain() == 8);
  CHECK(pipe.write_error() == ENOSPC);
  CHECK(pipe.lost_bytes() == 8);
  CHECK(lines == std::vector<std::string>{"one", "two"});
}

TEST_CASE("the tail of a file is its last lines, of a huge line its end") {
  const Scratch scratch;
  const std::string path = scratch.path() + "/log";
  CHECK(tail_of_file(path, 3).empty());
  std::ofstream(path) << "a\nb\nc\nd\n";
  CHECK(tail_of_file(path, 2) == "c\nd");
  CHECK(tail_of_file(path, 9) == "a\nb\nc\nd");
  std::ofstream(path) << std::string(100000, 'x') << "end\n";
  const std::string tail = tail_of_file(path, 2);
  CHECK(tail.size() < 20000);
  CHECK(tail.ends_with("xend"));
}

TEST_CASE("a run is running while its lock is held, then what its outcome says, or lost") {
  const Scratch scratch;
  const RunDirectory run = RunDirectory::create(scratch.path(), 1);
  {
    const RunLock lock(run);
    CHECK(state_of(run) == RunState::running);
  }
  CHECK(state_of(run) == RunState::lost);
  run.write("outcome.json", "{\"exit_code\": 5}");
  CHECK(state_of(run) == RunState::failed);
  run.write("outcome.json", "{\"exit_code\": 0}");
  CHECK(state_of(run) == RunState::done);
}

TEST_CASE("a log is read in whole lines while it grows") {
  const Scratch scratch;
  const std::string path = scratch.path() + "/log";
  std::vector<std::string> lines;
  const auto take = [&](std::string_view line) { lines.emplace_back(line); };
  LogFile log(path);
  CHECK_FALSE(log.read(take));  // it is not there yet
  std::ofstream file(path);
  file << "one\ntw" << std::flush;
  CHECK(log.read(take));
  CHECK(lines == std::vector<std::string>{"one"});
  file << "o\nrest" << std::flush;
  CHECK(log.read(take));
  CHECK_FALSE(log.read(take));
  log.finish(take);
  CHECK(lines == std::vector<std::string>{"one", "two", "rest"});
}

TEST_CASE("a log read from its last lines goes on from there") {
  const Scratch scratch;
  const std::string path = scratch.path() + "/log";
  std::ofstream file(path);
  for (int i = 0; i < 100000; ++i) file << "line " << i << "\n";
  file.flush();
  std::vector<std::string> lines;
  LogFile log(path);
  log.skip_to_last(2);
  log.finish([&](std::string_view line) { lines.emplace_back(line); });
  CHECK(lines == std::vector<std::string>{"line 99998", "line 99999"});
  lines.clear();
  LogFile whole(path);
  whole.skip_to_last(1000000);
  whole.finish([&](std::string_view line) { lines.emplace_back(line); });
  CHECK(lines.size() == 100000);
}

TEST_CASE("lists of ranks have numbers and ranges") {
  CHECK(parse_ranks("3") == std::vector<int>{3});
  CHECK(parse_ranks("7,0,3-5,4") == std::vector<int>{0, 3, 4, 5, 7});
  for (const char* bad : {"", "a", "1,", "1-", "5-3", "1;2", "-1", "1,,2", "0-99999999"}) {
    CHECK_THROWS_AS(parse_ranks(bad), std::invalid_argument);
  }
}
