// Tests of the launcher's decisions, with simulated processes and a simulated clock.
#include "launcher/supervision.h"

#include <doctest/doctest.h>

#include <csignal>
#include <optional>
#include <utility>
#include <vector>

#include "launcher/first_cause.h"

using namespace trainctl;

namespace {

/// Four ranks, and a record of the signals that are sent to them.
struct SupervisionScene {
  using Limits = Supervision::Limits;
  static constexpr Limits kLimits = {.grace_seconds = 10, .settle_seconds = 0.5, .timeout_seconds = 60};

  std::vector<std::pair<int, int>> sent;  // rank, signal
  std::vector<bool> frozen = std::vector<bool>(4);
  std::vector<std::optional<RankError>> reported = std::vector<std::optional<RankError>>(4);
  int asked = 0;
  double clock = 0;
  Supervision supervision;

  explicit SupervisionScene(const Limits& limits = kLimits, bool by_gate = false)
      : supervision(4, limits, reach(by_gate)) {
    start(0);
  }
  Supervision::Reach reach(bool by_gate) {
    Supervision::Reach reach;
    reach.signal_rank = [this](int rank, int signal) { sent.emplace_back(rank, signal); };
    reach.is_frozen = [this](int rank) { return frozen[static_cast<size_t>(rank)]; };
    reach.error_of = [this](int rank) { return reported[static_cast<size_t>(rank)]; };
    if (by_gate) reach.ask_to_stop = [this] { ++asked; };
    return reach;
  }
  void start(double now) {
    for (int rank = 0; rank < 4; ++rank) supervision.started(rank, now);
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
  /// Looks at the ranks once a second until that time.
  void passes(double until) {
    for (; clock < until; clock += 1) supervision.advance(clock);
    supervision.advance(until);
  }
  void moves(int rank, uint64_t position, double now, bool waiting = false) {
    supervision.progressed(rank, {.position = position, .waiting = waiting}, now);
  }
  int count(int signal) const {
    int found = 0;
    for (const auto& [rank, what] : sent) found += what == signal ? 1 : 0;
    return found;
  }
  /// The ranks that were found silent.
  std::vector<int> silent() const {
    std::vector<int> found;
    for (int rank = 0; rank < 4; ++rank) {
      if (supervision.reports()[static_cast<size_t>(rank)].silent_seconds > 0) found.push_back(rank);
    }
    return found;
  }
};

constexpr SupervisionScene::Limits kTwoRestarts = {.grace_seconds = 10, .settle_seconds = 0.5, .max_restarts = 2};

}  // namespace

TEST_CASE("ranks that exit 0 do not affect the others") {
  SupervisionScene scene;
  for (int rank = 0; rank < 4; ++rank) {
    CHECK_FALSE(scene.supervision.done());
    scene.exits(rank, 0, rank);
  }
  CHECK(scene.supervision.done());
  CHECK(scene.sent.empty());
}

TEST_CASE("one failure asks every other rank to stop, and wakes those that are stopped") {
  SupervisionScene scene;
  scene.exits(2, 3, 5.0);
  CHECK(scene.sent == std::vector<std::pair<int, int>>{
                          {0, SIGTERM}, {1, SIGTERM}, {3, SIGTERM}, {0, SIGCONT}, {1, SIGCONT}, {3, SIGCONT}});
  CHECK(scene.supervision.deadline() == doctest::Approx(15.0));
}

TEST_CASE("ranks that do not stop are killed after grace, not before") {
  SupervisionScene scene;
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

TEST_CASE("an error about another rank waits a moment for that rank's own failure") {
  SupervisionScene scene;
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
  SupervisionScene scene;
  scene.supervision.interrupted(SIGINT, 1.0);
  CHECK(scene.count(SIGTERM) == 4);
  CHECK(scene.count(SIGKILL) == 0);
  scene.supervision.interrupted(SIGINT, 1.5);
  CHECK(scene.count(SIGKILL) == 4);
  CHECK(scene.supervision.interrupt_signal() == SIGINT);
}

TEST_CASE("a Ctrl-C while ranks are stopping after a failure does not start the grace again") {
  SupervisionScene scene;
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

TEST_CASE("a rank that ends after a request to stop is marked as stopped") {
  SupervisionScene scene;
  scene.exits(2, 3, 5.0);
  scene.killed(0, SIGTERM, 5.1);
  CHECK_FALSE(scene.supervision.reports()[2].asked);
  CHECK(scene.supervision.reports()[0].asked);
}

TEST_CASE("ranks that can be asked to end get no signal before grace is over, and two seconds more after that") {
  SupervisionScene scene(SupervisionScene::kLimits, true);
  scene.supervision.interrupted(SIGINT, 1.0);
  CHECK(scene.asked == 1);
  CHECK(scene.supervision.asking());
  CHECK(scene.sent.empty());
  scene.exits(0, 0, 2.0);
  scene.supervision.advance(10.9);
  CHECK(scene.sent.empty());
  scene.supervision.advance(11.0);
  CHECK(scene.count(SIGTERM) == 3);
  scene.supervision.advance(13.0);
  CHECK(scene.count(SIGKILL) == 3);
}

TEST_CASE("ranks asked to end get more time while they save to a slow disk, but none if the save makes no progress") {
  SupervisionScene scene(SupervisionScene::kLimits, true);
  scene.supervision.interrupted(SIGTERM, 1.0);
  scene.supervision.progressed(0, {.position = 1, .saving = true}, 9.0);
  scene.supervision.advance(18.0);
  CHECK(scene.sent.empty());
  scene.supervision.progressed(0, {.position = 1, .saving = true}, 18.0);
  scene.supervision.advance(19.0);
  CHECK(scene.count(SIGTERM) == 4);
}

TEST_CASE("a rank that fails while all are asked to end stops the others, within the deadline that they had") {
  SupervisionScene scene(SupervisionScene::kLimits, true);
  scene.supervision.interrupted(SIGTERM, 1.0);
  scene.killed(0, SIGSEGV, 10.5);
  CHECK(scene.count(SIGTERM) == 3);
  CHECK(scene.supervision.deadline() == doctest::Approx(13.0));
  CHECK_FALSE(scene.supervision.reports()[0].asked);
  CHECK(scene.supervision.ending_signal() == SIGTERM);
}

TEST_CASE("a second signal kills ranks that were asked to end") {
  SupervisionScene scene(SupervisionScene::kLimits, true);
  scene.supervision.interrupted(SIGUSR1, 1.0);
  scene.supervision.interrupted(SIGINT, 1.1);
  CHECK(scene.count(SIGKILL) == 4);
  CHECK(scene.supervision.ending_signal() == SIGUSR1);
}

TEST_CASE("programs get the user's SIGUSR1 unchanged, and SIGTERM after grace") {
  SupervisionScene scene;
  scene.supervision.interrupted(SIGUSR1, 1.0);
  CHECK(scene.count(SIGUSR1) == 4);
  CHECK(scene.count(SIGTERM) == 0);
  scene.killed(0, SIGUSR1, 1.1);
  CHECK(scene.supervision.reports()[0].asked);
  CHECK(scene.count(SIGTERM) == 0);
  scene.supervision.advance(11.0);
  CHECK(scene.count(SIGTERM) == 3);
}

TEST_CASE("a signal before all ranks have started stops the started ones, which would wait for the others") {
  int terms = 0, asked = 0;
  Supervision supervision(
      2, {},
      {.signal_rank = [&](int, int signal) { terms += signal == SIGTERM ? 1 : 0; }, .ask_to_stop = [&] { ++asked; }});
  supervision.started(0, 0);
  supervision.interrupted(SIGINT, 0.1);
  CHECK(terms == 1);
  CHECK(asked == 0);
}

TEST_CASE("a signal that comes after a failure does not hide it") {
  SupervisionScene scene;
  scene.exits(0, 1, 1.0);
  scene.supervision.interrupted(SIGINT, 1.5);
  CHECK(scene.supervision.interrupt_signal() == SIGINT);
  CHECK(scene.supervision.ending_signal() == 0);
}

TEST_CASE("a rank that reports the same position for the timeout is named and ends the run") {
  SupervisionScene scene;
  for (double now = 0; now < 100; now += 1) {
    for (const int rank : {0, 1, 3}) scene.moves(rank, static_cast<uint64_t>(now), now);
    scene.moves(2, 7, now);
    scene.supervision.advance(now);
    if (now < 60) CHECK(scene.sent.empty());
  }
  CHECK(scene.silent() == std::vector<int>{2});
  CHECK(scene.count(SIGTERM) == 4);
}

TEST_CASE("a rank that reports no progress is never silent") {
  SupervisionScene scene;
  scene.supervision.advance(1e6);
  CHECK(scene.sent.empty());
}

TEST_CASE(
    "of several silent ranks the cause is a frozen one, else one that does not wait, else the one silent longest") {
  SupervisionScene scene;
  // The ranks are looked at after 63 s, which finds all of them silent.
  for (const int rank : {0, 1}) scene.moves(rank, 1, 1.0, true);
  scene.moves(2, 1, 3.0);
  scene.moves(3, 1, 0.5, true);
  SUBCASE("stopped, although it waits") {
    scene.frozen[1] = true;
    scene.passes(100);
    CHECK(scene.silent() == std::vector<int>{1});
    CHECK(scene.supervision.reports()[1].frozen);
  }
  SUBCASE("does not wait") {
    scene.passes(100);
    CHECK(scene.silent() == std::vector<int>{2});
    CHECK(scene.supervision.reports()[0].waiting);
  }
  SUBCASE("all wait") {
    scene.moves(2, 2, 3.0, true);
    scene.passes(100);
    CHECK(scene.silent() == std::vector<int>{3});
  }
}

TEST_CASE("ranks that wait for each other have a moment to complain before they are considered silent") {
  SupervisionScene scene;
  for (int rank = 0; rank < 4; ++rank) scene.moves(rank, 1, 0, true);
  scene.passes(60.5);
  CHECK(scene.sent.empty());
  scene.complains(0, 1, 60.6);
  scene.passes(62.5);
  CHECK(scene.silent().empty());
  CHECK(scene.count(SIGTERM) == 3);
}

/// Limits for ranks 0 to 2, which do not wait for each other, and rank 3, which serves them.
SupervisionScene::Limits own_workers() {
  SupervisionScene::Limits limits = SupervisionScene::kLimits;
  limits.independent_ranks = 3;
  return limits;
}

TEST_CASE("of workers on their own the frozen one is killed, and those that wait because of it continue") {
  SupervisionScene scene(own_workers());
  scene.frozen[1] = true;
  const auto look_until = [&](double end) {
    for (; scene.clock < end; scene.clock += 0.025) {
      scene.moves(3, static_cast<uint64_t>(scene.clock * 1000), scene.clock);  // the server lives
      scene.supervision.advance(scene.clock);
    }
  };
  for (const int rank : {0, 1, 2}) scene.moves(rank, 1, 0, true);  // all stand still in a recv
  look_until(60.1);
  CHECK(scene.sent == std::vector<std::pair<int, int>>{{1, SIGKILL}});
  scene.killed(1, SIGKILL, 60.1);
  CHECK(scene.supervision.reports()[1].spared);
  look_until(62.5);  // it takes the others a while to move
  for (const int rank : {0, 2}) scene.moves(rank, 2, 62.5, true);
  look_until(100);
  CHECK(scene.sent.size() == 1);
}

TEST_CASE("two frozen workers on their own are both killed at once, before those that wait give up") {
  SupervisionScene scene(own_workers());
  scene.frozen[0] = scene.frozen[2] = true;
  for (const int rank : {0, 1, 2}) scene.moves(rank, 1, 0, rank != 2);
  scene.passes(61);
  CHECK(scene.sent == std::vector<std::pair<int, int>>{{2, SIGKILL}, {0, SIGKILL}});
}

TEST_CASE("while restarts remain, a failure stops all ranks, and a restart is due when all have ended") {
  SupervisionScene scene(kTwoRestarts);
  scene.exits(1, 1, 5.0);
  CHECK(scene.count(SIGTERM) == 3);
  CHECK_FALSE(scene.supervision.restart_due());
  for (const int rank : {0, 2, 3}) scene.killed(rank, SIGTERM, 5.1);
  CHECK(scene.supervision.restart_due());
  scene.supervision.restart();
  CHECK(scene.supervision.attempt() == 1);
  CHECK_FALSE(scene.supervision.stopping());
  CHECK_FALSE(scene.supervision.done());
  CHECK(scene.supervision.reports()[1].state == ProcessState::waiting);
  scene.start(6.0);
  for (int rank = 0; rank < 4; ++rank) scene.exits(rank, 0, 7.0);
  CHECK(scene.supervision.done());
  CHECK_FALSE(scene.supervision.restart_due());
}

TEST_CASE("there are at most max_restarts restarts") {
  SupervisionScene scene(kTwoRestarts);
  for (int attempt = 0; attempt <= 2; ++attempt) {
    CHECK(scene.supervision.attempt() == attempt);
    for (int rank = 0; rank < 4; ++rank) scene.exits(rank, 1, attempt);
    CHECK(scene.supervision.done());
    CHECK(scene.supervision.restart_due() == (attempt < 2));
    if (attempt == 2) break;
    scene.supervision.restart();
    scene.start(attempt + 0.5);
  }
}

TEST_CASE("a rank's state is reset for each attempt: its silence is counted from the start") {
  SupervisionScene scene({.timeout_seconds = 60, .max_restarts = 1});
  scene.moves(0, 1, 0);
  scene.passes(65);
  CHECK(scene.silent() == std::vector<int>{0});
  for (int rank = 0; rank < 4; ++rank) scene.killed(rank, SIGTERM, 65);
  scene.supervision.restart();
  scene.start(65);
  scene.moves(0, 1, 65);
  scene.passes(115);
  CHECK(scene.silent().empty());
}

TEST_CASE("time during which the launcher itself was stopped does not count as silence") {
  SupervisionScene scene;
  scene.moves(2, 7, 0);
  scene.passes(30);
  scene.clock = 1000;  // a container that was paused, a machine that stood still
  scene.passes(1028);
  CHECK(scene.sent.empty());
  scene.passes(1030);
  CHECK(scene.silent() == std::vector<int>{2});
}

TEST_CASE("the user's signal cancels the restart and ends the run") {
  SupervisionScene scene(kTwoRestarts);
  scene.exits(1, 1, 5.0);
  scene.supervision.interrupted(SIGINT, 5.1);
  for (const int rank : {0, 2, 3}) scene.killed(rank, SIGTERM, 5.2);
  CHECK(scene.supervision.done());
  CHECK_FALSE(scene.supervision.restart_due());
  CHECK(scene.supervision.ending_signal() == SIGINT);
}

TEST_CASE("a failure that would repeat in the same way is not followed by a restart") {
  SupervisionScene scene(kTwoRestarts);
  SUBCASE("the job file is wrong") {
    scene.supervision.ended(0,
                            {.end = {.pid = 0, .signaled = false, .code = 2},
                             .error = RankError{.kind = ErrorKind::spec, .what = "", .instruction = "", .missing = {}}},
                            1.0);
    for (const int rank : {1, 2, 3}) scene.killed(rank, SIGTERM, 1.1);
  }
  SUBCASE("a program cannot be started") {
    Supervision two(1, kTwoRestarts, {});
    two.failed_to_start(0, "no such program", 0, 0);
    CHECK(two.done());
    CHECK_FALSE(two.restart_due());
    return;
  }
  CHECK(scene.supervision.done());
  CHECK_FALSE(scene.supervision.restart_due());
}

TEST_CASE("ranks with a loss of nan end by themselves and are not restarted") {
  SupervisionScene scene({.grace_seconds = 10, .settle_seconds = 0.5, .timeout_seconds = 60, .max_restarts = 2});
  for (int rank = 0; rank < 4; ++rank) {
    RankReport report;
    report.end = {.pid = rank, .signaled = false, .code = 5};
    report.error.emplace();
    report.error->kind = ErrorKind::loss;
    scene.supervision.ended(rank, std::move(report), 1.0 + 0.1 * rank);
  }
  CHECK(scene.sent.empty());
  CHECK(scene.supervision.done());
  CHECK_FALSE(scene.supervision.restart_due());
}

namespace {

constexpr Supervision::Limits kUnexplained = {
    .grace_seconds = 10, .settle_seconds = 0.5, .kill_seconds = 15, .ranks_explain = false};

}  // namespace

TEST_CASE("after a failure that a program does not explain the launcher looks which others fail at the same time") {
  SupervisionScene scene(kUnexplained);
  scene.exits(1, 1, 5.0);
  CHECK(scene.sent.empty());
  CHECK(scene.supervision.may_start());
  scene.exits(0, 1, 5.4);
  scene.supervision.advance(5.6);
  CHECK(scene.sent.empty());  // each failure begins the wait anew
  scene.supervision.advance(6.0);
  CHECK(scene.count(SIGTERM) == 2);
  CHECK_FALSE(scene.supervision.may_start());
  for (const int rank : {2, 3}) scene.killed(rank, SIGTERM, 6.1);
  CHECK(scene.supervision.reports()[0].asked == false);
  CHECK(scene.supervision.reports()[2].asked);
}

TEST_CASE("the wait for further failures has an end, and is over when all ranks have ended") {
  SupervisionScene scene(kUnexplained);
  scene.exits(0, 1, 5.0);
  for (const int rank : {1, 2, 3}) scene.exits(rank, 1, 5.1);
  CHECK(scene.supervision.done());
  SupervisionScene slow({.settle_seconds = 10, .ranks_explain = false});
  slow.exits(0, 1, 5);
  for (int rank = 1; rank < 3; ++rank) {
    slow.exits(rank, 1, 5 + rank * 9.0);
    slow.supervision.advance(5 + rank * 9.0);
  }
  CHECK(slow.sent.empty());
  slow.supervision.advance(100);
  CHECK(slow.count(SIGTERM) == 1);
}

TEST_CASE("a rank that does not end after SIGKILL is abandoned and not restarted") {
  SupervisionScene scene({.grace_seconds = 10, .kill_seconds = 15, .max_restarts = 1});
  scene.exits(1, 1, 5.0);
  for (const int rank : {2, 3}) scene.killed(rank, SIGTERM, 5.1);
  scene.passes(15);
  CHECK(scene.count(SIGKILL) == 1);
  scene.passes(29);
  CHECK_FALSE(scene.supervision.done());
  scene.passes(31);
  CHECK(scene.supervision.done());
  CHECK(scene.supervision.stuck() == std::vector<int>{0});
  CHECK_FALSE(scene.supervision.restart_due());
}

TEST_CASE("a rank that does not end has failed by the error that it reported, not by silence") {
  SupervisionScene scene({.grace_seconds = 10, .timeout_seconds = 60, .kill_seconds = 15});
  scene.reported[2] = {.kind = ErrorKind::env, .what = "a.jpg: the file system has not responded", .instruction = ""};
  for (const int rank : {0, 1, 3}) scene.moves(rank, 1, 0, true);
  scene.moves(2, 1, 0);
  scene.passes(61);
  CHECK(scene.supervision.reports()[2].silent_seconds > 0);
  for (const int rank : {0, 1, 3}) scene.killed(rank, SIGTERM, 61);
  scene.passes(100);
  REQUIRE(scene.supervision.stuck() == std::vector<int>{2});
  const Cause cause = find_first_cause(scene.supervision.reports());
  CHECK(cause.rank == 2);
  CHECK(cause.kind == Cause::Kind::failed);
  CHECK(scene.supervision.reports()[2].error->what == "a.jpg: the file system has not responded");
}
