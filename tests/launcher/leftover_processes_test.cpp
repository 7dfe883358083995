// Tests that no process of a run outlives it: children of ranks, daemons, and ranks of a launcher that was killed.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "engine/base/error.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"
#include "tests/launcher/sleepers.h"

using namespace trainctl;

TEST_CASE("a launcher that is SIGKILLed leaves no rank and no child of a rank") {
  const Scratch scratch;
  const int launcher = start_launcher(scratch.path(), {kDeaf, kSleeper, kDeaf});
  const std::vector<int> pids = pids_of(scratch.path(), 3);
  CHECK(std::all_of(pids.begin(), pids.end(), [](int pid) { return alive(pid); }));
  kill(launcher, SIGKILL);
  CHECK(wait_for(launcher) == 128 + SIGKILL);
  CHECK(all_gone(pids));
}

// A regression: ten grandchildren remained when the guardian was killed first.
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

// A regression: such processes were killed silently, and the run counted as done. A command that ended in "python
// train.py &" had then trained nothing.
TEST_CASE("a rank that exits with 0 and leaves processes running has failed: they are named and killed") {
  const Scratch scratch;
  std::string left;
  SUBCASE("in its group") { left = "sleep 1000 & echo $! > $DIR/child.0"; }
  SUBCASE("in a session of their own") {
    left = "setsid sh -c 'echo $$ > $DIR/child.0; exec sleep 1000' & until [ -s $DIR/child.0 ]; do sleep 0.01; done";
  }
  for (const bool explain : {true, false}) {
    std::filesystem::remove(scratch.path() + "/child.0");
    // The process has its own name only after exec, so the script waits for that.
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
