// run --detach, ps, attach and stop, on real runs.
#include <doctest/doctest.h>
#include <unistd.h>

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

nlohmann::json running(const Scratch& scratch) {
  return nlohmann::json::parse(trainctl_command(scratch.path(), {"ps", "--json"}).out, nullptr, false);
}

/// The exit code that a run's launcher wrote; -1: none yet.
int exit_code(const Scratch& scratch, int run) {
  const nlohmann::json outcome = nlohmann::json::parse(
      slurp(RunDirectory(scratch.path() + "/log_output", run).file("outcome.json")), nullptr, false);
  return outcome.is_object() ? outcome.value("exit_code", -1) : -1;
}

/// A command of two ranks that wait for the file `end`, then exit with the number in it.
void waiting_job(const Scratch& scratch) {
  std::ofstream(scratch.path() + "/job.yaml") << R"(name: waits
command: [sh, -c, 'echo rank $RANK waits; while [ ! -e end ]; do sleep 0.02; done; exit $(cat end)']
launch: {ranks: 2, grace: 5s}
)";
}

void end_with(const Scratch& scratch, int code) {
  std::ofstream(scratch.path() + "/end.new") << code;
  fs::rename(scratch.path() + "/end.new", scratch.path() + "/end");
}

const std::vector<std::string> kDetach = {"run", "job.yaml", "--detach"};

/// Stops all runs, so that a failed test leaves none behind.
struct StopsAll {
  const Scratch& scratch;
  ~StopsAll() { trainctl_command(scratch.path(), {"stop", "--all", "--now"}); }
};

}  // namespace

TEST_CASE("a detached network keeps training, is listed with its progress, and ends after a step when it is stopped") {
  const Scratch scratch;
  const StopsAll end{scratch};
  small_job(scratch.path());
  const CommandResult run = trainctl_command(scratch.path(), {"run", "job.yaml", "--detach", "launch.ranks=2",
                                                              "parallel.mode=data_parallel", "train.epochs=10000000"});
  CHECK(run.exit_code == kExitDone);
  CHECK(contains(run.out, "small: run 1 started, 2 ranks, logs in log_output/1"));
  CHECK(contains(run.out, "trainctl stop 1"));

  nlohmann::json seen;
  CHECK(eventually([&] {
    seen = running(scratch);
    return seen.size() == 1 && seen[0]["step"].get<int>() > 1 && seen[0]["loss"].is_number();
  }));
  CHECK(seen[0]["run"] == 1);
  CHECK(seen[0]["name"] == "small");
  CHECK(seen[0]["ranks"] == 2);
  CHECK(seen[0]["steps"] == 80000000);
  CHECK(seen[0]["log_dir"] == scratch.path() + "/log_output");
  const std::string table = trainctl_command(scratch.path(), {"ps"}).out;
  CHECK(contains(table, "samples/s"));
  CHECK(contains(table, "small"));

  const CommandResult stop = trainctl_command(scratch.path(), {"stop"});
  CHECK(stop.exit_code == kExitDone);
  CHECK(contains(stop.out, "run 1 (small): stopped by SIGTERM at the end of step "));
  CHECK(exit_code(scratch, 1) == 143);
  CHECK(running(scratch).empty());
  CHECK(contains(slurp(scratch.path() + "/log_output/1/launcher.log"), "stopped by SIGTERM at the end of step "));
  CHECK_FALSE(contains(slurp(scratch.path() + "/log_output/1/launcher.log"), "loss is"));  // that is in rank.0/stdout
  CHECK(contains(trainctl_command(scratch.path(), {"ps"}).out, "no run is active"));
  CHECK(contains(trainctl_command(scratch.path(), {"ps", "-a"}).out, "small"));
}

TEST_CASE("a detached run leads its own session, which the terminal does not reach") {
  const Scratch scratch;
  const StopsAll end{scratch};
  waiting_job(scratch);
  REQUIRE(trainctl_command(scratch.path(), kDetach).exit_code == kExitDone);
  const int launcher = running(scratch)[0]["launcher"];
  CHECK(getsid(launcher) == launcher);
  const RunDirectory run(scratch.path() + "/log_output", 1);
  CHECK(fs::read_symlink("/proc/" + std::to_string(launcher) + "/fd/1").string().starts_with("socket:"));
  end_with(scratch, 0);
  REQUIRE(eventually([&] { return state_of(run) == RunState::done; }));
  CHECK(contains(slurp(run.file("launcher.log")), "done after"));
}

TEST_CASE("a detached run ends although its launcher.log cannot be written") {
  const Scratch scratch;
  const StopsAll end{scratch};
  waiting_job(scratch);
  REQUIRE(trainctl_command(scratch.path(), kDetach).exit_code == kExitDone);
  const int launcher = running(scratch)[0]["launcher"];
  const int writer = child_named(launcher, "trainctl-log");
  kill(writer, SIGSTOP);  // as if the disk did not answer
  end_with(scratch, 0);
  const RunDirectory run(scratch.path() + "/log_output", 1);
  CHECK(eventually([&] { return state_of(run) == RunState::done; }));
  kill(writer, SIGCONT);
  CHECK(eventually([&] { return contains(slurp(run.file("launcher.log")), "done after"); }));
}

TEST_CASE("an error that keeps a detached run from starting is reported at once, with its exit code") {
  const Scratch scratch;
  small_job(scratch.path(), "tran: {}\n");
  const CommandResult wrong = trainctl_command(scratch.path(), kDetach);
  CHECK(wrong.exit_code == kExitSpec);
  CHECK(contains(wrong.err, "job.yaml:9:1: tran: unknown field"));
  small_job(scratch.path());
  std::ofstream(scratch.path() + "/file") << "x";
  const CommandResult unwritable =
      trainctl_command(scratch.path(), {"run", "job.yaml", "-d", "launch.log_dir=file/logs"});
  CHECK(unwritable.exit_code == kExitEnv);
  CHECK(contains(unwritable.err, "launch.log_dir"));
  CHECK(running(scratch).empty());
}

TEST_CASE("attach shows a run from another folder, and ends with its exit code and first cause") {
  const Scratch scratch;
  const StopsAll end{scratch};
  waiting_job(scratch);
  REQUIRE(trainctl_command(scratch.path(), kDetach).exit_code == kExitDone);
  fs::create_directory(scratch.path() + "/elsewhere");
  const std::string elsewhere = scratch.path() + "/elsewhere";
  const int attached = start_trainctl(elsewhere, {"attach", "1", "--rank", "1"});
  CHECK(eventually([&] { return contains(slurp(elsewhere + "/out"), "rank 1 waits"); }));
  end_with(scratch, 3);
  const CommandResult result = finish_trainctl(elsewhere, attached);
  CHECK(result.exit_code == kExitRankFailed);
  CHECK(contains(result.out, "failed after"));
  CHECK(contains(result.err, "exited with code 3"));
}

TEST_CASE("Ctrl-C ends attach, not the run") {
  const Scratch scratch;
  const StopsAll end{scratch};
  waiting_job(scratch);
  REQUIRE(trainctl_command(scratch.path(), kDetach).exit_code == kExitDone);
  const int attached = start_trainctl(scratch.path(), {"attach"});
  CHECK(eventually([&] { return contains(slurp(scratch.path() + "/out"), "rank 0 waits"); }));
  kill(attached, SIGINT);
  const CommandResult result = finish_trainctl(scratch.path(), attached);
  CHECK(result.exit_code == kExitDone);
  CHECK(contains(result.out, "detached; run 1 (waits) continues"));
  CHECK(running(scratch).size() == 1);
}

TEST_CASE("stop needs a number if several runs are running, and --all stops all of them") {
  const Scratch scratch;
  const StopsAll end{scratch};
  waiting_job(scratch);
  for (int i = 0; i < 3; ++i) REQUIRE(trainctl_command(scratch.path(), kDetach).exit_code == kExitDone);
  const CommandResult which = trainctl_command(scratch.path(), {"stop"});
  CHECK(which.exit_code == kExitSpec);
  CHECK(contains(which.err, "3 runs are active"));
  CHECK(contains(which.err, "run 2 (waits) in log_output"));
  CHECK(trainctl_command(scratch.path(), {"stop", "2"}).exit_code == kExitDone);
  CHECK(running(scratch).size() == 2);
  const CommandResult again = trainctl_command(scratch.path(), {"stop", "2"});
  CHECK(again.exit_code == kExitSpec);
  CHECK(contains(again.err, "run 2 in log_output is no longer active"));
  CHECK(trainctl_command(scratch.path(), {"stop", "--all"}).exit_code == kExitDone);
  CHECK(running(scratch).empty());
  for (const char* verb : {"stop", "attach"}) {
    const CommandResult none = trainctl_command(scratch.path(), {verb, "99"});
    CHECK(none.exit_code == kExitSpec);
    CHECK(contains(none.err, "no run 99"));
    CHECK(trainctl_command(scratch.path(), {verb}).exit_code == kExitSpec);
  }
}

TEST_CASE("a number means the run of this folder, not one with the same number in another") {
  const Scratch scratch;
  const StopsAll end{scratch};
  waiting_job(scratch);
  REQUIRE(trainctl_command(scratch.path(), {"run", "job.yaml", "-d", "launch.log_dir=other"}).exit_code == kExitDone);
  REQUIRE(trainctl_command(scratch.path(), {"run", "job.yaml", "command=[true]"}).exit_code == kExitDone);
  const CommandResult ended = trainctl_command(scratch.path(), {"stop", "1"});  // log_output/1, which has ended
  CHECK(ended.exit_code == kExitSpec);
  CHECK(contains(ended.err, "active runs: run 1 (waits) in other"));
  CHECK(trainctl_command(scratch.path(), {"stop", "1", "--log-dir", "other"}).exit_code == kExitDone);
}

TEST_CASE("stop and attach without a number mean the run of the current folder") {
  const Scratch scratch;
  const StopsAll end{scratch};
  waiting_job(scratch);
  const std::string here = scratch.path() + "/here";
  fs::create_directory(here);
  fs::copy(scratch.path() + "/job.yaml", here + "/job.yaml");
  std::string log_dir = "launch.log_dir=log_output";
  SUBCASE("in the usual log directory") {}
  SUBCASE("in another log directory below it") { log_dir = "launch.log_dir=logs"; }
  REQUIRE(trainctl_command(scratch.path(), kDetach).exit_code == kExitDone);
  REQUIRE(trainctl_command(here, {"run", "job.yaml", "-d", "name=mine", log_dir}).exit_code == kExitDone);
  const int attached = start_trainctl(here, {"attach"});
  CHECK(eventually([&] { return contains(slurp(here + "/out"), "rank 0 waits"); }));
  kill(attached, SIGINT);
  CHECK(contains(finish_trainctl(here, attached).out, "detached; run 1 (mine) continues"));
  CHECK(contains(trainctl_command(here, {"stop"}).out, "run 1 (mine)"));
  REQUIRE(running(scratch).size() == 1);
  CHECK(running(scratch)[0]["name"] == "waits");
}

TEST_CASE("stop --now ends ranks that ignore signals, and a launcher that does not respond") {
  const Scratch scratch;
  const StopsAll end{scratch};
  std::ofstream(scratch.path() + "/job.yaml") << R"(
command: [sh, -c, 'trap "" TERM; echo $$ > pid.$RANK; while :; do sleep 0.05; done']
launch: {ranks: 2, grace: 1h}
)";
  REQUIRE(trainctl_command(scratch.path(), kDetach).exit_code == kExitDone);
  std::vector<int> pids = {pid_in(scratch.path() + "/pid.0"), pid_in(scratch.path() + "/pid.1")};
  CHECK(trainctl_command(scratch.path(), {"stop", "--now"}).exit_code == kExitDone);
  for (const int pid : pids) CHECK(eventually([&] { return !alive(pid); }));

  for (int rank = 0; rank < 2; ++rank) fs::remove(scratch.path() + "/pid." + std::to_string(rank));
  REQUIRE(trainctl_command(scratch.path(), kDetach).exit_code == kExitDone);
  pids = {pid_in(scratch.path() + "/pid.0"), pid_in(scratch.path() + "/pid.1")};
  kill(running(scratch)[0]["launcher"].get<int>(), SIGSTOP);
  CHECK(trainctl_command(scratch.path(), {"stop", "--now"}).exit_code == kExitDone);
  for (const int pid : pids) CHECK(eventually([&] { return !alive(pid); }));
  CHECK(running(scratch).empty());
}
