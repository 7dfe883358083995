// Causes and consequences.
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

TEST_CASE("no failure has no cause") { CHECK(find_first_cause({done(1), done(2)}).kind == Cause::Kind::none); }

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

TEST_CASE("ranks that we stopped are not the cause") {
  const Cause cause = find_first_cause({killed(SIGTERM, 0.5, true), exited(3, 1.0), killed(SIGKILL, 2.0, true)});
  CHECK(cause.rank == 1);
}

TEST_CASE("a rank that others waited for in vain is the cause: it is silent") {
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

TEST_CASE("the rank that the launcher found silent is the cause, complaints about it are not") {
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
