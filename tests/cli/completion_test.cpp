// What completion offers, and the errors for invalid command lines.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
using Words = std::vector<std::string>;

namespace {

Words offered(const Scratch& scratch, const Words& words) {
  Words arguments = {"complete", "--"};
  arguments.insert(arguments.end(), words.begin(), words.end());
  std::istringstream text(trainctl_command(scratch.path(), arguments).out);
  Words found;
  for (std::string line; std::getline(text, line);) found.push_back(line.substr(0, line.find('\t')));
  return found;
}

bool has(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string complaint(const Scratch& scratch, const Words& words) {
  const CommandResult result = trainctl_command(scratch.path(), words);
  CHECK(result.exit_code == kExitSpec);
  CHECK(result.out.empty());
  CHECK(contains(result.err, "--help has examples"));
  return result.err;
}

}  // namespace

TEST_CASE("completion knows commands, options and the words of arguments") {
  const Scratch scratch;
  const Words commands = offered(scratch, {""});
  for (const char* command : {"run", "ps", "stop", "attach", "logs", "completion"}) CHECK(has(commands, command));
  CHECK_FALSE(has(commands, "worker"));
  CHECK(offered(scratch, {"sh"}) == Words{"show"});
  CHECK(has(offered(scratch, {"run", "--"}), "--detach"));
  CHECK(offered(scratch, {"stop", "--no"}) == Words{"--now"});
  CHECK(has(offered(scratch, {"show", ""}), "program"));
  CHECK(offered(scratch, {"show", "--pa"}) == Words{"--passes"});
  CHECK(offered(scratch, {"show", "program", "--after", "fuse_m"}) == Words{"fuse_matmul"});
  CHECK(has(offered(scratch, {"show", "program", "--after", ""}), "order_streams"));
  CHECK(offered(scratch, {"completion", "b"}) == Words{"bash"});
  CHECK(offered(scratch, {"init", "com"}) == Words{"command"});
  CHECK(offered(scratch, {"dance", ""}).empty());
}

TEST_CASE("completion knows job files, and the fields that may be set in them") {
  const Scratch scratch;
  small_job(scratch.path());
  std::filesystem::create_directory(scratch.path() + "/jobs");
  std::ofstream(scratch.path() + "/jobs/mine.yaml") << "command: [true]\n";
  std::ofstream(scratch.path() + "/notes.txt") << "x";
  CHECK(offered(scratch, {"run", ""}) == Words{"job.yaml", "jobs/"});
  CHECK(offered(scratch, {"run", "jobs/"}) == Words{"jobs/mine.yaml"});
  CHECK(offered(scratch, {"run", "job.yaml", "launch.bi"}) == Words{"launch.bind="});
  CHECK(offered(scratch, {"run", "job.yaml", "launch.bind="}) ==
        Words{"launch.bind=core", "launch.bind=none", "launch.bind=numa"});
  CHECK(offered(scratch, {"run", "job.yaml", "dataset.shuf"}) == Words{"dataset.shuffle="});
  CHECK(has(offered(scratch, {"run", "--detach", "job.yaml", "train.epochs=2", "parallel.strategies."}),
            "parallel.strategies.fc1="));
  CHECK(has(offered(scratch, {"show", "graph", "job.yaml", "par"}), "parallel.mode="));
  CHECK(offered(scratch, {"run", "jobs/mine.yaml", "parallel."}).empty());
  CHECK(has(offered(scratch, {"run", "jobs/mine.yaml", "wor"}), "working_dir="));
}

TEST_CASE("completion knows the numbers of runs") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/job.yaml") << "command: [true]\n";
  for (int i = 0; i < 2; ++i) REQUIRE(trainctl_command(scratch.path(), {"run", "job.yaml"}).exit_code == 0);
  REQUIRE(trainctl_command(scratch.path(), {"run", "job.yaml", "launch.log_dir=other"}).exit_code == 0);
  CHECK(offered(scratch, {"logs", ""}) == Words{"1", "2"});
  CHECK(offered(scratch, {"logs", "--log-dir", "other", ""}) == Words{"1"});
  CHECK(offered(scratch, {"stop", ""}).empty());
}

TEST_CASE("bash completes with the script that it is given") {
  const Scratch scratch;
  small_job(scratch.path());
  std::ofstream(scratch.path() + "/try.sh") << R"(PATH=$(dirname ")" TRAINCTL_BINARY R"("):$PATH
source <(trainctl completion bash)
compopt() { :; }
complete_line() {
  COMP_LINE=$1 COMP_POINT=${#1} COMPREPLY=()
  _trainctl
  echo "${COMPREPLY[*]}"
}
complete_line "trainctl sh"
complete_line "trainctl run job.yaml launch.bind=n"
complete_line "trainctl run job.yaml launch.bi"
)";
  const std::string command = "cd " + scratch.path() + " && LC_ALL=C bash try.sh > out 2>&1";
  REQUIRE(std::system(command.c_str()) == 0);
  std::ifstream out(scratch.path() + "/out");
  Words lines;
  for (std::string line; std::getline(out, line);) lines.push_back(line);
  CHECK(lines == Words{"show", "none numa", "launch.bind="});
}

TEST_CASE("errors in a command line are reported in our own words") {
  const Scratch scratch;
  small_job(scratch.path());
  CHECK(contains(complaint(scratch, {}), "trainctl: a command is missing: run, plan"));
  CHECK(contains(complaint(scratch, {"run"}), "trainctl run: JOB.yaml is missing"));
  CHECK(contains(complaint(scratch, {"show"}), "trainctl show: what is missing: graph | plan | program | weights"));
  CHECK(contains(complaint(scratch, {"show", "grap", "job.yaml"}),
                 "nothing called 'grap' to show; did you mean 'graph'?"));
  CHECK(contains(complaint(scratch, {"run", "job.yaml", "--detatch"}),
                 "unknown option '--detatch'; did you mean '--detach'?"));
  CHECK(contains(complaint(scratch, {"run", "job.yaml", "--launch.ranks=4"}), "without dashes: launch.ranks=4"));
  CHECK(contains(complaint(scratch, {"show", "graph", "job.yaml", "--rank", "x"}), "--rank: 'x' is no number"));
  CHECK(contains(complaint(scratch, {"stop", "99999999999999999999"}), "'99999999999999999999' is no number"));
  CHECK(contains(complaint(scratch, {"logs", "1", "--tail", "x"}), "--tail: 'x' is no number"));
  CHECK(contains(complaint(scratch, {"logs", "1", "--tail"}), "--tail lacks its value"));
  CHECK(contains(complaint(scratch, {"ps", "3"}), "'3' is one word too many"));
}
