// trainctl logs, on runs of small programs.
#include <doctest/doctest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/error.h"
#include "launcher/run_directory.h"
#include "tests/cli/command.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

/// Runs a shell script once per rank, to its end.
CommandResult run_script(const std::string& directory, const std::string& script, const std::string& launch) {
  std::ofstream(directory + "/job.yaml") << "name: script\ncommand: [sh, script.sh]\nlaunch: {" << launch << "}\n";
  std::ofstream(directory + "/script.sh") << script;
  return trainctl_command(directory, {"run", "job.yaml"});
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<nlohmann::json> objects_of(const std::string& text) {
  std::vector<nlohmann::json> objects;
  for (const std::string& line : lines_of(text)) objects.push_back(nlohmann::json::parse(line, nullptr, false));
  return objects;
}

/// The ranks write their numbered lines in turn, rank 0 first, each after the preceding line is in the log. A line's
/// time is when the launcher read it, and a launcher that was held up reads lines of several ranks and streams at once.
const char* const kInTurn = R"(
for i in 1 2 3; do
  while [ $RANK -gt 0 ] && [ ! -e step.$((RANK - 1)).$i ]; do sleep 0.01; done
  while [ $i -gt 1 ] && [ ! -e step.$((WORLD_SIZE - 1)).$((i - 1)) ]; do sleep 0.01; done
  echo "line $i"
  until grep -qs "line $i" "log_output/1/rank.$RANK/stdout"; do sleep 0.01; done
  : > step.$RANK.$i
done
echo "error of $RANK" >&2
)";

}  // namespace

TEST_CASE("logs are merged by time, each rank with its prefix") {
  const Scratch scratch;
  REQUIRE(run_script(scratch.path(), kInTurn, "ranks: 2").exit_code == kExitDone);
  const auto logs = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "logs");
    return trainctl_command(scratch.path(), words);
  };
  const std::string all = logs({"1"}).out;
  CHECK(all.starts_with("rank 0 | line 1\nrank 1 | line 1\nrank 0 | line 2\nrank 1 | line 2\nrank 0 | line 3\n"));
  CHECK(contains(all, "rank 0 err | error of 0\n"));
  CHECK(lines_of(all).size() == 8);
  for (const char* name : {"latest", "log_output/1", "./log_output/1/"}) CHECK(logs({name}).out == all);
  CHECK(logs({"-f"}).out == all);
  CHECK(logs({"--tail", "100"}).out == all);
  CHECK(logs({"1", "--since", "1h"}).out == all);
  CHECK(logs({"1", "--since", "2001-01-01"}).out == all);
  CHECK(logs({"1", "--since", "0s"}).out.empty());
  CHECK(logs({"1", "--rank", "1", "--grep", "line [12]"}).out == "rank 1 | line 1\nrank 1 | line 2\n");
  CHECK(logs({"1", "--rank", "1", "--tail", "2"}).out == "rank 1 | line 3\nrank 1 err | error of 1\n");
  CHECK(logs({"1", "--tail", "1", "--grep", "line"}).out == "rank 0 | line 3\nrank 1 | line 3\n");
  CHECK(logs({"1", "--tail", "0"}).out.empty());
  CHECK(logs({"--no-prefix", "--rank", "0", "--grep", "err"}).out == "error of 0\n");
}

TEST_CASE("in JSON a line has its time, rank, stream and text, and a run its state") {
  const Scratch scratch;
  REQUIRE(
      run_script(scratch.path(),
                 "printf '\"a\"\\t\\377\\n'; until [ -s log_output/1/rank.0/stdout ]; do sleep 0.01; done; echo b >&2",
                 "ranks: 1")
          .exit_code == kExitDone);
  const auto lines = objects_of(trainctl_command(scratch.path(), {"logs", "1", "--json"}).out);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["text"] == "\"a\"\t\xef\xbf\xbd");
  CHECK(lines[0]["rank"] == 0);
  CHECK(lines[0]["stream"] == "stdout");
  CHECK(lines[0]["time"].get<std::string>().size() == std::string("2026-01-31T14:30:05.123456789Z").size());
  CHECK(lines[1]["stream"] == "stderr");
  const auto runs = objects_of(trainctl_command(scratch.path(), {"logs", "--json"}).out);
  REQUIRE(runs.size() == 1);
  CHECK(runs[0]["run"] == 1);
  CHECK(runs[0]["state"] == "done");
  CHECK(runs[0]["ranks"] == 1);
}

TEST_CASE("an unknown run or rank is the user's error, and the existing ones are named") {
  const Scratch scratch;
  CommandResult result = trainctl_command(scratch.path(), {"logs", "-f"});
  CHECK(result.exit_code == kExitSpec);
  CHECK(contains(result.err, "no runs in log_output"));
  for (const int run : {1, 2, 3, 7})
    fs::create_directories(scratch.path() + "/log_output/" + std::to_string(run) + "/rank.0");
  for (const char* name : {"9", "x", "1x", "-0"}) {
    result = trainctl_command(scratch.path(), {"logs", "--tail", "1", "--", name});
    CHECK(result.exit_code == kExitSpec);
    CHECK(contains(result.err, std::string("no run ") + name + " in log_output"));
    CHECK(contains(result.err, "available runs: 1-3,7"));
  }
  result = trainctl_command(scratch.path(), {"logs", "1", "--rank", "0-3"});
  CHECK(result.exit_code == kExitSpec);
  CHECK(contains(result.err, "run 1 has no rank 1"));
  for (const auto& words :
       std::vector<std::vector<std::string>>{{"--rank", "x"}, {"--grep", "("}, {"--since", "noon"}}) {
    result = trainctl_command(scratch.path(), {"logs", "1", words[0], words[1]});
    CHECK(result.exit_code == kExitSpec);
    CHECK(contains(result.err, words[0]));
  }
}

TEST_CASE("rotated logs are read as one, and only the job's number of files is kept") {
  const Scratch scratch;
  REQUIRE(run_script(scratch.path(), "seq 1 20000", "ranks: 2, log_size: 10KB, log_files: 3").exit_code == kExitDone);
  const RunDirectory run(scratch.path() + "/log_output", 1);
  CHECK_FALSE(fs::exists(run.rank_file(0, "stdout.1")));
  CHECK(fs::exists(run.rank_file(0, "stdout")));
  const auto lines = lines_of(trainctl_command(scratch.path(), {"logs", "1", "--rank", "0", "--no-prefix"}).out);
  REQUIRE(lines.size() > 3000);  // 20 to 30 kB of them
  for (size_t i = 0; i < lines.size(); ++i) CHECK(lines[i] == std::to_string(20001 - lines.size() + i));
  const auto tail = lines_of(trainctl_command(scratch.path(), {"logs", "1", "--rank", "1", "--tail", "3000"}).out);
  REQUIRE(tail.size() == 3000);
  CHECK(tail.front() == "rank 1 | 17001");
  CHECK(tail.back() == "rank 1 | 20000");
}

TEST_CASE("restarts are shown where they happened") {
  const Scratch scratch;
  CHECK(run_script(scratch.path(),
                   "echo \"attempt $TORCHELASTIC_RESTART_COUNT\"; printf cut; exit $((1 - TORCHELASTIC_RESTART_COUNT))",
                   "ranks: 1, max_restarts: 1")
            .exit_code == kExitDone);
  CHECK(trainctl_command(scratch.path(), {"logs", "1"}).out ==
        "rank 0 | attempt 0\nrank 0 | cut\nrank 0 | --- restart 1 ---\nrank 0 | attempt 1\nrank 0 | cut\n");
  const auto lines = objects_of(trainctl_command(scratch.path(), {"logs", "1", "--json"}).out);
  REQUIRE(lines.size() == 4);
  CHECK_FALSE(lines[1].contains("restart"));
  CHECK(lines[2]["restart"] == 1);
}

TEST_CASE("the last state of a progress bar is shown, and a pattern matches lines of a megabyte") {
  const Scratch scratch;
  const char* script =
      "printf 'a 10%%\\ra 50%%\\ra 100%%\\n'; printf 'dos\\r\\n'; head -c 1000000 /dev/zero | tr '\\0' x; echo end";
  REQUIRE(run_script(scratch.path(), script, "ranks: 1").exit_code == kExitDone);
  const auto lines = lines_of(trainctl_command(scratch.path(), {"logs", "1", "--no-prefix"}).out);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0] == "a 100%");
  CHECK(lines[1] == "dos");
  CHECK(lines[2].size() == 1000003);
  CHECK(trainctl_command(scratch.path(), {"logs", "1", "--grep", "x.*x.*end$"}).out.size() ==
        1000004 + std::string("rank 0 | ").size());
}

TEST_CASE("--follow shows lines while the run continues, and ends with it") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/job.yaml") << "name: slow\ncommand: [sh, script.sh]\nlaunch: {ranks: 2}\n";
  std::ofstream(scratch.path() + "/script.sh") << "echo begun; while [ ! -e go ]; do sleep 0.01; done; echo ended\n";
  const std::string own = scratch.path() + "/own";
  fs::create_directory(own);
  const int run = start_trainctl(scratch.path(), {"run", "job.yaml"});
  REQUIRE(eventually([&] { return contains(slurp(scratch.path() + "/log_output/1/rank.1/stdout"), "begun"); }));
  const int follower = start_trainctl(own, {"logs", "--log-dir", "../log_output", "--follow", "--rank", "1"});
  CHECK(eventually([&] { return slurp(own + "/out") == "rank 1 | begun\n"; }));
  CHECK(alive(follower));
  std::ofstream(scratch.path() + "/go") << "x";
  const CommandResult followed = finish_trainctl(own, follower);
  CHECK(followed.exit_code == kExitDone);
  CHECK(followed.out == "rank 1 | begun\nrank 1 | ended\n");
  CHECK(finish_trainctl(scratch.path(), run).exit_code == kExitDone);
}

TEST_CASE("a bundle is a tar of the run") {
  const Scratch scratch;
  REQUIRE(run_script(scratch.path(), "echo hello; exit 3", "ranks: 1").exit_code == kExitRankFailed);
  const CommandResult result = trainctl_command(scratch.path(), {"logs", "--bundle", "b.tar.gz"});
  CHECK(result.exit_code == kExitDone);
  CHECK(contains(result.out, "run 1: written to b.tar.gz"));
  REQUIRE(std::system(("cd " + scratch.path() + " && tar xzf b.tar.gz").c_str()) == 0);
  for (const char* name :
       {"about.txt", "job.yaml", "plan.json", "outcome.json", "error.json", "rank.0/stdout", "rank.0/times/stdout"}) {
    CAPTURE(name);
    CHECK(fs::exists(scratch.path() + "/run-1/" + name));
  }
}

TEST_CASE("a reader that does not read a run's output delays no rank, and skipped lines are reported") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/job.yaml")
      << "name: flood\ncommand: [sh, -c, 'seq 1 5000000']\nlaunch: {ranks: 2}\n";
  const std::string command =
      "cd " + scratch.path() +
      " && " TRAINCTL_BINARY
      " run job.yaml | (until [ -e go ] || [ ! -e job.yaml ]; do sleep 0.02; done; cat > read) &";
  REQUIRE(std::system(command.c_str()) == 0);
  const RunDirectory run(scratch.path() + "/log_output", 1);
  CHECK(eventually([&] { return fs::exists(run.file("outcome.json")); }));
  CHECK(slurp(run.rank_file(1, "stdout")).ends_with("\n4999999\n5000000\n"));
  std::ofstream(scratch.path() + "/go") << "x";
  CHECK(eventually([&] { return contains(slurp(scratch.path() + "/read"), "done after"); }));
  const std::string read = slurp(scratch.path() + "/read");
  CHECK(contains(read, "\n1\n2\n3\n"));
  CHECK(contains(read, " lines omitted because this output was read too slowly"));
  CHECK(read.size() < 35'000'000);
}
