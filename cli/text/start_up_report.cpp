// Startup report for the user: the time until the end of the first step, and how it was spent.
#include "cli/text/start_up_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/json_field.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

/// Phases with a smaller share of the total are not listed.
constexpr double kLeastShare = 0.02;

}  // namespace

std::vector<Json> read_start_ups(const RunDirectory& directory, int ranks) {
  std::vector<Json> all;
  for (int rank = 0; rank < ranks; ++rank) {
    std::ifstream file(directory.rank_file(rank, "start_up.json"));
    all.push_back(Json::parse(file, nullptr, false));
    if (!all.back().is_object()) return {};  // for example, the disk was full
  }
  return all;
}

std::string start_up_line(const std::vector<Json>& ranks, double least_seconds, const RankNames& names) {
  const auto slowest = std::max_element(ranks.begin(), ranks.end(), [](const Json& a, const Json& b) {
    return field_or(a, "alone", 0.0) < field_or(b, "alone", 0.0);
  });
  if (slowest == ranks.end()) return "";
  const double seconds = field_or(*slowest, "seconds", 0.0);
  if (seconds < least_seconds) return "";
  const std::string which =
      ranks.size() == 1 ? ""
                        : fmt::format(" ({} was the slowest)", names.name(static_cast<int>(slowest - ranks.begin())));
  std::string line = fmt::format("first step after {:.2f} s{}:", seconds, which);
  double rest = 0;
  const Json phases = slowest->value("phases", Json::object());
  for (const auto& [name, value] : phases.items()) {
    if (!value.is_number()) continue;
    const double phase = value.get<double>();
    if (phase < kLeastShare * seconds) {
      rest += phase;
    } else {
      line += fmt::format(" {} {:.2f},", name, phase);
    }
  }
  return line + fmt::format(" rest {:.2f}", rest);
}

}  // namespace trainctl
