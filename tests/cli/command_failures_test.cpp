// Jobs that start the user's program, whose ranks fail, hang or end early, on disks that are full or hang.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/error.h"
#include "launcher/run_directory.h"
#include "tests/cli/command.h"
#include "tests/cli/shell_job.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"
#include "tests/skip.h"

using namespace trainctl;
namespace fs = std::filesystem;

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
