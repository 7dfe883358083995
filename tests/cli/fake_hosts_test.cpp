// Hosts that are folders of this machine: launch.ssh is a script that gives each "host" a home of its own, and knows
// names that do not resolve (gone…) and hosts that never answer (frozen…). tests/hosts has real connections.
#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
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

void write_ssh(const Scratch& scratch) {
  std::ofstream(scratch.path() + "/ssh") << "#!/bin/sh\n"
                                            "while [ \"${1#-}\" != \"$1\" ]; do shift; done\n"
                                            "case $1 in\n"
                                            "gone*) echo \"ssh: Could not resolve hostname $1\" >&2; exit 255 ;;\n"
                                            "frozen*) exec sleep 1000 ;;\n"
                                            "evil*) printf '\\033]0;title\\007\\033[2Jno way in\\n' >&2; exit 255 ;;\n"
                                            "esac\n"
                                            "HOME="
                                         << scratch.path()
                                         << "/$1; export HOME; mkdir -p $HOME; shift\n"
                                            "unset XDG_CACHE_HOME; exec sh -c \"$*\"\n";
  fs::permissions(scratch.path() + "/ssh", fs::perms::owner_all);
}

std::vector<std::string> on_hosts(const Scratch& scratch, const std::string& command, const std::string& hosts) {
  return {command, "job.yaml", "launch.hosts=[" + hosts + "]", "launch.ssh=" + scratch.path() + "/ssh",
          "launch.interface=lo"};
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

TEST_CASE("braces in the words and variables of a command mean themselves, on this host and on others") {
  const Scratch scratch;
  write_ssh(scratch);
  std::ofstream(scratch.path() + "/job.yaml") << R"(name: braces
command: [sh, -c, 'echo {folder} {logs} {address} {first_port} {brace} {{x} } $FMT "$@"', sh, '{trainctl}', '{memory}']
env: {FMT: "y={first_port},{first_address},{address},{brace}"}
launch: {ranks: 2}
)";
  const std::string said =
      "{folder} {logs} {address} {first_port} {brace} {{x} } "
      "y={first_port},{first_address},{address},{brace} {trainctl} {memory}\n";
  REQUIRE(trainctl_command(scratch.path(), {"run", "job.yaml"}).exit_code == kExitDone);
  const CommandResult hosts = trainctl_command(scratch.path(), on_hosts(scratch, "run", "a, b"));
  CAPTURE(hosts.err);
  REQUIRE(hosts.exit_code == kExitDone);
  for (const int run : {1, 2})
    for (const int rank : {0, 1})
      CHECK(slurp(RunDirectory(scratch.path() + "/log_output", run).rank_file(rank, "stdout")) == said);
}

TEST_CASE("trainctl hosts lists hosts that cannot be reached, each with the reason, and ends with 3") {
  const Scratch scratch;
  write_ssh(scratch);
  std::ofstream(scratch.path() + "/job.yaml") << "command: [\"true\"]\nlaunch: {ranks: 3}\n";
  const CommandResult text = trainctl_command(scratch.path(), on_hosts(scratch, "hosts", "gone1, a, gone2"));
  CHECK(text.exit_code == kExitEnv);
  CHECK(text.err.empty());
  CHECK(contains(text.out, "ssh: Could not resolve hostname gone1"));
  CHECK(contains(text.out, "ssh: Could not resolve hostname gone2"));
  CHECK(contains(text.out, "127.0.0.1"));
  auto words = on_hosts(scratch, "hosts", "gone1, a");
  words.emplace_back("launch.ranks=2");
  words.emplace_back("--json");
  const CommandResult json = trainctl_command(scratch.path(), words);
  CHECK(json.exit_code == kExitEnv);
  const auto report = nlohmann::json::parse(json.out, nullptr, false);
  REQUIRE(report.is_object());
  CHECK(contains(report["hosts"][0].value("fault", ""), "gone1"));
}

TEST_CASE("output of a host that is not an answer is shown without escape sequences") {
  const Scratch scratch;
  write_ssh(scratch);
  std::ofstream(scratch.path() + "/job.yaml") << "command: [\"true\"]\nlaunch: {ranks: 1}\n";
  for (const char* command : {"hosts", "run"}) {
    const CommandResult result = trainctl_command(scratch.path(), on_hosts(scratch, command, "evil"));
    CHECK(contains(result.out + result.err, "no way in"));
    CHECK(!contains(result.out + result.err, "\x1b"));
  }
}

TEST_CASE("a run names all hosts that cannot be reached, not only the first, and starts no rank") {
  const Scratch scratch;
  write_ssh(scratch);
  std::ofstream(scratch.path() + "/job.yaml")
      << "command: [touch, " << scratch.path() << "/started]\nlaunch: {ranks: 4}\n";
  const CommandResult result = trainctl_command(scratch.path(), on_hosts(scratch, "run", "gone1, a, gone2, gone3"));
  CHECK(result.exit_code == kExitRankFailed);
  for (const char* name : {"gone1", "gone2", "gone3"})
    CHECK(contains(result.err, std::string("host ") + name + " cannot be reached: ssh: Could not resolve hostname"));
  CHECK(!fs::exists(scratch.path() + "/started"));
}

TEST_CASE("values of env are in no file of another host that others can read") {
  constexpr const char* kValue = "s3cret-of-the-job";
  const Scratch scratch;
  write_ssh(scratch);
  small_job(scratch.path(), std::string("env: {API_KEY: ") + kValue + "}\ntrain: {epochs: 100000000}\n");
  std::vector<std::string> words = on_hosts(scratch, "run", "a");
  for (const char* more : {"launch.ranks=1", "launch.device=cpu"}) words.emplace_back(more);
  const int launcher = start_trainctl(scratch.path(), words);
  REQUIRE(eventually([&] { return !slurp(scratch.path() + "/log_output/1/metrics.jsonl").empty(); }));
  int holders = 0;
  for (const auto& entry : fs::recursive_directory_iterator(scratch.path() + "/a")) {
    if (!entry.is_regular_file() || !contains(slurp(entry.path()), kValue)) continue;
    ++holders;
    CHECK_MESSAGE((entry.status().permissions() & fs::perms::mask) == (fs::perms::owner_read | fs::perms::owner_write),
                  entry.path().string());
  }
  CHECK(holders == 1);  // job.yaml, which its rank reads
  kill(launcher, SIGTERM);
  CHECK(finish_trainctl(scratch.path(), launcher).exit_code == 128 + SIGTERM);
}

TEST_CASE("a script, a program or a folder that a host lacks is named, and launch.copy is suggested") {
  const Scratch scratch;
  write_ssh(scratch);
  const std::string tree = scratch.path() + "/tree";
  fs::create_directory(tree);
  std::ofstream(tree + "/train.sh") << "#!/bin/sh\n";
  fs::permissions(tree + "/train.sh", fs::perms::owner_all);
  std::string command, lacks, what;
  SUBCASE("script") { command = "[sh, train.sh]", lacks = tree + "/train.sh", what = "script"; }
  SUBCASE("program") { command = "[./train.sh]", lacks = tree + "/train.sh", what = "program"; }
  SUBCASE("folder") { command = "[sh, train.sh]", lacks = tree, what = "folder"; }
  std::ofstream(scratch.path() + "/job.yaml") << "command: " << command << "\nworking_dir: tree\nlaunch: {ranks: 2}\n";
  const std::string ssh = slurp(scratch.path() + "/ssh");  // hosts begin after the launcher has looked at the script
  std::ofstream(scratch.path() + "/ssh") << "#!/bin/sh\nrm -rf " << lacks << "\n" << ssh;
  const CommandResult run = trainctl_command(scratch.path(), on_hosts(scratch, "run", "a, b"));
  CHECK(run.exit_code != kExitDone);
  const std::string said = run.out + run.err;
  CHECK_MESSAGE(contains(said, "the " + what + " " + lacks + " does not exist on this host"), said);
  CHECK(contains(said, "launch.copy: [" + tree + "] copies it to each of launch.hosts"));
}

TEST_CASE("a host that does not answer is reported within 5 seconds") {
  const Scratch scratch;
  write_ssh(scratch);
  std::ofstream(scratch.path() + "/job.yaml") << "command: [\"true\"]\nlaunch: {ranks: 2}\n";
  const auto begin = std::chrono::steady_clock::now();
  bool is_run = false;
  SUBCASE("by trainctl hosts") {}
  SUBCASE("by a run") { is_run = true; }
  const int pid = start_trainctl(scratch.path(), on_hosts(scratch, is_run ? "run" : "hosts", "frozen1, frozen2"));
  const auto is_told = [&] {
    const std::string said = slurp(scratch.path() + "/out") + slurp(scratch.path() + "/err");
    return contains(said, "host frozen1 has not responded") && contains(said, "host frozen2 has not responded");
  };
  CHECK(eventually(is_told));
  MESSAGE("after ", seconds_since(begin), " s");
  if (is_run) kill(pid, SIGINT);
  CHECK(finish_trainctl(scratch.path(), pid).exit_code == (is_run ? 128 + SIGINT : kExitEnv));
}

TEST_CASE("processes that a rank leaves on another host are a failure, just as on this one") {
  const Scratch scratch;
  write_ssh(scratch);
  std::ofstream(scratch.path() + "/job.yaml")
      << "command: [sh, -c, 'sleep 1000 & exit 0']\nlaunch: {ranks: 2, grace: 1s}\n";
  const CommandResult result = trainctl_command(scratch.path(), on_hosts(scratch, "run", "a, b"));
  CHECK(result.exit_code == kExitRankFailed);
  CHECK(contains(result.err, "left processes running, which were killed: sleep (pid "));
}
