// Tests the output of supervised ranks with real processes: it is complete, and a hanging disk delays no rank.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <fstream>

#include "engine/base/error.h"
#include "launcher/run_directory.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"
#include "tests/launcher/sleepers.h"

using namespace trainctl;

// Stopping the process that writes the logs has the same effect as a disk that does not respond.
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
