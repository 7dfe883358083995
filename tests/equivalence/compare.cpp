// Checks that two runs of a job agree, and that a run agrees with its plan's report.
#include "tests/equivalence/compare.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/base/ranges.h"
#include "engine/base/text.h"
#include "engine/compile/report/report.h"
#include "engine/planning/compile_job.h"

namespace trainctl {
namespace {

/// The rank's group among the groups of a kind.
std::vector<int64_t> group_of(const nlohmann::ordered_json& kind, int rank) {
  const std::vector<int> first = numbers_of(kind.at("ranks").get<std::string>());
  const std::vector<int> starts = numbers_of(kind.at("starts").get<std::string>());
  for (int start : starts) {
    std::vector<int64_t> members;
    for (int r : first) members.push_back(r + start - starts[0]);
    if (std::find(members.begin(), members.end(), rank) != members.end()) return members;
  }
  return {};
}

std::string row_text(const nlohmann::ordered_json& report, const nlohmann::ordered_json& row, int rank) {
  const std::string head = row.at("kind").get<std::string>() + " " + std::to_string(row.at("bytes").get<int64_t>());
  if (row.contains("group"))
    return head + " " + format_list(group_of(report.at("groups").at(row.at("group").get<size_t>()), rank));
  const char* way = row.at("kind") == "send" ? " to " : " from ";
  if (row.contains("peer")) return head + way + std::to_string(row.at("peer").get<int>());
  if (row.contains("ring")) {
    const std::vector<int64_t> ring = group_of(report.at("groups").at(row.at("ring").get<size_t>()), rank);
    const auto ways = static_cast<int64_t>(ring.size()),
               index = std::find(ring.begin(), ring.end(), rank) - ring.begin();
    const int64_t peer = ring[static_cast<size_t>((index + row.at("distance").get<int64_t>() + ways) % ways)];
    return head + way + std::to_string(peer);
  }
  const int in_stage = report.at("ranks").get<int>() / report.at("stages").get<int>();
  return head + way + std::to_string(row.at("peer_stage").get<int>() * in_stage + rank % in_stage);
}

}  // namespace

void check_losses(const RunResult& run, const RunResult& reference, double tolerance, size_t steps) {
  if (run.losses.size() != steps || reference.losses.size() != steps)
    throw std::runtime_error(std::to_string(run.losses.size()) + " steps, on one rank " +
                             std::to_string(reference.losses.size()) + "; each job trains " + std::to_string(steps));
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < run.losses.size(); ++i) {
    const double difference =
        std::abs(double(run.losses[i]) - reference.losses[i]) / std::abs(double(reference.losses[i]));
    if (!(difference <= worst)) {  // also if it is NaN
      worst = difference;
      at = i;
    }
  }
  CAPTURE(at);
  CHECK(worst < tolerance);
  MESSAGE("largest relative difference ", worst, " at step ", at + 1);
}

void check_weights(const RunResult& run, const RunResult& reference, double tolerance) {
  REQUIRE(run.weights.size() == reference.weights.size());
  for (const auto& [name, expected] : reference.weights) {
    CAPTURE(name);
    REQUIRE(run.weights.contains(name));
    const std::vector<float>& values = run.weights.at(name);
    REQUIRE(values.size() == expected.size());
    double largest = 0, worst = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(double(expected[i])));
      worst = std::max(worst, std::abs(double(values[i]) - expected[i]));
    }
    CHECK(worst <= 100 * tolerance * std::max(largest, 1e-3));
  }
}

void check_communications(const RunResult& run) {
  const auto report = plan_report(run.job.spec, run.job.graph, run.job.plan, compile_classes(run.job));
  size_t ranks = 0;
  for (const auto& of_class : report.at("rank_classes")) {
    for (const int rank : numbers_of(of_class.at("ranks").get<std::string>())) {
      CAPTURE(rank);
      ++ranks;
      std::vector<std::string> said;
      for (const auto& row : report.at("calls").at(of_class.at("calls").get<size_t>()))
        said.push_back(row_text(report, row, rank));
      const auto r = static_cast<size_t>(rank);
      CHECK(run.calls[r] == said);
      CHECK(run.calls_per_step[r] == static_cast<int>(said.size()));
      CHECK(run.arena_bytes[r] == of_class.at("arena_bytes").get<int64_t>());
    }
  }
  CHECK(ranks == run.calls.size());
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace trainctl
