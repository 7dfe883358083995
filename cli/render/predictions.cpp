// Renders a plan's predictions for a step, and the plans of a search side by side.
#include "cli/render/predictions.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/text/profile_report.h"
#include "cli/text/table.h"
#include "engine/base/measures.h"
#include "engine/base/text.h"

namespace trainctl {

using Json = nlohmann::ordered_json;

namespace {

/// A gap above this is a number of times instead of a percentage.
constexpr double kManyTimes = 10;

std::string prediction_text(const Json& value) { return value.get<std::string>(); }

/// The device memory that the largest rank needs, if it does not fit.
std::string device_memory(const Json& e) {
  if (!e.contains("memory")) return "";
  const Json& m = e["memory"];
  const int64_t bytes = m["bytes"], reserved = m["reserved"], device = m["device"];
  const std::string needs =
      fmt::format("rank {} needs {}, plus {} for the driver and libraries; the device has {}", m["rank"].get<int>(),
                  format_bytes(bytes), format_bytes(reserved), format_bytes(device));
  if (m["fits"].get<bool>()) return "";  // the headline says so
  return fmt::format("  does not fit this machine: {}; {} too much\n", needs, format_bytes(bytes + reserved - device));
}

/// The step time of each plan by part. Parts that no plan has are omitted.
std::string parts_of_plans(const Json& tried, size_t width) {
  std::vector<std::string> names, headers = {">"};
  for (const Json& row : tried) {
    if (!row.contains("parts")) continue;
    for (const auto& part : row["parts"].items())
      if (std::find(names.begin(), names.end(), part.key()) == names.end()) names.push_back(part.key());
  }
  for (const std::string& name : names) headers.push_back(">" + name);
  Table table(headers);
  for (size_t i = 0; i < tried.size(); ++i) {
    if (!tried[i].contains("parts")) continue;
    std::vector<std::string> cells = {std::to_string(i + 1)};
    for (const std::string& name : names)
      cells.push_back(tried[i]["parts"].contains(name) ? duration_text(tried[i]["parts"][name]) : "");
    table.add(cells);
  }
  return table.empty() ? "" : table.str(2, width);
}

}  // namespace

std::string render_estimate(const Json& r) {
  if (!r.contains("estimate")) return "";
  const Json& e = r["estimate"];
  const double seconds = e["seconds"];
  Table table({"part", ">time", ">share"});
  for (const auto& [name, part] : e["parts"].items())
    table.add({name, duration_text(part), fmt::format("{:.1f}%", 100 * part.get<double>() / seconds)});
  return fmt::format("\npredicted step time on {} ({}): {}; 90 % of steps between {} and {}\n",
                     prediction_text(e["machine"]), prediction_text(e["source"]), duration_text(seconds),
                     duration_text(e["low"]), duration_text(e["high"])) +
         table.str() + "  parts of the critical path; concurrent work adds no time\n" + device_memory(e);
}

/// A table of the plans that the search tried: step time, memory, and why each was not chosen.
std::string render_search(const Json& r, size_t width) {
  if (!r.contains("search")) return "";
  const Json& s = r["search"];
  Table table({">", "plan", ">step", ">memory", "reason"});
  for (size_t i = 0; i < s["tried"].size(); ++i) {
    const Json& row = s["tried"][i];
    const std::string number = std::to_string(i + 1);
    if (row.contains("fault")) {
      table.add({number, prediction_text(row["plan"]), "", "", prediction_text(row["fault"])});
      continue;
    }
    const char* about = row["in_full"].get<bool>() ? "" : "~";
    table.add({number, prediction_text(row["plan"]), about + duration_text(row["seconds"]),
               about + format_bytes(row["memory"]), row.contains("lost") ? prediction_text(row["lost"]) : "chosen"});
  }
  std::string out =
      fmt::format("\nsearch: {} choices evaluated, {} plans tried\n{}", with_commas(s["weighed"].get<int64_t>()),
                  s["tried"].size() + s["not_shown"].get<size_t>(), table.str(2, width));
  out += parts_of_plans(s["tried"], width);
  const double gap = s["gap"];
  out += fmt::format(
      "  lower bound for all plans: {} (work of every plan, at the machine's best rates); the chosen plan takes {}\n",
      duration_text(s["bound"]),
      gap > kManyTimes ? fmt::format("{:.0f} times as long", 1 + gap) : fmt::format("{:.0f} % more", 100 * gap));
  for (const Json& note : s["notes"]) out += "  " + prediction_text(note) + "\n";
  return out;
}

}  // namespace trainctl
