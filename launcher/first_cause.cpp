// Telling causes from consequences.
#include "launcher/first_cause.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace trainctl {
namespace {

bool complains(const RankReport& report) { return report.error && report.error->kind == ErrorKind::comm; }

/// Failed on its own: not stopped by us, and not because of another rank.
bool own_failure(const RankReport& report) {
  if (report.state == ProcessState::failed_to_start) return true;
  if (!report.failed() || complains(report)) return false;
  return !report.asked || report.error.has_value();
}

double time_of(const RankReport& report) {
  return report.error && report.error->time > 0 ? report.error->time : report.time;
}

int earliest(const std::vector<RankReport>& reports, const std::function<bool(const RankReport&)>& counts) {
  int found = -1;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (!counts(reports[rank])) continue;
    if (found < 0 || time_of(reports[rank]) < time_of(reports[static_cast<size_t>(found)])) {
      found = static_cast<int>(rank);
    }
  }
  return found;
}

/// How likely it is that others wait for this rank:
///   3 its process is stopped   2 it does not wait itself   1 it waits, for an unknown rank   0 it waits for known
///   ranks
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

}  // namespace

std::string_view to_string(Cause::Kind kind) {
  static constexpr std::string_view kNames[] = {"none", "failed", "ended early", "silent"};
  return kNames[static_cast<int>(kind)];
}

Cause find_first_cause(const std::vector<RankReport>& reports) {
  if (const int rank = earliest(reports, own_failure); rank >= 0) return {Cause::Kind::failed, rank, -1};

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
