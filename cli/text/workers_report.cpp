// Report at the end of a run with asynchronous workers: the rate of each worker, and the staleness of updates.
#include "cli/text/workers_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "engine/base/text.h"

namespace trainctl {
namespace {

/// Samples per second while the worker computes, pulls, pushes, or waits for the staleness limit.
double rate(const BatchBoard& board, int worker, int64_t batch) {
  const double seconds = board.busy_seconds(worker);
  return seconds > 0 ? static_cast<double>(board.finished_by(worker) * batch) / seconds : 0.0;
}

/// Number of updates by staleness, up to the largest that occurred.
std::vector<int64_t> histogram(const BatchBoard& board) {
  std::vector<int64_t> counts;
  for (int s = 0; s <= BatchBoard::kMostStaleness; ++s) counts.push_back(board.updates_of_staleness(s));
  while (!counts.empty() && counts.back() == 0) counts.pop_back();
  return counts;
}

}  // namespace

std::string workers_report(const BatchBoard& board, int64_t batch) {
  std::vector<std::string> rates;
  for (int worker = 0; worker < board.workers(); ++worker)
    rates.push_back(fmt::format("rank {} {:.0f} samples/s ({} steps)", worker, rate(board, worker, batch),
                                with_commas(board.finished_by(worker))));
  const std::string staleness = staleness_report(board);
  return "workers: " + join(rates) + (staleness.empty() ? "" : "\n" + staleness);
}

std::string staleness_report(const BatchBoard& board) {
  const std::vector<int64_t> counts = histogram(board);
  std::vector<std::string> shares;
  int64_t all = 0;
  for (const int64_t count : counts) all += count;
  for (size_t s = 0; s < counts.size(); ++s)
    if (counts[s] > 0)
      shares.push_back(fmt::format("{}{}: {:.0f} %", s, s == BatchBoard::kMostStaleness ? " or more" : "",
                                   100.0 * static_cast<double>(counts[s]) / static_cast<double>(all)));
  return shares.empty() ? "" : "staleness of the servers' updates: " + join(shares);
}

nlohmann::ordered_json workers_json(const BatchBoard& board, int64_t batch) {
  nlohmann::ordered_json steps = nlohmann::ordered_json::array(), rates = steps;
  for (int worker = 0; worker < board.workers(); ++worker) {
    steps.push_back(board.finished_by(worker));
    rates.push_back(rate(board, worker, batch));
  }
  return {{"kind", "workers"}, {"steps", steps}, {"samples_per_second", rates}, {"staleness", histogram(board)}};
}

}  // namespace trainctl
