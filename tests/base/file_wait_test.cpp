// Reports of calls that a file system does not answer.
#include "engine/base/file_wait.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "tests/skip.h"

using namespace trainctl;

TEST_CASE("a wait that lasts longer than the timeout is reported once, with its file, whichever thread waits") {
  std::promise<std::string> reported;
  std::atomic<int> count = 0;
  const FileWatch watch(0.1, [&](const EnvError& error) {
    if (count++ == 0) reported.set_value(error.what());
  });
  std::atomic<bool> release = false;
  std::thread waiting([&] {
    const std::string path = "mount/a.bin";
    const FileWait wait(path);
    while (!release) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  CHECK(reported.get_future().get().starts_with("mount/a.bin: the file system has not responded for "));
  release = true;
  waiting.join();
  CHECK(count == 1);
}

TEST_CASE("waits that end in time, and threads that have ended, are not reported") {
  using Clock = std::chrono::steady_clock;
  constexpr double kTimeout = 0.2;
  std::atomic<bool> reported = false;
  Clock::duration longest{0};
  {
    const FileWatch watch(kTimeout, [&](const EnvError&) { reported = true; });
    const std::string path = "a.bin";
    for (int i = 0; i < 30; ++i) {
      const Clock::time_point begin = Clock::now();
      std::thread([&] { const FileWait wait(path); }).join();
      {
        const FileWait wait(path);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      longest = std::max(longest, Clock::now() - begin);
    }
  }
  if (std::chrono::duration<double>(longest).count() > kTimeout)
    return skip_test("the machine is too busy: a wait of 10 ms took longer than the timeout");
  CHECK_FALSE(reported);
  const FileWatch none(0, [&](const EnvError&) { reported = true; });
  const std::string path = "b.bin";
  const FileWait wait(path);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK_FALSE(reported);
}
