// The guarantees of the launcher, tested with real processes.
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

using namespace trainctl;

namespace {

/// Writes its pid to DIR/pid.<RANK>, then sleeps; it has a child that sleeps too.
const char* const kSleeper = "sleep 1000 & echo $! > $DIR/child.$RANK; echo $$ > $DIR/pid.$RANK; wait";
/// The same, but ignores SIGTERM.
const char* const kDeaf =
    "trap '' TERM; sleep 1000 & echo $! > $DIR/child.$RANK; echo $$ > $DIR/pid.$RANK; while :; do wait; done";

std::vector<int> pids_of(const std::string& dir, int ranks) {
  std::vector<int> pids;
  for (int rank = 0; rank < ranks; ++rank) {
    pids.push_back(pid_in(dir + "/pid." + std::to_string(rank)));
    pids.push_back(pid_in(dir + "/child." + std::to_string(rank)));
  }
  return pids;
}

/// A process dies a moment after it was sent SIGKILL.
bool all_gone(const std::vector<int>& pids) {
  return eventually([&] { return std::none_of(pids.begin(), pids.end(), [](int pid) { return alive(pid); }); });
}

/// Runs the same program, without arguments, on each rank.
class OneProgram : public RankProgram {
 public:
  explicit OneProgram(std::string path) : path_(std::move(path)) {}
  ProcessCommand command(const RankPlace&, int) override { return {.argv = {path_}}; }

 private:
  const std::string path_;
};

/// One rank. Its end and the supervisor's next tick are in the loop's queue together.
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

// After the launcher itself had been stopped, it named the rank with the smallest number.
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

TEST_CASE("a launcher that is SIGKILLed leaves no rank and no child of a rank") {
  const Scratch scratch;
  const int launcher = start_launcher(scratch.path(), {kDeaf, kSleeper, kDeaf});
  const std::vector<int> pids = pids_of(scratch.path(), 3);
  CHECK(std::all_of(pids.begin(), pids.end(), [](int pid) { return alive(pid); }));
  kill(launcher, SIGKILL);
  CHECK(wait_for(launcher) == 128 + SIGKILL);
  CHECK(all_gone(pids));
}

// Ten grandchildren remained when the guardian was killed first.
TEST_CASE("a launcher whose guardian was killed starts another, and leaves no process when it is killed as well") {
  const Scratch scratch;
  const int launcher = start_launcher(
      scratch.path(),
      {"for i in 0 1 2 3 4 5 6 7 8 9; do sleep 1000 & echo $! > $DIR/child.$i; done; echo > $DIR/up; wait"});
  std::vector<int> grandchildren;
  for (int i = 0; i < 10; ++i) grandchildren.push_back(pid_in(scratch.path() + "/child." + std::to_string(i)));
  REQUIRE(eventually([&] { return slurp(scratch.path() + "/up") == "\n"; }));
  std::vector<int> guardians;
  REQUIRE(eventually([&] { return (guardians = children_named(launcher, "trainctl-guard")).size() == 2; }));
  SUBCASE("all guardians, one after the other") {
    for (const int guardian : guardians) {
      kill(guardian, SIGKILL);
      REQUIRE(eventually([&] {
        const std::vector<int> now = children_named(launcher, "trainctl-guard");
        return now.size() == 2 && std::find(now.begin(), now.end(), guardian) == now.end();
      }));
    }
  }
  SUBCASE("all guardians at once") {
    for (const int guardian : guardians) kill(guardian, SIGKILL);
    REQUIRE(eventually([&] {
      const std::vector<int> now = children_named(launcher, "trainctl-guard");
      return now.size() == 2 && now[0] != guardians[0] && now[1] != guardians[1];
    }));
  }
  SUBCASE("one guardian, and the launcher at the same moment") { kill(guardians[0], SIGKILL); }
  kill(launcher, SIGKILL);
  wait_for(launcher);
  CHECK(all_gone(grandchildren));
}

// The process that writes the logs is stopped, which has the same effect as a disk that does not respond.
TEST_CASE("a disk that hangs delays neither a rank's end nor Ctrl-C nor a time limit, and the run ends") {
  const Scratch scratch;
  const int launcher = start_launcher(
      scratch.path(),
      {"echo $$ > $DIR/pid.0; while [ ! -e $DIR/go ]; do echo some line; sleep 0.001; done; echo bye >&2; exit 3"},
      {.grace_seconds = 1, .timeout_seconds = 1, .progress = true});
  pid_in(scratch.path() + "/pid.0");
  const int writer = child_named(launcher, "trainctl-logs");
  kill(writer, SIGSTOP);
  const auto noticed = [&](const std::string& words) {
    return eventually([&] { return slurp(scratch.path() + "/notices").find(words) != std::string::npos; });
  };
  REQUIRE(noticed("does not respond; training continues"));
  int code = kExitRankFailed;
  std::string reported;
  SUBCASE("a rank's end") {
    std::ofstream(scratch.path() + "/go") << "x";
    reported = "exited with code 3";
  }
  SUBCASE("Ctrl-C") {
    kill(launcher, SIGINT);
    code = 130;
  }
  SUBCASE("a time limit") {
    std::ofstream(scratch.path() + "/still.0") << "x";
    reported = "has made no progress for";
  }
  CHECK(wait_for(launcher) == code);
  CHECK(noticed("bytes of the logs could not be written"));
  CHECK(all_gone({writer}));
  CHECK(slurp(scratch.path() + "/report").find(reported) != std::string::npos);
}

TEST_CASE("a disk that responds again receives the output that was kept in memory") {
  const Scratch scratch;
  const int launcher = start_launcher(
      scratch.path(), {"echo $$ > $DIR/pid.0; while [ ! -e $DIR/go ]; do echo some line; sleep 0.01; done; echo last"});
  pid_in(scratch.path() + "/pid.0");
  const int writer = child_named(launcher, "trainctl-logs");
  const auto noticed = [&](const std::string& words) {
    return eventually([&] { return slurp(scratch.path() + "/notices").find(words) != std::string::npos; });
  };
  kill(writer, SIGSTOP);
  REQUIRE(noticed("does not respond; training continues"));
  kill(writer, SIGCONT);
  REQUIRE(noticed("responds again: 0 bytes of the logs were lost"));
  std::ofstream(scratch.path() + "/go") << "x";
  CHECK(wait_for(launcher) == 0);
  CHECK(slurp(scratch.path() + "/1/rank.0/stdout").ends_with("some line\nlast\n"));
}

TEST_CASE("a hanging disk does not block a rank that writes without end, and the lost bytes are counted") {
  const Scratch scratch;
  const int launcher =
      start_launcher(scratch.path(), {"echo $$ > $DIR/pid.0; yes some line | head -c 60000000; echo > $DIR/through; "
                                      "while [ ! -e $DIR/go ]; do sleep 0.01; done; echo last"});
  const int writer = [&] {
    pid_in(scratch.path() + "/pid.0");
    return child_named(launcher, "trainctl-logs");
  }();
  kill(writer, SIGSTOP);
  const bool through = eventually([&] { return slurp(scratch.path() + "/through") == "\n"; });
  CHECK(through);
  kill(writer, SIGCONT);
  const auto noticed = [&](const std::string& words) {
    return eventually([&] { return slurp(scratch.path() + "/notices").find(words) != std::string::npos; });
  };
  CHECK(noticed("bytes of the logs were lost"));
  std::ofstream(scratch.path() + "/go") << "x";
  CHECK(wait_for(launcher) == 0);
  CHECK(slurp(scratch.path() + "/notices").find("responds again: 0 bytes") == std::string::npos);
  const std::string log = slurp(scratch.path() + "/1/rank.0/stdout");
  CHECK(log.size() < 60000000);
  CHECK(log.ends_with("\nlast\n"));
}

TEST_CASE("if the process that writes the logs is killed, another one continues, and the user is notified") {
  const Scratch scratch;
  const int launcher = start_launcher(
      scratch.path(), {"echo first; echo $$ > $DIR/pid.0; while [ ! -e $DIR/go ]; do sleep 0.01; done; echo last"});
  pid_in(scratch.path() + "/pid.0");
  REQUIRE(eventually([&] { return slurp(scratch.path() + "/1/rank.0/stdout") == "first\n"; }));
  kill(child_named(launcher, "trainctl-logs"), SIGKILL);
  REQUIRE(
      eventually([&] { return slurp(scratch.path() + "/notices").find("has been replaced") != std::string::npos; }));
  std::ofstream(scratch.path() + "/go") << "x";
  CHECK(wait_for(launcher) == 0);
  CHECK(slurp(scratch.path() + "/1/rank.0/stdout") == "first\nlast\n");
}

// Such processes were once killed silently, and the run counted as done: a command that ended in "python train.py &"
// had trained nothing.
TEST_CASE("a rank that exits with 0 and leaves processes running has failed: they are named and killed") {
  const Scratch scratch;
  std::string left;
  SUBCASE("in its group") { left = "sleep 1000 & echo $! > $DIR/child.0"; }
  SUBCASE("in a session of their own") {
    left = "setsid sh -c 'echo $$ > $DIR/child.0; exec sleep 1000' & until [ -s $DIR/child.0 ]; do sleep 0.01; done";
  }
  for (const bool explain : {true, false}) {
    std::filesystem::remove(scratch.path() + "/child.0");
    // The process has its own name only since exec.
    const std::string named = "; until [ \"$(cat /proc/$(cat $DIR/child.0)/comm)\" = sleep ]; do sleep 0.01; done";
    const int launcher = start_launcher(scratch.path(), {left + named + "; exit 0", "sleep 0.1"},
                                        {.grace_seconds = 1, .max_restarts = 3, .explain = explain});
    const int child = pid_in(scratch.path() + "/child.0");
    const int code = wait_for(launcher);
    CHECK(code == kExitRankFailed);
    CHECK(all_gone({child}));
    const std::string report = slurp(scratch.path() + "/report");
    CHECK(report.find("rank 0 (") != std::string::npos);
    CHECK(report.find("left processes running, which were killed: sleep (pid " + std::to_string(child)) !=
          std::string::npos);
    CHECK(slurp(scratch.path() + "/notices").find("restarting") ==
          std::string::npos);  // a restart would fail in the same way
  }
}

TEST_CASE("the launcher waits for processes that a rank leaves when it exits with 0, and notifies the user") {
  const Scratch scratch;
  const int launcher = start_launcher(
      scratch.path(), {"sh -c 'until [ -e $DIR/go ]; do sleep 0.01; done; echo trained > $DIR/model' & exit 0"},
      {.grace_seconds = 1000});
  CHECK(eventually([&] {
    return slurp(scratch.path() + "/notices").find("left processes running: sh (pid ") != std::string::npos;
  }));
  CHECK(alive(launcher));
  std::ofstream(scratch.path() + "/go") << "\n";
  CHECK(wait_for(launcher) == 0);
  CHECK(slurp(scratch.path() + "/model") == "trained\n");
}

TEST_CASE("a rank has failed if a process that it leaves fails, in its group or in another session") {
  const Scratch scratch;
  std::string start = "sh -c";
  SUBCASE("in its group") {}
  SUBCASE("in a session of its own") { start = "setsid sh -c"; }
  const int launcher = start_launcher(scratch.path(),
                                      {start + " 'touch $DIR/up; until [ -e $DIR/go ]; do sleep 0.01; done; exit 7' & "
                                               "until [ -e $DIR/up ]; do sleep 0.01; done; exit 0"},
                                      {.grace_seconds = 1000});
  CHECK(eventually(
      [&] { return slurp(scratch.path() + "/notices").find("left processes running: ") != std::string::npos; }));
  std::ofstream(scratch.path() + "/go") << "\n";
  CHECK(wait_for(launcher) == kExitRankFailed);
  CHECK(slurp(scratch.path() + "/report").find(") exited with code 7") != std::string::npos);
}

TEST_CASE("daemons of a rank that end before it do not stay zombies of the launcher") {
  const Scratch scratch;
  const int launcher = start_launcher(
      scratch.path(), {"(setsid sh -c 'echo $$ > $DIR/pid.0' &); until [ -e $DIR/go ]; do sleep 0.01; done"});
  const int daemon = pid_in(scratch.path() + "/pid.0");
  CHECK(eventually([&] { return !std::filesystem::exists("/proc/" + std::to_string(daemon)); }));
  std::ofstream(scratch.path() + "/go") << "\n";
  CHECK(wait_for(launcher) == 0);
}

TEST_CASE("a helper process that ends after its rank is not a failure") {
  const Scratch scratch;
  const int launcher =
      start_launcher(scratch.path(), {"mkfifo $DIR/pipe; cat $DIR/pipe & exec 3> $DIR/pipe; exit 0"});  // until its end
  CHECK(wait_for(launcher) == 0);
}

TEST_CASE("Ctrl-C ends a run that waits for processes that its ranks left") {
  const Scratch scratch;
  const int launcher =
      start_launcher(scratch.path(), {"sleep 1000 & echo $! > $DIR/child.0; exit 0"}, {.grace_seconds = 1000});
  REQUIRE(eventually(
      [&] { return slurp(scratch.path() + "/notices").find("left processes running") != std::string::npos; }));
  kill(launcher, SIGINT);
  CHECK(wait_for(launcher) == 128 + SIGINT);
  CHECK(all_gone({pid_in(scratch.path() + "/child.0")}));
}

TEST_CASE("processes that leave a rank's group are killed with the run, however it ends") {
  const Scratch scratch;
  const std::string daemon =
      "setsid sh -c 'echo $$ > $DIR/daemon.0; exec sleep 1000' & while [ ! -e $DIR/end ]; do sleep 0.01; done";
  const int launcher = start_launcher(scratch.path(), {daemon}, {.grace_seconds = 1});
  const int pid = pid_in(scratch.path() + "/daemon.0");
  SUBCASE("by itself") { std::ofstream(scratch.path() + "/end") << "\n"; }
  SUBCASE("by Ctrl-C") { kill(launcher, SIGINT); }
  SUBCASE("by SIGKILL of the launcher") { kill(launcher, SIGKILL); }
  wait_for(launcher);
  CHECK(all_gone({pid}));
}

TEST_CASE("20 launchers at once each get their own complete run") {
  const Scratch scratch;
  std::vector<int> launchers;
  for (int i = 0; i < 20; ++i) {
    launchers.push_back(start_launcher(scratch.path(), {"echo a", "echo b"}));
  }
  for (const int launcher : launchers) CHECK(wait_for(launcher) == 0);
  CHECK(list_runs(scratch.path()).size() == 20);
  for (const int run : list_runs(scratch.path())) {
    CHECK(slurp(RunDirectory(scratch.path(), run).rank_file(0, "stdout")) == "a\n");
    CHECK(slurp(RunDirectory(scratch.path(), run).rank_file(1, "stdout")) == "b\n");
  }
}

TEST_CASE("large output arrives whole and in order") {
  const Scratch scratch;
  const int launcher = start_launcher(scratch.path(), {"seq 1 300000", "seq 1 300000 >&2"});
  CHECK(wait_for(launcher) == 0);
  const std::string out = slurp(scratch.path() + "/1/rank.0/stdout");
  CHECK(std::count(out.begin(), out.end(), '\n') == 300000);
  CHECK(out.ends_with("\n299999\n300000\n"));
  CHECK(slurp(scratch.path() + "/1/rank.1/stderr") == out);
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
