// The sections of a plan's text about parameter servers.
#include "cli/render/served.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "cli/text/table.h"
#include "engine/base/ranges.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

std::string served_text(const Json& value) { return value.get<std::string>(); }

/// "0-3".
std::string worker_ranks(const std::vector<int>& ranks) {
  const bool in_a_row = ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size());
  if (!in_a_row) return range_text(ranks);
  return std::to_string(ranks.front()) + (ranks.size() == 1 ? "" : "-" + std::to_string(ranks.back()));
}

/// "  throughput relative to all_reduce, estimated from bytes on equal links: 1 server 0.22x, 2 0.44x, …"
std::string advice(const Json& r) {
  if (!r.contains("servers_beside_all_reduce")) return "";
  std::vector<std::string> words;
  for (const Json& row : r["servers_beside_all_reduce"])
    words.push_back(fmt::format("{}{} {:.2f}x", row["servers"].get<int>(),
                                !words.empty()        ? ""
                                : row["servers"] == 1 ? " server"
                                                      : " servers",
                                row["rate"].get<double>()));
  return "  throughput relative to all_reduce, estimated from bytes on equal links: " + join(words) + "\n";
}

/// Tables of the parameters that each server owns, and of the bytes moved per step.
std::string servers_and_workers(const Json& r, size_t width) {
  constexpr size_t kShown = 8;
  Table servers({">server", ">rank", ">parameters", ">received per step", ">sent per step", "tensors"});
  for (const Json& s : r["servers"]) {
    std::vector<std::string> ranges;
    for (const Json& range : s["holds"]) {
      const int64_t first = range["first"], count = range["elements"], of = range["of"];
      ranges.push_back(served_text(range["tensor"]) +
                       (count == of ? "" : fmt::format(" [{}:{}] of {}", first, first + count, of)));
    }
    const size_t more = ranges.size() > kShown ? ranges.size() - kShown : 0;
    ranges.resize(ranges.size() - more);
    servers.add({s["server"].dump(), s["rank"].dump(), with_commas(s["parameters"].get<int64_t>()),
                 format_bytes(s["received"]), format_bytes(s["sent"]),
                 join(ranges) + (more > 0 ? fmt::format(" and {} more", more) : "")});
  }
  Table workers({">workers", ">pushed per step", ">pulled per step"});
  for (const Json& row : r["traffic"])
    workers.add({worker_ranks(numbers_of(served_text(row["ranks"]))), format_bytes(row["pushed"]),
                 format_bytes(row["pulled"])});
  return "\nservers\n" + servers.str(2, width) + advice(r) + "\nworkers\n" + workers.str(2, width);
}

/// Describes asynchronous workers and the tables.
std::string asynchronous(const Json& r) {
  if (!r.contains("asynchronous")) return "";
  const Json& a = r["asynchronous"];
  const int64_t staleness = a["staleness"];
  std::string out = fmt::format(
      "\nasynchronous\n  each of {} workers runs its own batches ({}); servers update after every push\n"
      "  staleness: a batch starts at most {} {} of {} batches after the oldest unapplied batch\n",
      r["ranks"].get<int>(),
      a["rebalance"].get<bool>() ? "the next unassigned batch" : fmt::format("every {}th batch", r["ranks"].get<int>()),
      staleness, staleness == 1 ? "round" : "rounds", r["ranks"].get<int>());
  return out;
}

/// Describes servers that own only tables.
std::string dense(const Json& r) {
  if (!r.contains("tables_alone")) return "";
  const int64_t staleness = r["tables_alone"]["staleness"];
  return fmt::format(
      "\nservers for tables only\n  the {} workers run synchronously and all_reduce all other parameters; servers "
      "update rows after every push\n  rows may lack the pushes of at most the last {} {}\n",
      r["ranks"].get<int>(), staleness, staleness == 1 ? "step" : "steps");
}

std::string tables(const Json& r, size_t width) {
  if (!r.contains("tables")) return "";
  Table table({"table", ">rows", ">units", "ids", ">full size", ">per trained row", ">max rows per batch",
               ">pulled and pushed"});
  for (const Json& t : r["tables"])
    table.add({served_text(t["layer"]), with_commas(t["rows"].get<int64_t>()), with_commas(t["units"].get<int64_t>()),
               served_text(t["field"]), format_bytes(t["bytes_if_whole"]), format_bytes(t["bytes_of_row"]),
               with_commas(t["window"].get<int64_t>()), format_bytes(t["bytes_of_window"])});
  return "\ntables, distributed over the servers by row number modulo the number of servers\n" + table.str(2, width);
}

}  // namespace

std::string render_served(const Json& report, size_t width) {
  if (!report.contains("servers")) return "";
  if (report.contains("tables_alone")) return dense(report) + tables(report, width);
  return servers_and_workers(report, width) + asynchronous(report) + tables(report, width);
}

}  // namespace trainctl
