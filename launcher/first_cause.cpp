// Finds which rank failed first when several did, and distinguishes it from ranks that failed because of it.
#include "launcher/first_cause.h"

#include <algorithm>
#include <csignal>
#include <functional>
#include <utility>

namespace trainctl {
namespace {

bool complains(const RankReport& report) { return report.error && report.error->kind == ErrorKind::comm; }

/// Returns whether a rank failed on its own: not stopped by the launcher, and not because of another rank.
bool own_failure(const RankReport& report) {
  if (report.state == ProcessState::failed_to_start) return true;
  if (!report.failed() || complains(report)) return false;
  return !report.asked || report.error.has_value();
}

int earliest(const std::vector<RankReport>& reports, const std::function<bool(const RankReport&)>& counts) {
  int found = -1;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (!counts(reports[rank])) continue;
    if (found < 0 || failure_time(reports[rank]) < failure_time(reports[static_cast<size_t>(found)])) {
      found = static_cast<int>(rank);
    }
  }
  return found;
}

/// Rates how likely it is that others wait for this rank:
///   3 its process is stopped          2 it is not waiting itself
///   1 it waits for an unknown rank    0 it waits for known ranks
int suspicion(const RankReport& report) {
  if (complains(report)) return 0;
  if (report.frozen) return 3;
  return report.waiting ? 1 : 2;
}

/// The most suspicious rank that `report` waited for; -1: it names none.
int awaited(const std::vector<RankReport>& reports, const RankReport& report) {
  int found = -1;
  for (const int rank : report.error->missing) {
    if (rank < 0 || rank >= static_cast<int>(reports.size())) continue;
    const auto& candidate = reports[static_cast<size_t>(rank)];
    if (found < 0 || suspicion(candidate) > suspicion(reports[static_cast<size_t>(found)])) found = rank;
  }
  return found;
}

/// For a chain of complaints that ends at a rank that waits too, but has not yet reported for which: the only rank
/// that is frozen, or that runs and reports progress but does not wait. -1: there is none.
int idle_rank(const std::vector<RankReport>& reports) {
  int found = -1;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const RankReport& report = reports[rank];
    if (!report.reports_progress || suspicion(report) < 2) continue;
    if (found < 0 || suspicion(report) > suspicion(reports[static_cast<size_t>(found)])) found = static_cast<int>(rank);
  }
  return found;
}

/// For ranks that wait for each other in a circle: the one ahead of the others has skipped a call.
int furthest(const std::vector<RankReport>& reports, const std::vector<int>& ranks) {
  const auto place = [&](int rank) {
    const RankError& error = *reports[static_cast<size_t>(rank)].error;
    return std::pair(error.step, error.instruction_index);
  };
  return *std::max_element(ranks.begin(), ranks.end(), [&](int a, int b) { return place(a) < place(b); });
}

bool by_time(const RankReport& a, const RankReport& b) { return failure_time(a) < failure_time(b); }

void sort_by_time(const std::vector<RankReport>& reports, std::vector<int>& ranks) {
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return by_time(reports[static_cast<size_t>(a)], reports[static_cast<size_t>(b)]);
  });
}

/// Programs may also abort, or write to closed connections, because of another rank.
bool clearly_own(const RankReport& report) {
  if (report.state == ProcessState::failed_to_start || report.out_of_memory || !report.end.left.empty()) return true;
  if (report.blames_peer) return false;
  if (report.end.signaled) return report.end.code != SIGABRT && report.end.code != SIGPIPE;
  return report.error.has_value();
}

/// The first of `ranks` for which `counts` returns true; -1: none.
int first_of(const std::vector<RankReport>& reports, const std::vector<int>& ranks,
             const std::function<bool(const RankReport&)>& counts) {
  const auto found =
      std::find_if(ranks.begin(), ranks.end(), [&](int rank) { return counts(reports[static_cast<size_t>(rank)]); });
  return found == ranks.end() ? -1 : *found;
}

bool has_lost_link(const RankReport& report) { return report.lost_link.has_value(); }

/// The rank to blame if the ranks run a program of the user (`command`), which does not report why it failed: a rank
/// with an error of its own, else one that lost a link, else a frozen one, else one that others wait for or that ended
/// before the failure.
Cause cause_of_program(const std::vector<RankReport>& reports) {
  const Course course = course_of(reports);
  if (course.failed.empty()) return {};
  if (const int rank = first_of(reports, course.failed, clearly_own); rank >= 0) return {Cause::Kind::failed, rank, -1};
  if (const int rank = first_of(reports, course.failed, has_lost_link); rank >= 0) return {Cause::Kind::link, rank, -1};
  const auto frozen = [](const RankReport& report) { return report.frozen; };
  if (const int rank = first_of(reports, course.running, frozen); rank >= 0) return {Cause::Kind::silent, rank, -1};

  const auto blames = [](const RankReport& report) { return report.blames_peer; };
  const int blaming = first_of(reports, course.failed, blames);
  const int other = first_of(reports, course.failed, std::not_fn(blames));
  const bool all_blame = other < 0;
  if (blaming >= 0 && other >= 0) return {Cause::Kind::failed, other, -1};

  const bool several = course.failed.size() > 1;
  if (course.ended.empty() && course.running.size() == 1 && (several || all_blame)) {
    return {Cause::Kind::silent, course.running[0], -1};
  }
  const bool few_ended = several && course.ended.size() < course.failed.size() && course.running.empty();
  if (!course.ended.empty() && (few_ended || all_blame)) return {Cause::Kind::ended_early, course.ended[0], -1};
  return {Cause::Kind::failed, course.failed[0], -1};
}

}  // namespace

double failure_time(const RankReport& report) {
  return report.error && report.error->time > 0 ? report.error->time : report.time;
}

/// Divides the ranks into three lists: the ranks that failed by themselves, the ranks that ended before the first
/// failure, and the ranks that still ran when they were asked to stop.
Course course_of(const std::vector<RankReport>& reports) {
  Course course;
  const auto unasked = [](const RankReport& report) { return report.failed() && !report.asked; };
  if (std::none_of(reports.begin(), reports.end(), unasked)) return course;
  for (size_t i = 0; i < reports.size(); ++i) {
    const RankReport& report = reports[i];
    const auto rank = static_cast<int>(i);
    // A rank may report its failure before the others end because of it, and end after them.
    if (report.failed() && (!report.asked || report.failed_unasked)) {
      course.failed.push_back(rank);
    } else if (report.asked) {
      course.running.push_back(rank);
    } else if (report.state == ProcessState::ended) {
      course.ended.push_back(rank);
    }
  }
  sort_by_time(reports, course.failed);
  sort_by_time(reports, course.ended);
  course.first_failure = failure_time(reports[static_cast<size_t>(course.failed[0])]);
  std::erase_if(course.ended, [&](int rank) { return reports[static_cast<size_t>(rank)].time > course.first_failure; });
  return course;
}

std::string_view to_string(Cause::Kind kind) {
  static constexpr std::string_view kNames[] = {"none", "failed", "ended early", "silent", "link"};
  return kNames[static_cast<int>(kind)];
}

Cause find_first_cause(const std::vector<RankReport>& reports) {
  const bool explain = std::all_of(reports.begin(), reports.end(), [](const auto& r) { return r.ranks_explain; });
  if (!explain) return cause_of_program(reports);
  if (const int rank = earliest(reports, own_failure); rank >= 0) return {Cause::Kind::failed, rank, -1};
  if (const int rank = earliest(reports, has_lost_link); rank >= 0) return {Cause::Kind::link, rank, -1};

  if (const int rank = earliest(reports, [](const RankReport& report) { return report.silent_seconds > 0; });
      rank >= 0) {
    return {Cause::Kind::silent, rank, -1};
  }
  const int first = earliest(reports, complains);
  if (first < 0) return {};
  std::vector<int> chain;
  for (int rank = first; std::find(chain.begin(), chain.end(), rank) == chain.end();) {
    chain.push_back(rank);
    const int next = awaited(reports, reports[static_cast<size_t>(rank)]);
    if (next < 0) return {Cause::Kind::failed, rank, -1};
    const RankReport& other = reports[static_cast<size_t>(next)];
    if (!complains(other)) {
      if (suspicion(other) == 1) {
        if (const int idle = idle_rank(reports); idle >= 0) return {Cause::Kind::silent, idle, rank};
      }
      const bool early = other.state == ProcessState::ended && !other.asked && !other.failed();
      return {early ? Cause::Kind::ended_early : Cause::Kind::silent, next, rank};
    }
    rank = next;
  }
  return {Cause::Kind::failed, furthest(reports, chain), -1};
}

}  // namespace trainctl
