// Signals that trainctl's parent had ignored or blocked: nohup, shells without job control, supervisors with signalfd.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "engine/base/error.h"
#include "launcher/run_directory.h"
#include "launcher/spawn.h"
#include "tests/cli/command.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

/// Signal dispositions and mask that a process inherits if it is started in this scope.
class Inherited {
 public:
  Inherited(const std::vector<int>& ignored, bool blocks_all) {
    sigset_t all;
    sigfillset(&all);
    for (const int number : ignored) before_[number] = std::signal(number, SIG_IGN);
    pthread_sigmask(blocks_all ? SIG_SETMASK : SIG_UNBLOCK, blocks_all ? &all : nullptr, &mask_);
  }
  Inherited(const Inherited&) = delete;
  Inherited& operator=(const Inherited&) = delete;
  ~Inherited() {
    for (const auto& [number, handler] : before_) std::signal(number, handler);
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }

 private:
  std::map<int, sighandler_t> before_;
  sigset_t mask_{};
};

/// One of the masks of /proc/<pid>/status, "SigIgn", as a number; bit 0 is signal 1.
uint64_t mask_in(const std::string& status, const std::string& name) {
  std::istringstream text(status);
  for (std::string word; text >> word;) {
    uint64_t mask = 0;
    if (word == name + ":" && text >> std::hex >> mask) return mask;
  }
  return ~uint64_t{0};
}
bool has(uint64_t mask, int signal) { return (mask >> (signal - 1) & 1) != 0; }

/// Ranks that write their signal masks to status.<rank>, and wait for the file `end`.
void write_job(const Scratch& scratch) {
  std::ofstream(scratch.path() + "/job.yaml") << R"(name: waits
command: [sh, -c, 'cat /proc/self/status > part.$RANK; mv part.$RANK status.$RANK; while [ ! -e end ]; do sleep 0.02; done']
launch: {ranks: 2, grace: 5s}
)";
}

bool is_up(const Scratch& scratch) {
  return eventually([&] { return fs::exists(scratch.path() + "/status.0") && fs::exists(scratch.path() + "/status.1"); });
}

}  // namespace

TEST_CASE("signals that were ignored when a run started do not end it, and its ranks ignore them too") {
  const Scratch scratch;
  write_job(scratch);
  std::vector<int> ignored;
  SUBCASE("nohup") { ignored = {SIGHUP}; }
  SUBCASE("a job in the background of a script") { ignored = {SIGINT, SIGQUIT}; }
  SUBCASE("a service") { ignored = {SIGHUP, SIGINT, SIGUSR1, SIGPIPE}; }
  int launcher = 0;
  {
    const Inherited inherited(ignored, false);
    launcher = start_trainctl(scratch.path(), {"run", "job.yaml"});
  }
  REQUIRE(is_up(scratch));
  const std::string status = slurp("/proc/" + std::to_string(launcher) + "/status");
  for (const int number : ignored) {
    CAPTURE(signal_name(number));
    CHECK(has(mask_in(status, "SigIgn"), number));
    CHECK(has(mask_in(slurp(scratch.path() + "/status.1"), "SigIgn"), number));
    kill(launcher, number);
  }
  CHECK(!has(mask_in(slurp(scratch.path() + "/status.1"), "SigIgn"), SIGTERM));
  std::ofstream(scratch.path() + "/end") << "\n";
  CHECK(finish_trainctl(scratch.path(), launcher).exit_code == kExitDone);
}

TEST_CASE("a run in which SIGHUP is ignored is ended by SIGTERM") {
  const Scratch scratch;
  write_job(scratch);
  int launcher = 0;
  {
    const Inherited inherited({SIGHUP}, false);
    launcher = start_trainctl(scratch.path(), {"run", "job.yaml"});
  }
  REQUIRE(is_up(scratch));
  kill(launcher, SIGTERM);
  CHECK(finish_trainctl(scratch.path(), launcher).exit_code == 128 + SIGTERM);
}

TEST_CASE("a parent that blocks all signals, or ignores SIGCHLD, hinders neither a run's end nor its stop") {
  bool is_stopped = false, blocks = false;
  std::vector<int> ignored;
  SUBCASE("blocked, end") { blocks = true; }
  SUBCASE("blocked, stop") { blocks = is_stopped = true; }
  SUBCASE("SIGCHLD ignored, end") { ignored = {SIGCHLD}; }
  SUBCASE("SIGCHLD ignored, stop") {
    ignored = {SIGCHLD};
    is_stopped = true;
  }
  const Scratch scratch;
  write_job(scratch);
  int launcher = 0;
  {
    const Inherited inherited(ignored, blocks);
    launcher = start_trainctl(scratch.path(), {"run", "job.yaml"});
  }
  REQUIRE(is_up(scratch));
  const std::string rank = slurp(scratch.path() + "/status.0");
  CHECK(mask_in(rank, "SigBlk") == 0);
  CHECK(!has(mask_in(rank, "SigIgn"), SIGCHLD));
  if (is_stopped)
    kill(launcher, SIGTERM);
  else
    std::ofstream(scratch.path() + "/end") << "\n";
  const bool has_ended = eventually([&] { return !alive(launcher); });
  CHECK(has_ended);
  if (!has_ended) kill(launcher, SIGKILL);
  CHECK(finish_trainctl(scratch.path(), launcher).exit_code == (is_stopped ? 128 + SIGTERM : kExitDone));
}

TEST_CASE("a sweep passes the user's signal on to its trials, and ends with that signal's code") {
  const Scratch scratch;
  small_job(scratch.path());
  int sweep = 0;
  {
    const Inherited inherited({SIGINT}, false);  // trials inherit it, so that SIGINT would not end them
    sweep = start_trainctl(scratch.path(), {"sweep", "job.yaml", "train.steps=200000000,3", "--jobs", "1"});
  }
  const std::string trial = scratch.path() + "/sweep_output/small/trial.1";
  REQUIRE(eventually([&] { return slurp(trial + "/1/metrics.jsonl").size() >= 200; }));
  kill(sweep, SIGINT);
  kill(sweep, SIGTERM);
  CHECK(finish_trainctl(scratch.path(), sweep).exit_code == 128 + SIGTERM);
  CHECK(state_of(RunDirectory(trial, 1)) == RunState::stopped);
}
