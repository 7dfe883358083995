// Tests the measurement of how long a rank has waited.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "engine/runtime/comm/event.h"

using namespace trainctl::comm;

namespace {

/// Waits for an event that never comes, and writes each waiting time that it is given.
[[noreturn]] void wait_in_vain(int pipe) {
  Event event;
  int idles = 0;
  Waiter(2, 1).wait(
      event, [&] { return idles == 20; },
      [&](double seconds) {
        ++idles;
        if (write(pipe, &seconds, sizeof seconds) != sizeof seconds) _exit(1);
      });
  _exit(0);
}

}  // namespace

TEST_CASE("time in which a waiting rank was itself stopped does not count: its peers may have been stopped too") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t pid = fork();
  if (pid == 0) wait_in_vain(ends[1]);
  close(ends[1]);
  std::vector<double> waited(1);
  REQUIRE(read(ends[0], &waited[0], sizeof(double)) == sizeof(double));
  kill(pid, SIGSTOP);
  int status = 0;
  REQUIRE(waitpid(pid, &status, WUNTRACED) == pid);
  REQUIRE(WIFSTOPPED(status));
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  kill(pid, SIGCONT);
  for (double seconds = 0; read(ends[0], &seconds, sizeof seconds) == sizeof seconds;) waited.push_back(seconds);
  close(ends[0]);
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(waited.size() == 20);
  for (size_t i = 1; i < waited.size(); ++i) {
    CHECK(waited[i] > waited[i - 1]);
    CHECK(waited[i] - waited[i - 1] < 1.001);
  }
}
