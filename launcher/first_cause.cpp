// Telling causes from consequences.
#include "launcher/first_cause.h"

#include <algorithm>
#include <functional>
#include <set>

namespace trainctl {
namespace {

bool complains(const RankReport& report) { return report.error && report.error->kind == ErrorKind::comm; }

/// Failed by itself: not told to stop by us, and not about another rank.
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

/// A rank that `report` waited for, rather one that has no complaint of its own; -1: it names none.
int awaited(const std::vector<RankReport>& reports, const RankReport& report) {
  int found = -1;
  for (const int rank : report.error->missing) {
    if (rank < 0 || rank >= static_cast<int>(reports.size())) continue;
    if (!complains(reports[static_cast<size_t>(rank)])) return rank;
    if (found < 0) found = rank;
  }
  return found;
}

}  // namespace

Cause find_first_cause(const std::vector<RankReport>& reports) {
  if (const int rank = earliest(reports, own_failure); rank >= 0) return {Cause::Kind::failed, rank, -1};

  const int first = earliest(reports, complains);
  if (first < 0) return {};
  std::set<int> seen;
  for (int rank = first; seen.insert(rank).second;) {
    const int next = awaited(reports, reports[static_cast<size_t>(rank)]);
    if (next < 0) break;
    const RankReport& other = reports[static_cast<size_t>(next)];
    if (!complains(other)) {
      const bool early = other.state == ProcessState::ended && !other.asked && !other.failed();
      return {early ? Cause::Kind::ended_early : Cause::Kind::silent, next, rank};
    }
    rank = next;
  }
  return {Cause::Kind::failed, first, -1};
}

}  // namespace trainctl
