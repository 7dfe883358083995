// Jobs that start the user's program.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
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
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"
#include "tests/skip.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

/// A job that runs a line of shell once per rank.
void shell_job(const Scratch& scratch, const std::string& line, const std::string& more = "launch: {ranks: 3}\n") {
  std::ofstream(scratch.path() + "/job.yaml") << "name: shell\ncommand:\n  - sh\n  - -c\n  - |\n    " << line << "\n"
                                              << more;
}

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

TEST_CASE("a rank of a command that fails ends the run with 5, and is named with its last output") {
  const Scratch scratch;
  shell_job(scratch, "if [ $RANK = 1 ]; then echo out of luck >&2; exit 7; fi; sleep 100");
  const CommandResult result = trainctl_command(scratch.path(), {"run", "job.yaml"});
  CHECK(result.exit_code == kExitRankFailed);
  CHECK(contains(result.err, "rank 1 ("));
  CHECK(contains(result.err, "exited with code 7"));
  CHECK(contains(result.err, "out of luck"));
}

TEST_CASE("a rank of a command that left before the others failed is named first, and all that failed are listed") {
  const Scratch scratch;
  shell_job(
      scratch,
      "touch up.$RANK; if [ $RANK = 2 ]; then echo $$ > left; exit 0; fi; until [ -e go ]; do sleep 0.02; done; exit 1",
      "launch: {ranks: 4}\n");
  const int launcher = start_trainctl(scratch.path(), {"run", "job.yaml"});
  const RunDirectory run(scratch.path() + "/log_output", 1);
  for (const int rank : {0, 1, 2, 3}) {
    REQUIRE(eventually([&] { return fs::exists(scratch.path() + "/up." + std::to_string(rank)); }));
  }
  // The launcher knows that rank 2 has ended once it has reaped it.
  const std::string rank2 = "/proc/" + std::to_string(pid_in(scratch.path() + "/left"));
  REQUIRE(eventually([&] { return !fs::exists(rank2); }));
  std::ofstream(scratch.path() + "/go") << "x";
  const CommandResult result = finish_trainctl(scratch.path(), launcher);
  CHECK(result.exit_code == kExitRankFailed);
  CHECK(contains(result.err, "rank 2 had exited with code 0 "));
  CHECK(contains(result.err, "ranks 0,1,3 exited with code 1"));
  const auto json = nlohmann::json::parse(slurp(run.file("error.json")), nullptr, false);
  REQUIRE(json.is_object());
  CHECK(json["first_cause"]["rank"] == 2);
  CHECK(json["first_cause"]["kind"] == "ended early");
}

TEST_CASE("a rank of a command that hangs while all others fail is named first") {
  const Scratch scratch;
  shell_job(scratch, "if [ $RANK = 2 ]; then sleep 1000; fi; until [ -e go ]; do sleep 0.02; done; exit 1",
            "launch: {ranks: 4, grace: 1s}\n");
  const int launcher = start_trainctl(scratch.path(), {"run", "job.yaml"});
  REQUIRE(eventually([&] { return children_named(launcher, "sh").size() == 4; }));
  std::ofstream(scratch.path() + "/go") << "x";
  const CommandResult result = finish_trainctl(scratch.path(), launcher);
  CHECK(result.exit_code == kExitRankFailed);
  CHECK(contains(result.err, "rank 2 was the only rank still running"));
  CHECK(contains(result.err, "ranks 0,1,3 exited with code 1"));
}

TEST_CASE("the rank that wrote PyTorch's error file first is the cause, although it ended last") {
  const Scratch scratch;
  shell_job(scratch,
            R"(if [ $RANK = 1 ]; then echo '{"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": )"
            R"("Traceback", "timestamp": "'$(date +%s)'"}}}' > $TORCHELASTIC_ERROR_FILE; touch wrote; sleep 1000; fi; )"
            "until [ -e wrote ]; do sleep 0.02; done; exit 1",
            "launch: {ranks: 3, grace: 1s}\n");
  const CommandResult result = trainctl_command(scratch.path(), {"run", "job.yaml"});
  CHECK(result.exit_code == kExitRankFailed);
  CHECK(contains(result.err, "rank 1 ("));
  CHECK(contains(result.err, ") failed: ValueError: bad"));
  CHECK(contains(result.err, "| Traceback"));
}

TEST_CASE("a file size limit loses lines, but ends neither the launcher nor the record of how the run ended") {
  const Scratch scratch;
  shell_job(scratch, "seq 1 100000; kill -s XFSZ $$; echo not reached", "launch: {ranks: 1}\n");
  const std::string command = "cd " + scratch.path() +
                              " && (ulimit -f 8; exec " TRAINCTL_BINARY
                              " run job.yaml --show 0 > /dev/null 2> err; ) ; echo $? > code";
  REQUIRE(std::system(command.c_str()) == 0);
  CHECK(slurp(scratch.path() + "/code") == "5\n");
  const RunDirectory run(scratch.path() + "/log_output", 1);
  CHECK(contains(slurp(scratch.path() + "/err"), "was killed by SIGXFSZ"));  // the ranks have the default action
  CHECK(state_of(run) == RunState::failed);
  CHECK(fs::file_size(run.rank_file(0, "stdout")) <= 8192);
}

namespace {

/// A file system of its own at `path`, until the end of the test.
class Mount {
 public:
  Mount(const std::string& command, std::string path) : path_(std::move(path)) {
    fs::create_directory(path_);
    mounted_ = std::system(("(" + command + ") > /dev/null 2>&1").c_str()) == 0;
  }
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;
  ~Mount() {
    if (mounted_ && std::system(("umount " + path_ + " 2> /dev/null || umount --lazy " + path_).c_str()) != 0) return;
  }
  bool mounted() const { return mounted_; }

 private:
  const std::string path_;
  bool mounted_ = false;
};

void run_frozen(const Scratch& scratch, bool freeze) {
  const std::string command =
      std::string("fsfreeze --") + (freeze ? "freeze " : "unfreeze ") + scratch.path() + "/disk";
  REQUIRE(std::system(command.c_str()) == 0);
}

}  // namespace

// It was listed as lost.
TEST_CASE("a run that ends well on a full disk is listed as done") {
  const Scratch scratch;
  const Mount disk("mount -t tmpfs -o size=256k none " + scratch.path() + "/disk", scratch.path() + "/disk");
  if (!disk.mounted()) return skip_test("no file system can be mounted");
  shell_job(scratch, "until [ -e go ]; do sleep 0.02; done; echo end",
            "launch: {ranks: 2, log_dir: " + scratch.path() + "/disk/logs}\n");
  const int launcher = start_trainctl(scratch.path(), {"run", "job.yaml"});
  const RunDirectory run(scratch.path() + "/disk/logs", 1);
  REQUIRE(eventually([&] { return fs::exists(run.rank_file(1, "stderr")); }));
  {
    std::ofstream filler(scratch.path() + "/disk/filler", std::ios::binary);
    for (int i = 0; i < 1000 && filler; ++i) filler << std::string(4096, 'x') << std::flush;
    CHECK_FALSE(filler);
  }
  std::ofstream(scratch.path() + "/go") << "x";
  const CommandResult result = finish_trainctl(scratch.path(), launcher);
  CHECK(result.exit_code == kExitDone);
  CHECK(contains(result.out, "No space left on device"));
  CHECK(state_of(run) == RunState::done);
}

TEST_CASE("on a hanging disk a run notices a failed rank, ends, and says what it could not write") {
  const Scratch scratch;
  const std::string disk_path = scratch.path() + "/disk", image = scratch.path() + "/image";
  const Mount disk("truncate -s 8M " + image + " && mkfs.ext4 -q " + image + " && mount -o loop " + image + " " +
                       disk_path + " && fsfreeze --freeze " + disk_path + " && fsfreeze --unfreeze " + disk_path,
                   disk_path);
  if (!disk.mounted()) return skip_test("no disk can be mounted and frozen");
  shell_job(scratch,
            "echo $RANK > up.$RANK; i=0; until [ -e go ]; do echo line $i; i=$((i+1)); sleep 0.02; done; "
            "[ $RANK = 0 ] || exit 3; sleep 1000",
            "launch: {ranks: 2, grace: 1s, log_dir: " + disk_path + "/logs}\n");
  const int launcher = start_trainctl(scratch.path(), {"run", "job.yaml"});
  for (const char* rank : {"0", "1"})
    REQUIRE(eventually([&] { return slurp(scratch.path() + "/up." + rank) == std::string(rank) + "\n"; }));
  run_frozen(scratch, true);
  const bool noticed =
      eventually([&] { return contains(slurp(scratch.path() + "/out"), "does not respond; training continues"); });
  std::ofstream(scratch.path() + "/go") << "x";
  const CommandResult result = finish_trainctl(scratch.path(), launcher);
  run_frozen(scratch, false);
  CHECK(noticed);
  CHECK(result.exit_code == kExitRankFailed);
  CHECK(contains(result.err, "rank 1 ("));
  CHECK(contains(result.err, "cannot write outcome.json"));
  CHECK(contains(result.out, "bytes of the logs could not be written"));
}

TEST_CASE("a rank of a command that ends early with 0 is not a failure") {
  const Scratch scratch;
  shell_job(scratch, "if [ $RANK = 1 ]; then exit 0; fi; sleep 0.3");
  CHECK(trainctl_command(scratch.path(), {"run", "job.yaml"}).exit_code == kExitDone);
}

// The launcher handled SIGUSR1 only while ranks ran; after that the signal killed it.
TEST_CASE("a signal that comes when all ranks have ended does not change how the run ended") {
  const Scratch scratch;
  shell_job(scratch, "seq 1 100000",
            "launch: {ranks: 1}\n");  // more than a pipe holds: the launcher waits for its reader
  const std::string command = "cd " + scratch.path() +
                              " && (" TRAINCTL_BINARY
                              " run job.yaml & echo $! > pid; wait $!; echo $? > code) |"
                              " (until [ -e go ] || [ ! -e job.yaml ]; do sleep 0.02; done; cat > /dev/null) &";
  REQUIRE(std::system(command.c_str()) == 0);
  const RunDirectory run(scratch.path() + "/log_output", 1);
  REQUIRE(eventually([&] { return fs::exists(run.file("outcome.json")); }));
  for (const int signal : {SIGUSR1, SIGTERM}) kill(pid_in(scratch.path() + "/pid"), signal);
  std::ofstream(scratch.path() + "/go") << "x";
  CHECK(eventually([&] { return slurp(scratch.path() + "/code").ends_with("\n"); }));
  CHECK(slurp(scratch.path() + "/code") == "0\n");
}

TEST_CASE("all ranks of a command start again after one has failed, with another port") {
  const Scratch scratch;
  shell_job(scratch,
            "echo $TORCHELASTIC_RESTART_COUNT $MASTER_PORT >> seen.$RANK; "
            "[ $RANK != 1 ] || [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 1; sleep 0.5",
            "launch: {ranks: 2, max_restarts: 2}\n");
  const CommandResult result = trainctl_command(scratch.path(), {"run", "job.yaml"});
  CHECK(result.exit_code == kExitDone);
  CHECK(contains(result.out, "restarting all ranks (2 of 2)"));
  std::istringstream seen(slurp(scratch.path() + "/seen.1"));
  int last = 0, attempts = 0;
  for (int count = 0, port = 0; seen >> count >> port; last = port) {
    CHECK(count == attempts++);
    CHECK(port != last);
  }
  CHECK(attempts == 3);
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

TEST_CASE("a network that failed once starts again from the beginning, and ends well") {
  const Scratch scratch;
  small_job(scratch.path());
  const int launcher =
      start_trainctl(scratch.path(), {"run", "job.yaml", "launch.ranks=2", "parallel.mode=data_parallel",
                                      "train.epochs=100000000", "train.log_every=1000", "launch.max_restarts=1"});
  const RunDirectory run(scratch.path() + "/log_output", 1);
  for (int rank = 0; rank < 2; ++rank)
    REQUIRE(eventually([&] { return contains(slurp(run.rank_file(rank, "stdout")), "step: "); }));
  // The first attempt must not end on its own, however slow this test is; ranks read the job when they start.
  const std::string endless = slurp(run.file("job.yaml"));
  const std::string epochs = "epochs: 100000000";
  REQUIRE(contains(endless, epochs));
  std::ofstream(run.file("job.yaml.new"))
      << std::string(endless).replace(endless.find(epochs), epochs.size(), "epochs: 2");
  fs::rename(run.file("job.yaml.new"), run.file("job.yaml"));
  const auto workers = workers_of(launcher, 2);
  REQUIRE(workers[1] > 0);
  kill(workers[1], SIGKILL);
  const CommandResult result = finish_trainctl(scratch.path(), launcher);
  CHECK(result.exit_code == kExitDone);
  CHECK(contains(result.out, "restarting all ranks (1 of 1)"));
  CHECK(contains(slurp(run.rank_file(1, "stdout")), "epoch: 2 "));
  const auto start =
      nlohmann::ordered_json::parse(slurp(scratch.path() + "/log_output/1/rank.0/start_up.json"), nullptr, false);
  REQUIRE(start.is_object());
  CHECK(start["phases"].begin().key() == "launch");  // its start counts from the restart
}
