// The launcher's decisions, on made-up processes and a made-up clock.
#include "launcher/supervision.h"

#include <doctest/doctest.h>

#include <csignal>
#include <utility>

using namespace trainctl;

namespace {

/// Four ranks; records what is sent to them.
struct Scene {
  std::vector<std::pair<int, int>> sent;  // rank, signal
  Supervision supervision{4,
                          {.grace_seconds = 10, .settle_seconds = 0.5},
                          {.signal_rank = [this](int rank, int signal) { sent.emplace_back(rank, signal); }}};

  Scene() {
    for (int rank = 0; rank < 4; ++rank) supervision.started(rank, 0);
  }
  void exits(int rank, int code, double now) {
    supervision.ended(rank, {.end = {.pid = rank, .signaled = false, .code = code}}, now);
  }
  void killed(int rank, int signal, double now) {
    supervision.ended(rank, {.end = {.pid = rank, .signaled = true, .code = signal}}, now);
  }
  void complains(int rank, int about, double now) {
    supervision.ended(rank,
                      {.end = {.pid = rank, .signaled = false, .code = 3},
                       .error = RankError{.kind = ErrorKind::comm, .what = "", .instruction = "", .missing = {about}}},
                      now);
  }
  int count(int signal) const {
    int found = 0;
    for (const auto& [rank, what] : sent) found += what == signal ? 1 : 0;
    return found;
  }
};

}  // namespace

TEST_CASE("ranks that exit 0 leave the others alone") {
  Scene scene;
  for (int rank = 0; rank < 4; ++rank) {
    CHECK_FALSE(scene.supervision.done());
    scene.exits(rank, 0, rank);
  }
  CHECK(scene.supervision.done());
  CHECK(scene.sent.empty());
}

TEST_CASE("one failure asks every other rank to stop, and wakes those that are stopped") {
  Scene scene;
  scene.exits(2, 3, 5.0);
  CHECK(scene.sent == std::vector<std::pair<int, int>>{
                          {0, SIGTERM}, {1, SIGTERM}, {3, SIGTERM}, {0, SIGCONT}, {1, SIGCONT}, {3, SIGCONT}});
  CHECK(scene.supervision.deadline() == doctest::Approx(15.0));
}

TEST_CASE("ranks that do not stop are killed when grace is over, not before") {
  Scene scene;
  scene.killed(0, SIGSEGV, 1.0);
  scene.killed(1, SIGTERM, 1.1);
  scene.supervision.advance(10.9);
  CHECK(scene.count(SIGKILL) == 0);
  scene.supervision.advance(11.0);
  CHECK(scene.count(SIGKILL) == 2);
  CHECK_FALSE(scene.supervision.done());
  scene.killed(2, SIGKILL, 11.0);
  scene.killed(3, SIGKILL, 11.0);
  CHECK(scene.supervision.done());
}

TEST_CASE("a complaint about another rank waits a moment for that rank's own failure") {
  Scene scene;
  scene.complains(1, 3, 2.0);
  CHECK(scene.sent.empty());
  CHECK(scene.supervision.deadline() == doctest::Approx(2.5));
  SUBCASE("which stops all at once") {
    scene.killed(3, SIGKILL, 2.1);
    CHECK(scene.count(SIGTERM) == 2);
  }
  SUBCASE("and when it does not come, stops all") {
    scene.supervision.advance(2.5);
    CHECK(scene.count(SIGTERM) == 3);
  }
  SUBCASE("further complaints do not put it off") {
    scene.complains(2, 3, 2.4);
    CHECK(scene.supervision.deadline() == doctest::Approx(2.5));
  }
}

TEST_CASE("the first Ctrl-C asks, the second kills") {
  Scene scene;
  scene.supervision.interrupted(SIGINT, 1.0);
  CHECK(scene.count(SIGTERM) == 4);
  CHECK(scene.count(SIGKILL) == 0);
  scene.supervision.interrupted(SIGINT, 1.5);
  CHECK(scene.count(SIGKILL) == 4);
  CHECK(scene.supervision.interrupt_signal() == SIGINT);
}

TEST_CASE("a Ctrl-C while ranks are stopping after a failure does not start the grace again") {
  Scene scene;
  scene.exits(0, 1, 1.0);
  scene.supervision.interrupted(SIGINT, 5.0);
  CHECK(scene.supervision.deadline() == doctest::Approx(11.0));
  CHECK(scene.count(SIGTERM) == 3);
}

TEST_CASE("a rank that cannot be started stops those that were") {
  std::vector<int> asked;
  Supervision supervision(3, {}, {.signal_rank = [&](int rank, int signal) {
                            if (signal == SIGTERM) asked.push_back(rank);
                          }});
  supervision.started(0, 0);
  CHECK_FALSE(supervision.done());
  supervision.failed_to_start(1, "no such program", 0, 0);
  CHECK(asked == std::vector<int>{0});
  CHECK_FALSE(supervision.done());
  supervision.ended(0, {.end = {.pid = 1, .signaled = true, .code = SIGTERM}}, 0.1);
  CHECK(supervision.done());  // rank 2 is never started
}

TEST_CASE("what ends after it was asked to is marked so") {
  Scene scene;
  scene.exits(2, 3, 5.0);
  scene.killed(0, SIGTERM, 5.1);
  CHECK_FALSE(scene.supervision.reports()[2].asked);
  CHECK(scene.supervision.reports()[0].asked);
}
