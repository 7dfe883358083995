// Tests how the phases until the first step are recorded and passed to another process.
#include "engine/base/start_up.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "engine/base/error.h"

using namespace trainctl;

namespace {

void nap() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

std::vector<std::string> names(const std::vector<StartUpClock::Phase>& phases) {
  std::vector<std::string> list;
  for (const auto& phase : phases) list.push_back(phase.name);
  return list;
}

}  // namespace

TEST_CASE("each phase is the time since the last one, so they add up to the whole time") {
  const auto begin = std::chrono::steady_clock::now();
  StartUpClock clock;
  nap();
  clock.ended("data");
  nap();
  clock.ended_together("NCCL");
  nap();
  clock.ended("data");  // phases of the same name add up in the place of the first
  clock.stop();
  nap();
  clock.ended("later");
  const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  CHECK(names(clock.phases()) == std::vector<std::string>{"data", "NCCL"});
  CHECK(clock.phases()[0].ns >= 4'000'000);
  CHECK(clock.phases()[1].ns >= 2'000'000);
  CHECK(clock.seconds() == doctest::Approx((clock.phases()[0].ns + clock.phases()[1].ns) / 1e9));
  CHECK(clock.seconds_alone() == doctest::Approx(clock.phases()[0].ns / 1e9));
  CHECK(clock.seconds() <= passed - 0.002);
}

TEST_CASE("work in parallel with the phases is not counted twice") {
  StartUpClock clock, thread;
  nap();
  thread.ended("CUDA");
  clock.ended("data");
  clock.add_concurrent(thread);
  CHECK(names(clock.phases()) == std::vector<std::string>{"data"});
  CHECK(names(clock.beside()) == std::vector<std::string>{"CUDA"});
}

TEST_CASE("another process continues the clock where the last phase ended") {
  StartUpClock launcher;
  launcher.ended("devices");
  launcher.ended("plan");
  nap();
  StartUpClock rank = StartUpClock::of_text(launcher.to_text());
  CHECK(rank.to_text() == launcher.to_text());
  rank.ended("launch");
  CHECK(names(rank.phases()) == std::vector<std::string>{"devices", "plan", "launch"});
  CHECK(rank.phases()[2].ns >= 2'000'000);
  CHECK(StartUpClock::of_text(StartUpClock().to_text()).phases().empty());
  for (const char* wrong : {"", "x", "1x:", "1:a", "1:a=", "1:a=1,b", ":a=1"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(StartUpClock::of_text(wrong), EnvError);
  }
}
