// Sections of the plan: head, layers, redistributions, schedule, memory, communication, notes.
#include "cli/render/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/render/table.h"
#include "engine/base/ranges.h"
#include "engine/base/text.h"

namespace trainctl {

using Json = nlohmann::ordered_json;

namespace {

std::string text(const Json& value) { return value.get<std::string>(); }

/// [[2,1],[2,1]] -> "[[2, 1], [2, 1]]".
std::string list(const Json& value) {
  if (!value.is_array()) return value.dump();
  std::vector<std::string> words;
  for (const Json& item : value) words.push_back(list(item));
  return "[" + join(words) + "]";
}

constexpr size_t kRanksShown = 16, kGroupsShown = 4;

/// {0,1,2,3}; large groups as ranges: {0:64}.
std::string ranks(const std::vector<int>& group) {
  if (group.size() > kRanksShown) return "{" + range_text(group) + "}";
  std::vector<std::string> words;
  for (int rank : group) words.push_back(std::to_string(rank));
  return "{" + join(words, ",") + "}";
}

/// The groups with these ids (indices into the report's `groups`), sorted by first rank.
std::string groups(const Json& r, const Json& ids) {
  std::vector<std::pair<int, std::vector<int>>> all;
  size_t more = 0;
  for (const Json& id : ids) {
    const Json& kind = r["groups"][id.get<size_t>()];
    const std::vector<int> first = numbers_of(text(kind["ranks"])), starts = numbers_of(text(kind["starts"]));
    for (size_t s = 0; s < starts.size() && s <= kGroupsShown; ++s) {
      all.emplace_back(starts[s], first);
      for (int& rank : all.back().second) rank += starts[s] - starts[0];
    }
    more += starts.size();
  }
  std::sort(all.begin(), all.end());
  std::vector<std::string> words;
  for (size_t g = 0; g < all.size() && g < kGroupsShown; ++g) words.push_back(ranks(all[g].second));
  if (more > kGroupsShown) words.push_back("…");
  return join(words, " ");
}

std::string head(const Json& r) {
  std::vector<std::string> mesh;
  for (const Json& size : r["mesh"]) mesh.push_back(size.dump());
  const int stages = r["stages"], all = r["ranks"], micro = r["micro_batches"];
  const int64_t batch = r["batch"];
  std::string out = fmt::format("{}: {}, {} rank{}", text(r["job"]), text(r["mode"]), all, all == 1 ? "" : "s");
  if (stages > 1) out += fmt::format(" = {} stages x {}", stages, all / stages);
  if (all / stages > 1) out += fmt::format(" (mesh {})", join(mesh, "x"));
  out += fmt::format(", batch {}", batch);
  if (micro > 1) out += fmt::format(" = {} micro-batches of {}, {}", micro, batch / micro, text(r["schedule"]));
  if (const int level = r["optimizer_shard_level"]; level > 0) out += fmt::format(", optimizer_shard level {}", level);
  if (const std::string type = text(r["gradient_precision"]); type != "fp32") out += ", gradients in " + type;
  return out + "\n";
}

std::string layouts(const Json& tensors) {
  std::vector<std::string> words;
  for (const Json& tensor : tensors) words.push_back(text(tensor["layout"]));
  return join(words, " ");
}

std::string layers(const Json& r) {
  Table table({">stage", "layer", "type", "strategy", "in", "out", "why"});
  for (const Json& layer : r["layers"]) {
    std::string why = text(layer["reason"]).empty() ? text(layer["choice"]) : text(layer["reason"]);
    if (layer["recompute"].get<bool>()) why += "; recomputed in the backward pass";
    if (!text(layer["would_be"]).empty()) why += "; " + text(layer["would_be"]);
    const Json in = layer["inputs"].empty() ? Json::array() : Json::array({layer["inputs"][0]});
    table.add({layer["stage"].dump(), text(layer["name"]), text(layer["type"]), list(layer["strategy"]), layouts(in),
               layouts(layer["outputs"]), why});
  }
  return "\nlayers\n" + table.str();
}

std::string redistributions(const Json& r) {
  Table table({">stage", "pass", "kind", "what", ">bytes", "groups"});
  for (const Json& row : r["redistributions"])
    table.add({row["stage"].dump(), text(row["phase"]), text(row["kind"]), text(row["name"]),
               with_commas(row["bytes"].get<int64_t>()), groups(r, row["groups"])});
  return "\nredistributions and transfers, of one micro-batch" +
         (table.empty() ? std::string(": none\n") : "\n" + table.str());
}

/// "5", "0-7", or several ranges.
std::string ranks_of_row(std::vector<int> all) {
  std::sort(all.begin(), all.end());
  const bool in_a_row = all.back() - all.front() + 1 == static_cast<int>(all.size());
  if (!in_a_row) return range_text(all);
  return std::to_string(all.front()) + (all.size() == 1 ? "" : "-" + std::to_string(all.back()));
}

/// Ranks of a stage with equal needs share a row.
std::string memory(const Json& r) {
  const Json& classes = r["rank_classes"];
  std::vector<std::string> kinds;
  for (const char* kind : {"weights", "master", "gradients", "optimizer", "activations", "buffers", "workspace",
                           "total", "data_set", "copy_engines"}) {
    if (std::any_of(classes.begin(), classes.end(), [&](const Json& c) { return c["memory"].contains(kind); }))
      kinds.emplace_back(kind);
  }
  std::vector<std::string> head = {">ranks", ">stage"};
  for (std::string kind : kinds) {
    std::replace(kind.begin(), kind.end(), '_', ' ');
    head.push_back(">" + kind);
  }
  std::vector<std::pair<std::vector<std::string>, std::vector<int>>> rows;  // cells after the ranks' one, and the ranks
  for (const Json& c : classes) {
    std::vector<std::string> cells = {c["stage"].dump()};
    for (const std::string& kind : kinds) cells.push_back(format_bytes(c["memory"].value(kind, int64_t{0})));
    auto row = std::find_if(rows.begin(), rows.end(), [&](const auto& known) { return known.first == cells; });
    if (row == rows.end()) row = rows.insert(rows.end(), {std::move(cells), {}});
    const std::vector<int> more = numbers_of(text(c["ranks"]));
    row->second.insert(row->second.end(), more.begin(), more.end());
  }
  Table table(head);
  for (auto& [cells, all] : rows) {
    cells.insert(cells.begin(), ranks_of_row(all));
    table.add(std::move(cells));
  }
  const bool more = kinds.back() != "total";
  return "\nmemory a rank\n" + table.str() + (more ? "  columns after total are used only if the GPU has room\n" : "");
}

std::string communication(const Json& r) {
  Table table({"for", "kind", ">group of", ">calls", ">bytes a call", ">bytes"});
  for (const Json& row : r["communication"]) {
    const int64_t calls = row["calls"], bytes = row["bytes"];
    table.add({text(row["purpose"]), text(row["kind"]), row["group_size"].dump(), with_commas(calls),
               bytes % calls == 0 ? with_commas(bytes / calls) : "~" + with_commas(bytes / calls), with_commas(bytes)});
  }
  return "\ncommunication a step, all ranks" + (table.empty() ? std::string(": none\n") : "\n" + table.str());
}

}  // namespace

std::string draw_schedule(const Json& tasks) {
  constexpr int kForward = 1, kBackward = 2;
  const size_t stages = tasks.size();
  std::map<std::pair<size_t, std::string>, int> end;  // (stage, task) -> time
  std::vector<size_t> next(stages, 0);
  std::vector<int> clock(stages, 0);
  std::vector<std::vector<std::string>> rows(stages);
  size_t width = 2;
  bool has_backward = false;
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < stages; ++s) {
      if (next[s] >= tasks[s]["tasks"].size()) continue;
      const std::string task = text(tasks[s]["tasks"][next[s]]);
      const bool forward = task[0] == 'F';
      has_backward |= !forward;
      int start = clock[s];
      const bool waits = forward ? s > 0 : s + 1 < stages;
      if (waits) {
        const auto found = end.find({forward ? s - 1 : s + 1, task});
        if (found == end.end()) continue;
        start = std::max(start, found->second);
      }
      width = std::max(width, task.size());
      rows[s].resize(static_cast<size_t>(start), "");
      rows[s].push_back(task);
      for (int i = 1; i < (forward ? kForward : kBackward); ++i) rows[s].push_back("--");
      clock[s] = start + (forward ? kForward : kBackward);
      end[{s, task}] = clock[s];
      ++next[s];
      moved = true;
    }
  }
  std::string out;
  size_t slots = 0, busy = 0;
  for (const auto& row : rows) slots = std::max(slots, row.size());
  for (size_t s = 0; s < stages; ++s) {
    std::string line = fmt::format("  stage {} |", s);
    for (const std::string& cell : rows[s]) {
      line += fmt::format("{:<{}}", cell.empty() ? "." : cell, width + 1);
      busy += !cell.empty();
    }
    for (size_t i = rows[s].size(); i < slots; ++i) line += fmt::format("{:<{}}", ".", width + 1);
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  if (stages > 1 && slots > 0)
    out += fmt::format("  idle {:.0f}%{}\n",
                       100.0 * static_cast<double>(slots * stages - busy) / static_cast<double>(slots * stages),
                       has_backward ? ", counting a backward as two forwards" : "");
  return out;
}

std::string render_plan(const Json& r) {
  std::string out = head(r) + layers(r) + redistributions(r);
  if (r["micro_batches"].get<int>() > 1 || r["stages"].get<int>() > 1)
    out += "\nschedule\n" + draw_schedule(r["tasks"]);
  out += memory(r) + communication(r);
  for (const Json& note : r["notes"]) out += "\nnote: " + text(note) + "\n";
  return out;
}

}  // namespace trainctl
