// Jobs that start the user's program: its environment, its output and its plan.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "engine/base/error.h"
#include "engine/spec/read_command.h"
#include "launcher/run_directory.h"
#include "tests/cli/command.h"
#include "tests/cli/shell_job.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

std::map<std::string, std::string> variables(const std::string& path) {
  std::istringstream text(slurp(path));
  std::map<std::string, std::string> found;
  for (std::string line; std::getline(text, line);)
    if (const size_t equals = line.find('='); equals != std::string::npos)
      found[line.substr(0, equals)] = line.substr(equals + 1);
  return found;
}

std::string rank_stdout(const Scratch& scratch, int rank, int run = 1) {
  return slurp(RunDirectory(scratch.path() + "/log_output", run).rank_file(rank, "stdout"));
}

}  // namespace

TEST_CASE("each rank of a command has the environment that torchrun would set") {
  const Scratch scratch;
  shell_job(scratch, "env > env.$RANK", "env: {LR: 0.10, OMP_NUM_THREADS: 7}\nlaunch: {ranks: 3, max_restarts: 2}\n");
  REQUIRE(trainctl_command(scratch.path(), {"run", "job.yaml"}).exit_code == kExitDone);
  std::set<std::string> ports, ids;
  for (int rank = 0; rank < 3; ++rank) {
    auto env = variables(scratch.path() + "/env." + std::to_string(rank));
    for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK"}) CHECK(env[name] == std::to_string(rank));
    for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"}) CHECK(env[name] == "3");
    CHECK(env["GROUP_RANK"] == "0");
    CHECK(env["GROUP_WORLD_SIZE"] == "1");
    CHECK(env["ROLE_NAME"] == "default");
    CHECK(env["MASTER_ADDR"] == "127.0.0.1");
    CHECK(env["TORCHELASTIC_RESTART_COUNT"] == "0");
    CHECK(env["TORCHELASTIC_MAX_RESTARTS"] == "2");
    CHECK(env["TORCHELASTIC_USE_AGENT_STORE"] == "False");
    CHECK(env["TORCHELASTIC_ERROR_FILE"] ==
          scratch.path() + "/log_output/1/rank." + std::to_string(rank) + "/torch_error.json");
    CHECK(env["PYTHONUNBUFFERED"] == "1");
    CHECK(env["LR"] == "0.10");
    CHECK(env["OMP_NUM_THREADS"] == "7");
    CHECK(env["TRAINCTL_RUN_DIR"] == scratch.path() + "/log_output/1");
    ports.insert(env["MASTER_PORT"]);
    ids.insert(env["TORCHELASTIC_RUN_ID"]);
  }
  CHECK(ports.size() == 1);
  CHECK(std::stoi(*ports.begin()) > 0);
  CHECK(ids.size() == 1);
}

TEST_CASE("values of env are in no file that others can read") {
  constexpr const char* kValue = "s3cret-of-the-job";
  const Scratch scratch;
  shell_job(scratch, "exit 0", std::string("env: {API_KEY: ") + kValue + "}\nlaunch: {ranks: 2}\n");
  REQUIRE(trainctl_command(scratch.path(), {"run", "job.yaml"}).exit_code == kExitDone);
  small_job(scratch.path(), "train: {epochs: 1, checkpoint: {every_epochs: 1}}\n");
  REQUIRE(trainctl_command(scratch.path(), {"run", "job.yaml", std::string("env.API_KEY=") + kValue, "launch.device=cpu"})
              .exit_code == kExitDone);
  REQUIRE(trainctl_command(scratch.path(), {"report", "1", "2", "-o", "log_output/report.html"}).exit_code == kExitDone);
  REQUIRE(trainctl_command(scratch.path(), {"logs", "1", "--bundle", "log_output/run.tar.gz"}).exit_code == kExitDone);
  int holders = 0, checkpoints = 0;
  for (const auto& entry : fs::recursive_directory_iterator(scratch.path() + "/log_output")) {
    if (!entry.is_regular_file()) continue;
    checkpoints += entry.path().string().find("/checkpoints/") != std::string::npos ? 1 : 0;
    if (slurp(entry.path()).find(kValue) == std::string::npos) continue;
    ++holders;
    CHECK_MESSAGE((entry.status().permissions() & fs::perms::mask) == (fs::perms::owner_read | fs::perms::owner_write),
                  entry.path().string());
  }
  CHECK(holders == 2);  // each run's job.yaml, which its ranks read
  CHECK(checkpoints > 0);
}

TEST_CASE("the job cannot set the variables by which the ranks of a command find each other") {
  for (const char* name :
       {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
        "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"})
    CHECK(is_reserved_variable(name));
}

TEST_CASE("a command runs in its folder, with an empty stdin, and its words are as written") {
  const Scratch scratch;
  fs::create_directory(scratch.path() + "/src");
  std::ofstream(scratch.path() + "/job.yaml") << R"(command: [sh, -c, 'pwd; cat; echo "$@"', sh, true, 0.10, "a b"]
working_dir: src
)";
  REQUIRE(trainctl_command(scratch.path(), {"run", "job.yaml"}).exit_code == kExitDone);
  CHECK(rank_stdout(scratch, 0) == scratch.path() + "/src\ntrue 0.10 a b\n");
  REQUIRE(trainctl_command(scratch.path(), {"run", "job.yaml", "command[5]=0.2", "working_dir=."}).exit_code == 0);
  CHECK(rank_stdout(scratch, 0, 2) == scratch.path() + "\ntrue 0.2 a b\n");
}

TEST_CASE("the job file that a run of a command leaves can be run unchanged, from any folder") {
  const Scratch scratch;
  shell_job(scratch, "echo $NAME in `pwd`", "env: {NAME: mine}\n");
  REQUIRE(trainctl_command(scratch.path(), {"run", "job.yaml"}).exit_code == kExitDone);
  fs::create_directory(scratch.path() + "/other");
  REQUIRE(trainctl_command(scratch.path() + "/other", {"run", "../log_output/1/job.yaml"}).exit_code == kExitDone);
  CHECK(rank_stdout(scratch, 0, 2) == "mine in " + scratch.path() + "\n");
  const auto plan = nlohmann::json::parse(slurp(scratch.path() + "/log_output/1/plan.json"), nullptr, false);
  CHECK(plan["env"] == nlohmann::json{"NAME"});
}

TEST_CASE("stderr of the first rank of a command is shown, and with --show that of other ranks") {
  const Scratch scratch;
  shell_job(scratch, "echo out $RANK; echo err $RANK >&2");
  const std::string first = trainctl_command(scratch.path(), {"run", "job.yaml"}).out;
  CHECK(contains(first, "\nout 0\n"));
  CHECK(contains(first, "err 0\n"));
  CHECK_FALSE(contains(first, "out 1"));
  const std::string all = trainctl_command(scratch.path(), {"run", "job.yaml", "--show", "all"}).out;
  for (const char* line : {"rank 0 | out 0", "rank 1 | out 1", "rank 2 | err 2"}) CHECK(contains(all, line));
  const CommandResult wrong = trainctl_command(scratch.path(), {"run", "job.yaml", "--show", "1-3"});
  CHECK(wrong.exit_code == kExitSpec);
  CHECK(contains(wrong.err, "there is no rank 3"));
}

TEST_CASE("a program that does not exist is an error in the job, before anything starts") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/data.txt") << "no program";
  const auto error = [&](const std::string& command) {
    std::ofstream(scratch.path() + "/job.yaml") << command << "\n";
    for (const char* verb : {"check", "plan", "run"})
      CHECK(trainctl_command(scratch.path(), {verb, "job.yaml"}).exit_code == kExitSpec);
    return trainctl_command(scratch.path(), {"check", "job.yaml"}).err;
  };
  CHECK(
      contains(error("command: [pyton3, train.py]"), "job.yaml:1:11: command[0]: the program 'pyton3' is not in PATH"));
  CHECK(contains(error("command: [./train.sh]"), "the program " + scratch.path() + "/train.sh does not exist"));
  CHECK(contains(error("command: [./data.txt]"), "cannot be executed"));
  CHECK(contains(error("command: [data.txt]"), "write ./data.txt"));
  CHECK(contains(error("command: [sh]\nworking_dir: nowhere"), "job.yaml:2:14: working_dir: the folder "));
  CHECK(list_runs(scratch.path() + "/log_output").empty());
}

TEST_CASE("plan shows what a command would start, and fields that only a network has are refused") {
  const Scratch scratch;
  shell_job(scratch, "true", "env: {LR: 0.1}\nlaunch: {ranks: 2, bind: core, max_restarts: 1}\n");
  const CommandResult plan = trainctl_command(scratch.path(), {"plan", "job.yaml"});
  CHECK(plan.exit_code == kExitDone);
  for (const char* part :
       {"shell: 2 ranks of", "sh -c", "with LR", "processes on this host", "bound to", "at most 1 time"})
    CHECK(contains(plan.out, part));
  const auto json = nlohmann::json::parse(trainctl_command(scratch.path(), {"plan", "job.yaml", "--json"}).out);
  CHECK(json["launch"]["bind"] == "core");
  CHECK(json["launch"]["ranks"].size() == 2);
  CHECK(json["launch"]["ranks"][1]["threads"].get<int>() >= 1);
  CHECK_FALSE(json["launch"]["ranks"][1]["cpus"].empty());
  for (const char* noun : {"graph", "program", "plan", "weights"}) {
    const CommandResult show = trainctl_command(scratch.path(), {"show", noun, "job.yaml"});
    CHECK(show.exit_code == kExitSpec);
    CHECK(contains(show.err, std::string("a job with a command has no ") + noun));
  }
}

TEST_CASE("plan shows the binding and the threads of a network's ranks too") {
  const Scratch scratch;
  small_job(scratch.path(), "launch: {ranks: 2, bind: core}\nparallel: {mode: data_parallel}\n");
  const CommandResult plan = trainctl_command(scratch.path(), {"plan", "job.yaml"});
  CHECK(contains(plan.out, "processes on this host"));
  CHECK(contains(plan.out, "threads"));
  const auto json = nlohmann::json::parse(trainctl_command(scratch.path(), {"plan", "job.yaml", "--json"}).out);
  CHECK(json["launch"]["ranks"].size() == 2);
}

TEST_CASE("plan shows what ranks on GPUs need besides their arenas, and what they use only if there is room") {
  const Scratch scratch;
  small_job(scratch.path());
  const auto plan = [&](const char* more, const char* device) {
    return trainctl_command(scratch.path(), {"plan", "job.yaml", more, device}).out;
  };
  CHECK_FALSE(contains(plan("seed=1", "launch.device=cpu"), "workspace"));
  const std::string shown = plan("seed=1", "launch.device=cuda");
  CHECK(contains(shown, "workspace     total  data set\n"));
  CHECK(contains(shown, "columns after total are used only if the GPU has enough free memory"));
  const auto memory = nlohmann::json::parse(plan("--json", "launch.device=cuda"))["rank_classes"][0]["memory"];
  CHECK(memory["workspace"] > 32 << 20);
  CHECK(memory["data_set"] > 0);
  CHECK_FALSE(memory.contains("copy_engines"));
  int64_t sum = 0;
  for (const char* kind : {"weights", "gradients", "optimizer", "activations", "buffers", "workspace"})
    sum += memory[kind].get<int64_t>();
  CHECK(memory["total"] == sum);
}

TEST_CASE("20 jobs at once on one host: each has its own run and port") {
  const Scratch scratch;
  const std::string configs = TRAINCTL_SOURCE_DIR "/configs/any_program.yaml";
  std::vector<int> pids;
  for (int i = 0; i < 20; ++i) {
    const std::string own = scratch.path() + "/" + std::to_string(i);
    fs::create_directory(own);
    pids.push_back(
        start_trainctl(own, {"run", configs, "launch.ranks=3", "launch.log_dir=" + scratch.path() + "/logs"}));
  }
  for (int i = 0; i < 20; ++i) {
    const CommandResult result =
        finish_trainctl(scratch.path() + "/" + std::to_string(i), pids[static_cast<size_t>(i)]);
    INFO(result.err);
    CHECK(result.exit_code == kExitDone);
    CHECK(contains(result.out, "the numbers of 3 ranks add up to 3"));
  }
  CHECK(list_runs(scratch.path() + "/logs").size() == 20);
}
