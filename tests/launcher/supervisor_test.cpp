// Tests the supervision of ranks with real processes: causes of failures, signals, restarts and time limits.
#include "launcher/supervisor.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "engine/base/error.h"
#include "launcher/failure_report.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"
#include "tests/launcher/sleepers.h"

using namespace trainctl;

namespace {

/// Runs the same program, without arguments, on each rank.
class OneProgram : public RankProgram {
 public:
  explicit OneProgram(std::string path) : path_(std::move(path)) {}
  ProcessCommand command(const RankPlace&, int) override { return {.argv = {path_}}; }

 private:
  const std::string path_;
};

/// A single rank whose end and the supervisor's next tick are in the loop's queue at the same time.
class LateRank : public RankRunner {
 public:
  explicit LateRank(boost::asio::io_context& loop) : loop_(loop), end_(loop) {}
  void listen(Events events) override { events_ = std::move(events); }
  void start(const RankPlace& place, int) override { events_.started(place.rank); }
  void signal(int, int) override {}
  void stop_after_step() override {}
  bool is_frozen(int) override { return false; }
  std::optional<RankError> error_of(int) override { return std::nullopt; }
  void restart(int) override {}
  /// Called by each tick. The first call blocks the loop until the next tick and the end of the rank are both due.
  void look() override {
    if (++looks > 1) return;
    end_.expires_after(std::chrono::milliseconds(1));
    end_.async_wait([this](const boost::system::error_code&) { events_.ended(0, {}); });
    boost::asio::post(loop_, [] { std::this_thread::sleep_for(std::chrono::milliseconds(200)); });
  }
  void end() override {}
  bool disk_hangs() const override { return false; }

  int looks = 0;

 private:
  boost::asio::io_context& loop_;
  boost::asio::steady_timer end_;
  Events events_;
};

}  // namespace

TEST_CASE("after the ranks have ended, the loop calls no handler of their supervision") {
  const Scratch scratch;
  boost::asio::io_context loop;
  LateRank rank(loop);
  OneProgram program("true");
  LaunchObserver nobody;
  const Launch launch{.cluster = one_host(1),
                      .directory = RunDirectory::create(scratch.path(), 1),
                      .program = program,
                      .observer = nobody};
  CHECK(supervise(launch, rank, loop).exit_code == 0);
  const int looks = rank.looks;
  loop.restart();  // as for the next attempt of a run whose hosts have changed
  while (loop.poll() > 0) {
  }
  CHECK(rank.looks == looks);
}

TEST_CASE("ranks that exit 0 end the run with 0, their output in their folders") {
  const Scratch scratch;
  const int launcher = start_launcher(scratch.path(), {"echo out $RANK; echo err $RANK >&2", "printf 'no newline'"});
  CHECK(wait_for(launcher) == 0);
  CHECK(slurp(scratch.path() + "/1/rank.0/stdout") == "out 0\n");
  CHECK(slurp(scratch.path() + "/1/rank.0/stderr") == "err 0\n");
  CHECK(slurp(scratch.path() + "/1/rank.1/stdout") == "no newline");
  CHECK(slurp(scratch.path() + "/report").empty());
}

TEST_CASE("one rank fails: all stop, the exit code is 5, and the report ends with its last output") {
  const Scratch scratch;
  const int launcher = start_launcher(
      scratch.path(),
      {kSleeper, "sleep 1000", "while [ ! -s $DIR/pid.0 ]; do :; done; echo the disk is on fire >&2; exit 7"});
  const std::vector<int> pids = pids_of(scratch.path(), 1);
  CHECK(wait_for(launcher) == kExitRankFailed);
  CHECK(all_gone(pids));
  const std::string report = slurp(scratch.path() + "/report");
  CHECK(report.find("ranks 0, 1 stopped as a consequence") != std::string::npos);
  CHECK(report.find("rank 2 (") != std::string::npos);
  CHECK(report.find("exited with code 7") != std::string::npos);
  CHECK(report.ends_with("| the disk is on fire\n"));
}

TEST_CASE("a rank killed from outside is the cause") {
  const Scratch scratch;
  const int launcher = start_launcher(scratch.path(), {kSleeper, kSleeper});
  const std::vector<int> pids = pids_of(scratch.path(), 2);
  kill(pids[2], SIGKILL);
  CHECK(wait_for(launcher) == kExitRankFailed);
  CHECK(all_gone(pids));
  const std::string report = slurp(scratch.path() + "/report");
  CHECK(report.find("rank 1 (") != std::string::npos);
  CHECK(report.find("was killed by SIGKILL") != std::string::npos);
}

// A regression: after the launcher itself had been stopped, it named the rank with the smallest number.
TEST_CASE("of ranks found dead at the same time, the one that was killed is the cause") {
  const Scratch scratch;
  const int launcher =
      start_launcher(scratch.path(), {"echo $$ > $DIR/pid.0; while [ ! -e $DIR/go ]; do sleep 0.01; done; exit 1",
                                      "echo $$ > $DIR/pid.1; sleep 1000"});
  const int follows = pid_in(scratch.path() + "/pid.0"), killed = pid_in(scratch.path() + "/pid.1");
  kill(launcher, SIGSTOP);
  REQUIRE(eventually([&] { return stopped(launcher); }));
  kill(killed, SIGKILL);
  CHECK(all_gone({killed}));
  std::ofstream(scratch.path() + "/go") << "\n";
  CHECK(all_gone({follows}));
  kill(launcher, SIGCONT);
  CHECK(wait_for(launcher) == kExitRankFailed);
  const std::string report = slurp(scratch.path() + "/report");
  CHECK(report.find("rank 0 stopped as a consequence") != std::string::npos);
  CHECK(report.find("rank 1 (") != std::string::npos);
  CHECK(report.find("was killed by SIGKILL") != std::string::npos);
}

TEST_CASE("ranks that ignore SIGTERM are killed after grace") {
  const Scratch scratch;
  const int launcher =
      start_launcher(scratch.path(), {kDeaf, "while [ ! -s $DIR/pid.0 ]; do :; done; exit 1"}, {.grace_seconds = 0.2});
  const std::vector<int> pids = pids_of(scratch.path(), 1);
  CHECK(wait_for(launcher) == kExitRankFailed);
  CHECK(all_gone(pids));
}

TEST_CASE("a stopped rank is continued so that it can end") {
  const Scratch scratch;
  const int launcher = start_launcher(scratch.path(), {kSleeper, kSleeper});
  const std::vector<int> pids = pids_of(scratch.path(), 2);
  kill(pids[0], SIGSTOP);
  kill(launcher, SIGTERM);
  CHECK(wait_for(launcher) == 128 + SIGTERM);
  CHECK(all_gone(pids));
}

TEST_CASE("one Ctrl-C stops ranks that handle it, exit code 130") {
  const Scratch scratch;
  const int launcher = start_launcher(scratch.path(), {kSleeper, kSleeper});
  const std::vector<int> pids = pids_of(scratch.path(), 2);
  kill(launcher, SIGINT);
  CHECK(wait_for(launcher) == 130);
  CHECK(all_gone(pids));
}

TEST_CASE("two Ctrl-C kill ranks that ignore it") {
  const Scratch scratch;
  const int launcher = start_launcher(scratch.path(), {kDeaf, kSleeper}, {.grace_seconds = 1000});
  const std::vector<int> pids = pids_of(scratch.path(), 2);
  kill(launcher, SIGINT);
  CHECK(eventually([&] { return !alive(pids[2]); }));  // the listening one has stopped: the first was seen
  CHECK(alive(pids[0]));
  kill(launcher, SIGINT);
  CHECK(wait_for(launcher) == 130);
  CHECK(all_gone(pids));
}

TEST_CASE("a rank's share of the cores is in its environment, and it has no descriptors of ours") {
  const Scratch scratch;
  const int stray = open("/dev/null", O_RDONLY);  // not close-on-exec
  unsetenv("OMP_NUM_THREADS");
  const int launcher = start_launcher(scratch.path(), {"echo $OMP_NUM_THREADS; ls /proc/self/fd | tr '\\n' ' '"});
  CHECK(wait_for(launcher) == 0);
  close(stray);
  const std::string out = slurp(scratch.path() + "/1/rank.0/stdout");
  const int threads = bindings(one_host(1), read_topology(), BindMode::none)[0].threads;
  CHECK(out == std::to_string(threads) + "\n0 1 2 3 ");  // 3: ls reads /proc
}

TEST_CASE("a program that does not exist is named") {
  const Scratch scratch;
  const RunDirectory directory = RunDirectory::create(scratch.path(), 1);
  const std::string program =
      scratch.path() + "/program";  // an absolute path, since some folders of PATH may be inaccessible
  OneProgram ranks(program);
  LaunchObserver nobody;
  const Launch launch{.cluster = one_host(1), .directory = directory, .program = ranks, .observer = nobody};
  PosixProcessRunner runner;
  boost::asio::io_context loop;
  const Outcome outcome = supervise(launch, runner, loop);
  CHECK(outcome.exit_code == kExitRankFailed);
  const std::string report = failure_report(outcome, launch.cluster, directory);
  CHECK(report.find("rank 0 (") != std::string::npos);
  CHECK(report.find("cannot start " + program + ": No such file or directory") != std::string::npos);
}

TEST_CASE("if a rank fails and restarts remain, all ranks start again, and their logs continue") {
  const Scratch scratch;
  const int launcher =
      start_launcher(scratch.path(),
                     {"echo attempt $ATTEMPT; echo > $DIR/said; [ $ATTEMPT = 1 ] || sleep 1000",
                      "[ $ATTEMPT = 1 ] && exit 0; while [ ! -e $DIR/said ]; do sleep 0.01; done; exit 1"},
                     {.max_restarts = 2});
  CHECK(wait_for(launcher) == 0);
  CHECK(slurp(scratch.path() + "/1/rank.0/stdout") == "attempt 0\nattempt 1\n");
  const std::string notices = slurp(scratch.path() + "/notices");
  CHECK(notices.find("exited with code 1; restarting all ranks (1 of 2)\n") != std::string::npos);
  CHECK(slurp(scratch.path() + "/outcome").find(R"("restarts":[{"rank":1,)") != std::string::npos);
}

TEST_CASE("when no restart remains, the last failure is the outcome, and no process of any attempt remains") {
  const Scratch scratch;
  const int launcher = start_launcher(scratch.path(),
                                      {"sleep 1000 & echo $! > $DIR/child.$ATTEMPT; wait",
                                       "while [ ! -s $DIR/child.$ATTEMPT ]; do :; done; exit $((ATTEMPT + 3))"},
                                      {.max_restarts = 2});
  CHECK(wait_for(launcher) == kExitRankFailed);
  CHECK(slurp(scratch.path() + "/report").find("exited with code 5") != std::string::npos);
  std::vector<int> children;
  for (int attempt = 0; attempt <= 2; ++attempt) {
    children.push_back(pid_in(scratch.path() + "/child." + std::to_string(attempt)));
  }
  CHECK(all_gone(children));
}

TEST_CASE("an error of one attempt is not attributed to the next") {
  const Scratch scratch;
  const std::string error = R"({"kind": "env", "what": "the disk is on fire", "time": 1})";
  const int launcher = start_launcher(
      scratch.path(), {"[ $ATTEMPT = 1 ] && exit 7; echo '" + error + "' > $DIR/1/rank.0/error.json; exit 3"},
      {.max_restarts = 1});
  CHECK(wait_for(launcher) == kExitRankFailed);
  CHECK(slurp(scratch.path() + "/report").find("exited with code 7") != std::string::npos);
  CHECK(slurp(scratch.path() + "/1/rank.0/error.attempt-0.json").find("on fire") != std::string::npos);
}

TEST_CASE("a stopped rank that reports its progress is named once it is silent, and the run ends") {
  const Scratch scratch;
  const int launcher = start_launcher(scratch.path(), {"sleep 1000", "echo $$ > $DIR/pid.1; sleep 1000", "sleep 1000"},
                                      {.timeout_seconds = 0.5, .progress = true});
  const int victim = pid_in(scratch.path() + "/pid.1");
  kill(victim, SIGSTOP);
  REQUIRE(eventually([&] { return stopped(victim); }));
  std::ofstream(scratch.path() + "/still.1") << "\n";
  CHECK(wait_for(launcher) == kExitRankFailed);
  CHECK(all_gone({victim}));
  const std::string report = slurp(scratch.path() + "/report");
  CHECK(report.find("rank 1 (") != std::string::npos);
  CHECK(report.find("has made no progress for") != std::string::npos);
  CHECK(report.find("its process was stopped by SIGSTOP or a debugger") != std::string::npos);
}

TEST_CASE("SIGUSR1 is passed on to the ranks, which may end by it, and the exit code is 138") {
  const Scratch scratch;
  const int launcher = start_launcher(
      scratch.path(), {"trap 'echo saved; exit 0' USR1; echo $$ > $DIR/pid.0; while :; do sleep 0.01; done"});
  pid_in(scratch.path() + "/pid.0");
  kill(launcher, SIGUSR1);
  CHECK(wait_for(launcher) == 128 + SIGUSR1);
  CHECK(slurp(scratch.path() + "/1/rank.0/stdout") == "saved\n");
}

TEST_CASE("ranks that can be asked to end finish on their own, and the outcome has the last step") {
  const Scratch scratch;
  const std::string patient = "echo $$ > $DIR/pid.$RANK; while [ ! -e $DIR/stop ]; do sleep 0.01; done; sleep 0.1; ";
  SUBCASE("before the job's end") {
    const int launcher = start_launcher(scratch.path(), {patient + "echo 12 > $DIR/stopped", patient}, {.gate = true});
    pid_in(scratch.path() + "/pid.0");
    pid_in(scratch.path() + "/pid.1");
    kill(launcher, SIGTERM);
    CHECK(wait_for(launcher) == 128 + SIGTERM);
    CHECK(slurp(scratch.path() + "/outcome").find(R"("signal":"SIGTERM","stopped_at_step":12)") != std::string::npos);
  }
  SUBCASE("at its end, which the signal did not change") {
    const int launcher = start_launcher(scratch.path(), {patient, patient}, {.gate = true});
    pid_in(scratch.path() + "/pid.0");
    pid_in(scratch.path() + "/pid.1");
    kill(launcher, SIGTERM);
    CHECK(wait_for(launcher) == 0);
  }
}

TEST_CASE("a bound rank runs only on its CPUs, with its number of threads") {
  const Scratch scratch;
  const int cpu = read_topology().cpus.back().id;
  unsetenv("OMP_NUM_THREADS");
  const int launcher = start_launcher(
      scratch.path(), {"grep Cpus_allowed_list /proc/self/status; echo $OMP_NUM_THREADS $TRAINCTL_HOST_CORES"},
      {.bindings = {{{cpu}, 5}}});
  CHECK(wait_for(launcher) == 0);
  CHECK(slurp(scratch.path() + "/1/rank.0/stdout") == "Cpus_allowed_list:\t" + std::to_string(cpu) + "\n5 1\n");
}
