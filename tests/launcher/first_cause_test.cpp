// find_first_cause: which of several failed ranks is the cause of a failed run, and which failures only follow from it.
#include "launcher/first_cause.h"

#include <doctest/doctest.h>

#include <csignal>

using namespace trainctl;

namespace {

RankReport base(double time) {
  RankReport report;
  report.state = ProcessState::ended;
  report.time = time;
  return report;
}
RankReport done(double time) { return base(time); }
RankReport killed(int signal, double time, bool asked = false) {
  RankReport report = base(time);
  report.end = {1, true, signal};
  report.asked = asked;
  return report;
}
RankReport exited(int code, double time) {
  RankReport report = base(time);
  report.end = {1, false, code};
  return report;
}
RankReport error(ErrorKind kind, double time, std::vector<int> missing = {}) {
  RankReport report = exited(kind == ErrorKind::bug ? 4 : 3, time + 0.01);
  report.error = RankError{.kind = kind, .what = "", .instruction = "", .missing = std::move(missing), .time = time};
  return report;
}

}  // namespace

TEST_CASE("without a failure there is no cause") {
  CHECK(find_first_cause({done(1), done(2)}).kind == Cause::Kind::none);
}

TEST_CASE("a death by signal is the cause although the complaints about it were seen first") {
  const Cause cause =
      find_first_cause({error(ErrorKind::comm, 1.0, {2}), error(ErrorKind::comm, 1.1, {2}), killed(SIGKILL, 1.5)});
  CHECK(cause.kind == Cause::Kind::failed);
  CHECK(cause.rank == 2);
}

TEST_CASE("of two own failures the earlier one counts, by the rank's own timestamp if it left one") {
  CHECK(find_first_cause({error(ErrorKind::env, 2.0), error(ErrorKind::bug, 1.0)}).rank == 1);
  CHECK(find_first_cause({exited(1, 1.0), error(ErrorKind::bug, 2.0)}).rank == 0);
}

TEST_CASE("ranks that the launcher stopped are not the cause") {
  const Cause cause = find_first_cause({killed(SIGTERM, 0.5, true), exited(3, 1.0), killed(SIGKILL, 2.0, true)});
  CHECK(cause.rank == 1);
}

TEST_CASE("a silent rank for which the others waited in vain is the cause") {
  const Cause cause = find_first_cause(
      {error(ErrorKind::comm, 1.0, {1}), killed(SIGTERM, 1.6, true), error(ErrorKind::comm, 1.1, {1})});
  CHECK(cause.kind == Cause::Kind::silent);
  CHECK(cause.rank == 1);
  CHECK(cause.complaining_rank == 0);
}

TEST_CASE("a rank that ended while others waited for it is the cause, although it exited 0") {
  const Cause cause = find_first_cause({done(0.5), error(ErrorKind::comm, 1.0, {0})});
  CHECK(cause.kind == Cause::Kind::ended_early);
  CHECK(cause.rank == 0);
}

TEST_CASE("a chain of complaints leads to the rank at its end") {
  const Cause cause =
      find_first_cause({error(ErrorKind::comm, 1.0, {1}), error(ErrorKind::comm, 1.1, {2}), killed(SIGKILL, 12, true)});
  CHECK(cause.kind == Cause::Kind::silent);
  CHECK(cause.rank == 2);
  CHECK(cause.complaining_rank == 1);
}

TEST_CASE("complaints in a circle blame the first") {
  const Cause cause = find_first_cause({error(ErrorKind::comm, 1.2, {1}), error(ErrorKind::comm, 1.1, {0})});
  CHECK(cause.kind == Cause::Kind::failed);
  CHECK(cause.rank == 1);
}

TEST_CASE("of complaints in a circle the rank that is ahead of the others is the cause: it skipped a call") {
  std::vector<RankReport> reports = {error(ErrorKind::comm, 1.0, {2}), error(ErrorKind::comm, 1.1, {2}),
                                     error(ErrorKind::comm, 1.2, {0})};
  for (RankReport& report : reports) report.error->step = 3;
  reports[0].error->instruction_index = reports[1].error->instruction_index = 10;
  reports[2].error->instruction_index = 12;
  CHECK(find_first_cause(reports).rank == 2);
  reports[0].error->step = 4;
  CHECK(find_first_cause(reports).rank == 0);
}

TEST_CASE("a complaint at the end of a chain that names no rank is the cause") {
  CHECK(find_first_cause({error(ErrorKind::comm, 1.0, {1}), error(ErrorKind::comm, 1.1)}).rank == 1);
}

TEST_CASE("a complaint that names no rank is the cause itself") {
  CHECK(find_first_cause({error(ErrorKind::comm, 1.0), done(2)}).rank == 0);
  CHECK(find_first_cause({error(ErrorKind::comm, 1.0, {99}), done(2)}).rank == 0);
}

TEST_CASE("a rank that could not be started is the cause") {
  RankReport missing = base(1.0);
  missing.state = ProcessState::failed_to_start;
  CHECK(find_first_cause({killed(SIGTERM, 1.1, true), missing}).rank == 1);
}

TEST_CASE("a rank that the launcher found silent is the cause, and errors of ranks that lost it are not") {
  RankReport silent = killed(SIGTERM, 61.0, true);
  silent.silent_seconds = 60;
  const Cause cause = find_first_cause({error(ErrorKind::comm, 60.5, {1}), killed(SIGTERM, 61.0, true), silent});
  CHECK(cause.kind == Cause::Kind::silent);
  CHECK(cause.rank == 2);
  CHECK(cause.complaining_rank == -1);
}

TEST_CASE("of several ranks that one rank waits for, the frozen one is the cause, then the one that does not wait") {
  const auto running = [](bool waiting, bool frozen) {
    RankReport report = killed(SIGTERM, 61.0, true);
    report.reports_progress = true;
    report.waiting = waiting;
    report.frozen = frozen;
    return report;
  };
  const RankReport complaint = error(ErrorKind::comm, 60.0, {1, 2, 3});
  CHECK(find_first_cause({complaint, running(true, false), running(true, true), running(false, false)}).rank == 2);
  CHECK(find_first_cause({complaint, running(true, false), running(true, false), running(false, false)}).rank == 3);
  // Rank 1 waits too, but had no time to report that it waits for rank 2.
  const Cause cause =
      find_first_cause({error(ErrorKind::comm, 60.0, {1}), running(true, false), running(false, false), done(1.0)});
  CHECK(cause.rank == 2);
  CHECK(cause.kind == Cause::Kind::silent);
}

namespace {

/// The report of a rank of a program that does not explain its failures.
RankReport of_program(RankReport report, bool blames = false) {
  report.ranks_explain = false;
  report.blames_peer = blames;
  return report;
}
RankReport still_running(bool frozen = false) {
  RankReport report = of_program(killed(SIGTERM, 9.0, true));
  report.frozen = frozen;
  return report;
}

}  // namespace

TEST_CASE("the only rank of a program that still ran when all others failed is the cause") {
  const RankReport failed = of_program(exited(1, 5.0));
  const Cause cause = find_first_cause({failed, failed, still_running(), failed});
  CHECK(cause.kind == Cause::Kind::silent);
  CHECK(cause.rank == 2);
  CHECK(cause.complaining_rank == -1);
  SUBCASE("unless one of them failed on its own") {
    CHECK(find_first_cause({failed, of_program(killed(SIGSEGV, 5.1)), still_running(), failed}).rank == 1);
    RankReport own = of_program(exited(1, 5.2));
    own.error = RankError{.kind = ErrorKind::program, .what = "ValueError", .time = 5.0};
    CHECK(find_first_cause({failed, failed, still_running(), own}).rank == 3);
  }
  SUBCASE("an abort and a broken pipe are no failures of their own") {
    CHECK(find_first_cause({failed, of_program(killed(SIGABRT, 5.1)), still_running(), failed}).rank == 2);
    CHECK(find_first_cause({failed, of_program(killed(SIGPIPE, 5.1)), still_running(), failed}).rank == 2);
  }
}

TEST_CASE("a rank of a program that had ended with 0 before more others failed is the cause") {
  const RankReport failed = of_program(exited(1, 5.0));
  const Cause cause = find_first_cause({failed, failed, of_program(done(4.0)), failed});
  CHECK(cause.kind == Cause::Kind::ended_early);
  CHECK(cause.rank == 2);
  SUBCASE("but not if it ended later, or if most ended well") {
    CHECK(find_first_cause({failed, failed, of_program(done(5.1)), failed}).kind == Cause::Kind::failed);
    const RankReport well = of_program(done(4.0));
    CHECK(find_first_cause({well, failed, well, well}).rank == 1);
  }
}

TEST_CASE("one rank of a program that fails alone is the cause while others run") {
  const Cause cause = find_first_cause({still_running(), of_program(exited(3, 5.0)), still_running()});
  CHECK(cause.kind == Cause::Kind::failed);
  CHECK(cause.rank == 1);
  CHECK(find_first_cause({of_program(exited(3, 5.0)), still_running()}).rank == 0);
}

TEST_CASE("if a rank of a program blames its peer, the cause is the only rank that it can mean") {
  const Cause hangs = find_first_cause({of_program(exited(1, 5.0), true), still_running()});
  CHECK(hangs.kind == Cause::Kind::silent);
  CHECK(hangs.rank == 1);
  const Cause left = find_first_cause({of_program(done(4.0)), of_program(exited(1, 5.0), true)});
  CHECK(left.kind == Cause::Kind::ended_early);
  CHECK(left.rank == 0);
}

TEST_CASE("of ranks of a program the one that blames no other is the cause, although it ended later") {
  const RankReport blames = of_program(exited(1, 5.0), true);
  CHECK(find_first_cause({blames, of_program(exited(1, 5.3)), blames}).rank == 1);
}

TEST_CASE("a stopped rank of a program is the cause when others fail") {
  const Cause cause = find_first_cause({of_program(exited(1, 5.0)), still_running(), still_running(true)});
  CHECK(cause.kind == Cause::Kind::silent);
  CHECK(cause.rank == 2);
}

TEST_CASE("a rank of a program that reported its error before the others failed is the cause, although it ended last") {
  RankReport slow = of_program(killed(SIGTERM, 9.0, true));
  slow.error = RankError{.kind = ErrorKind::program, .what = "ValueError", .time = 4.9};
  slow.failed_unasked = true;
  CHECK(find_first_cause({of_program(exited(1, 5.0)), of_program(exited(1, 5.0)), slow}).rank == 2);
  slow.failed_unasked = false;  // raised by our SIGTERM
  slow.error->time = 8.9;
  CHECK(find_first_cause({of_program(exited(1, 5.0), true), of_program(exited(2, 5.0)), slow}).rank == 1);
}

TEST_CASE("a broken link between hosts is the cause of complaints about ranks, but not of a rank's own failure") {
  std::vector<RankReport> reports = {error(ErrorKind::comm, 1.0, {2}), error(ErrorKind::comm, 1.1),
                                     killed(SIGTERM, 1.6, true), killed(SIGTERM, 1.6, true)};
  reports[0].lost_link = reports[1].lost_link = LostLink{"a", "b", "a cannot connect to 10.0.0.3: timed out", ""};
  CHECK(find_first_cause(reports).kind == Cause::Kind::link);
  CHECK(find_first_cause(reports).rank == 0);
  reports[3] = killed(SIGSEGV, 1.05);
  CHECK(find_first_cause(reports).kind == Cause::Kind::failed);
  CHECK(find_first_cause(reports).rank == 3);
}

TEST_CASE("a broken link between hosts is the cause if ranks of a program failed without stating a reason") {
  std::vector<RankReport> reports = {exited(1, 1.0), exited(1, 1.1), killed(SIGTERM, 1.6, true)};
  for (RankReport& report : reports) report.ranks_explain = false;
  reports[0].lost_link = reports[1].lost_link = LostLink{"a", "b", "a cannot connect to 10.0.0.3: timed out", ""};
  CHECK(find_first_cause(reports).kind == Cause::Kind::link);
  reports[1].end = {1, true, SIGSEGV};
  CHECK(find_first_cause(reports).kind == Cause::Kind::failed);
  CHECK(find_first_cause(reports).rank == 1);
}
