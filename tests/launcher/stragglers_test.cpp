// Tests that processes are found by the mark in their environment.
#include "launcher/stragglers.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

// A regression: during exec the environment of a process is empty for a moment, so the process seemed to have no mark.
TEST_CASE("a process in the middle of exec is found too") {
  const Scratch scratch;
  const std::string script = scratch.path() + "/again.sh";
  std::ofstream(script) << "exec sh \"$0\"\n";
  for (int i = 0; i < 100; ++i) {
    const std::string mark = random_mark();
    const pid_t tests = getpid(), pid = fork();
    if (pid == 0) {
      die_with(tests);
      const auto [name, value] = mark_variable(mark);
      setenv(name.c_str(), value.c_str(), 1);
      execl("/bin/sh", "sh", script.c_str(), nullptr);
      _exit(127);
    }
    REQUIRE(
        eventually([&] { return slurp("/proc/" + std::to_string(pid) + "/environ").find(mark) != std::string::npos; }));
    kill_leftovers(mark.c_str());
    siginfo_t end{};
    CHECK(eventually(
        [&] { return waitid(P_PID, static_cast<id_t>(pid), &end, WEXITED | WNOHANG) == 0 && end.si_pid == pid; }));
    REQUIRE(end.si_status == SIGKILL);
  }
}
