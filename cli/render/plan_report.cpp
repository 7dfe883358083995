// Sections of the plan: headline (headline.cpp), stages, layers, parts of hybrid_parallel, redistributions, schedule,
// memory, communication, notes.
#include "cli/render/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/render/fold.h"
#include "cli/render/headline.h"
#include "cli/render/local_shards.h"
#include "cli/render/move_rows.h"
#include "cli/render/predictions.h"
#include "cli/render/schedule_drawing.h"
#include "cli/render/served.h"
#include "cli/text/table.h"
#include "cli/text/wrap.h"
#include "engine/base/measures.h"
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

/// "3", "0-7".
std::string range(int first, int last) {
  return std::to_string(first) + (first == last ? "" : "-" + std::to_string(last));
}

std::string layouts(const Json& tensors) {
  std::vector<std::string> words;
  for (const Json& tensor : tensors) words.push_back(text(tensor["layout"]));
  return join(words, " ");
}

std::string why(const Json& layer) {
  std::string text_of = text(layer["reason"]).empty() ? text(layer["choice"]) : text(layer["reason"]);
  if (layer["recompute"].get<bool>()) text_of += "; recomputed in the backward pass";
  if (layer.value("fp8", false)) text_of += "; matrix products in fp8";
  if (!text(layer["would_be"]).empty()) text_of += "; " + text(layer["would_be"]);
  return text_of;
}

/// "-" for 0.
std::string count_text(const Json& count) {
  const auto value = count.get<double>();
  const std::string brief = short_count(value, "KMGTPE");
  return value == 0 ? "-" : brief.empty() ? count.dump() : brief;
}

std::string shapes(const Json& tensors) {
  std::vector<std::string> words;
  for (const Json& tensor : tensors) words.push_back(list(tensor["shape"]));
  return join(words, " ");
}

/// The rows of layers; one rank cuts nothing, so its table has no columns about cuts.
class LayerTable {
 public:
  explicit LayerTable(bool has_cuts) : has_cuts_(has_cuts), table_(headers(has_cuts)) {}

  void add(const Json& layer, std::string stage, std::string name, std::string reason) {
    std::vector<std::string> cells = {std::move(stage),
                                      std::move(name),
                                      text(layer["type"]),
                                      shapes(layer["outputs"]),
                                      count_text(layer["parameters"]),
                                      count_text(layer["flops_per_step"])};
    if (has_cuts_) {
      const Json in = layer["inputs"].empty() ? Json::array() : Json::array({layer["inputs"][0]});
      for (std::string cell : {list(layer["strategy"]), layouts(in), layouts(layer["outputs"])})
        cells.push_back(std::move(cell));
    }
    cells.push_back(std::move(reason));
    table_.add(std::move(cells));
  }
  void add_line(std::string line) { table_.add_line(std::move(line)); }
  std::string str(size_t width) const { return table_.str(2, width); }

 private:
  static std::vector<std::string> headers(bool has_cuts) {
    std::vector<std::string> names = {">stage", "layer", "type", "output", ">parameters", ">flops"};
    if (has_cuts) names.insert(names.end(), {"strategy", "in", "out"});
    names.emplace_back("reason");
    return names;
  }

  const bool has_cuts_;
  Table table_;
};

bool may_be_in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.'; }

/// Replaces `word` in `text` where it is a whole name.
std::string replaced(std::string text, const std::string& word, const std::string& by) {
  for (size_t at = text.find(word); !word.empty() && at != std::string::npos; at = text.find(word, at)) {
    const size_t end = at + word.size();
    const bool whole = (at == 0 || !may_be_in_name(text[at - 1])) && (end == text.size() || !may_be_in_name(text[end]));
    if (whole) text.replace(at, word.size(), by);
    at = whole ? at + by.size() : end;
  }
  return text;
}

/// Reasons name a layer's neighbors. This class names their relation to the layer instead, which is the same in every
/// copy of a block: "follows its input".
class Reasons {
 public:
  explicit Reasons(const Json& layers) {
    for (size_t l = 0; l < layers.size(); ++l) {
      for (const Json& output : layers[l]["outputs"]) makers_[text(output["tensor"])] = l;
      for (const Json& input : layers[l]["inputs"]) readers_[text(input["tensor"])].push_back(text(layers[l]["name"]));
    }
  }

  std::string of(const Json& layer) const {
    std::vector<std::string> inputs;
    for (const Json& input : layer["inputs"])
      if (makers_.contains(text(input["tensor"]))) inputs.push_back(text(input["tensor"]));
    std::string reason = why(layer);
    for (size_t i = 0; i < inputs.size(); ++i)
      reason = replaced(reason, inputs[i], inputs.size() == 1 ? "its input" : fmt::format("its input {}", i + 1));
    for (const Json& output : layer["outputs"]) {
      const auto readers = readers_.find(text(output["tensor"]));
      if (readers == readers_.end()) continue;
      for (const std::string& reader : readers->second)
        reason = replaced(reason, reader, readers->second.size() == 1 ? "its consumer" : "one of its consumers");
    }
    return reason;
  }

 private:
  std::map<std::string, size_t> makers_;  ///< tensor -> the layer that makes it
  std::map<std::string, std::vector<std::string>> readers_;
};

/// Appends the value as text, without `fields` of an object.
template <size_t kFields>
void append_without(const Json& value, const std::array<std::string_view, kFields>& fields, std::string& out) {
  if (value.is_string()) {
    out.append("\"").append(value.get_ref<const std::string&>()).append("\"");
  } else if (value.is_object()) {
    for (const auto& [name, field] : value.items()) {
      if (std::find(fields.begin(), fields.end(), name) != fields.end()) continue;
      out.append("\n").append(name).append(":");
      append_without(field, std::array<std::string_view, 0>(), out);
    }
  } else if (value.is_array()) {
    out += '[';
    for (const Json& one : value) {
      append_without(one, fields, out);
      out += ',';
    }
    out += ']';
  } else if (value.is_number_integer()) {
    out += fmt::format_int(value.get<int64_t>()).c_str();
  } else {
    out += value.dump();
  }
}

/// Everything that the report states about a layer except its stage, names and reasons.
std::string facts(const Json& layer) {
  using Fields = std::array<std::string_view, 8>;
  std::string text;
  append_without(layer, Fields{"name", "stage", "chunk", "choice", "reason", "would_be", "inputs", "outputs"}, text);
  for (const char* side : {"inputs", "outputs"}) {
    const auto tensors = layer.find(side);
    text.append("\n").append(side);
    if (tensors != layer.end()) append_without(*tensors, std::array<std::string_view, 1>{"tensor"}, text);
  }
  return text;
}

/// The most frequent reason of these layers, then the other reasons with their layers.
std::string reasons_of(const Json& layers, const std::vector<size_t>& rows, const Reasons& reasons) {
  if (rows.size() == 1) return why(layers[rows.front()]);
  std::vector<std::pair<std::string, std::vector<std::string>>> names;  // by reason, in order of appearance
  for (size_t row : rows) {
    std::string reason = reasons.of(layers[row]);
    auto entry = std::find_if(names.begin(), names.end(), [&](const auto& known) { return known.first == reason; });
    if (entry == names.end()) entry = names.insert(names.end(), {std::move(reason), {}});
    entry->second.push_back(text(layers[row]["name"]));
  }
  std::stable_sort(names.begin(), names.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  std::string all = names.front().first;
  for (size_t i = 1; i < names.size(); ++i) {
    const auto& [reason, of] = names[i];
    all += "; " + name_pattern(of).value_or(join(of)) + ": " + reason;
  }
  return all;
}

std::string stages_of(const Json& layers, const std::vector<size_t>& rows) {
  std::set<int64_t> stages;
  for (size_t row : rows) stages.insert(layers[row]["stage"].get<int64_t>());
  return number_ranges({stages.begin(), stages.end()});
}

std::string layers(const Json& r, const PlanStyle& style) {
  if (!style.shows_layers()) return "";
  LayerTable table(r["ranks"].get<int>() > 1);
  const Json& all = r["layers"];
  const Reasons reasons(all);
  for (const Json& layer : style.full ? all : Json::array())
    table.add(layer, layer["stage"].dump(), text(layer["name"]), why(layer));
  for (const FoldLine& line : style.full ? std::vector<FoldLine>() : folded_layers(r)) {
    const std::string indent(static_cast<size_t>(2 * line.depth), ' ');
    if (line.times > 0) {
      table.add_line(indent + fmt::format("{}, {} times:", line.name, line.times));
      continue;
    }
    const Json& layer = all[line.rows.front()];
    table.add(layer, stages_of(all, line.rows), indent + line.name, reasons_of(all, line.rows, reasons));
  }
  return "\nlayers\n" + table.str(style.width);
}

/// The layers of each stage, in order: "embed … h.5.sum (74)".
std::string stages(const Json& r, const PlanStyle& style) {
  if (r["stages"].get<int>() == 1 || style.full) return "";
  const int stages = r["stages"], ranks = r["ranks"].get<int>() / stages;
  std::vector<std::vector<std::string>> runs(static_cast<size_t>(stages));
  const Json& all = r["layers"];
  for (size_t first = 0; first < all.size();) {
    size_t end = first + 1;
    while (end < all.size() && all[end]["stage"] == all[first]["stage"] && all[end]["chunk"] == all[first]["chunk"])
      ++end;
    std::string run = r["chunks"].get<int>() == 1 ? "" : fmt::format("{}: ", all[first]["chunk"].get<int>());
    run += text(all[first]["name"]);
    if (end - first > 1) run += " … " + text(all[end - 1]["name"]) + fmt::format(" ({})", end - first);
    runs[all[first]["stage"].get<size_t>()].push_back(run);
    first = end;
  }
  Table table({">stage", "ranks", r["chunks"].get<int>() == 1 ? "layers" : "chunks: layers"});
  for (int s = 0; s < stages; ++s)
    table.add({std::to_string(s), range(s * ranks, (s + 1) * ranks - 1), join(runs[static_cast<size_t>(s)])});
  return "\nstages\n" + table.str(2, style.width);
}

std::string redistributions(const Json& r, const PlanStyle& style) {
  if (!style.shows_moves()) return "";
  const bool full = style.full;
  Table table = full ? Table({">stage", "pass", "kind", "name", ">bytes", "groups"})
                     : Table({">stage", "pass", "kind", "name", ">times", ">bytes", "groups"});
  if (!full)
    for (auto& row : folded_moves(r)) table.add(std::move(row));
  for (const Json& row : full ? r["redistributions"] : Json::array())
    table.add({row["stage"].dump(), text(row["phase"]), text(row["kind"]), text(row["name"]),
               with_commas(row["bytes"].get<int64_t>()), groups(r, row["groups"])});
  return "\nredistributions and transfers, per micro-batch" +
         (table.empty() ? std::string(": none\n") : "\n" + table.str(2, style.width));
}

/// "5", "0-7", or several ranges.
std::string ranks_of_row(std::vector<int> all, bool full) {
  std::sort(all.begin(), all.end());
  if (!full) return number_ranges({all.begin(), all.end()});
  const bool in_a_row = all.back() - all.front() + 1 == static_cast<int>(all.size());
  if (!in_a_row) return range_text(all);
  return std::to_string(all.front()) + (all.size() == 1 ? "" : "-" + std::to_string(all.back()));
}

/// The kinds of memory that at least one class has.
std::vector<std::string> memory_kinds(const Json& classes) {
  std::vector<std::string> kinds;
  for (const char* kind : {"weights", "master", "gradients", "optimizer", "activations", "buffers", "workspace",
                           "validation", "total", "host", "data_set", "copy_engines"}) {
    if (std::any_of(classes.begin(), classes.end(), [&](const Json& c) { return c["memory"].contains(kind); }))
      kinds.emplace_back(kind);
  }
  return kinds;
}

/// Ranks of a stage with equal needs share a row.
std::string memory_table(const Json& classes, const std::vector<std::string>& kinds, const PlanStyle& style) {
  std::vector<std::string> head = {">ranks", ">stage"};
  for (std::string kind : kinds) {
    std::replace(kind.begin(), kind.end(), '_', ' ');
    head.push_back(">" + kind);
  }
  std::vector<std::pair<std::vector<std::string>, std::vector<int>>> rows;  // the cells except the first, and the ranks
  for (const Json& c : classes) {
    std::vector<std::string> cells = {c.contains("server") ? "server " + c["server"].dump() : c["stage"].dump()};
    for (const std::string& kind : kinds) cells.push_back(format_bytes(c["memory"].value(kind, int64_t{0})));
    auto row = std::find_if(rows.begin(), rows.end(), [&](const auto& known) { return known.first == cells; });
    if (row == rows.end()) row = rows.insert(rows.end(), {std::move(cells), {}});
    const std::vector<int> more = numbers_of(text(c["ranks"]));
    row->second.insert(row->second.end(), more.begin(), more.end());
  }
  Table table(head);
  for (auto& [cells, all] : rows) {
    cells.insert(cells.begin(), ranks_of_row(all, style.full));
    table.add(std::move(cells));
  }
  return table.str(2, style.width);
}

std::string memory(const Json& r, const PlanStyle& style) {
  const std::vector<std::string> kinds = memory_kinds(r["rank_classes"]);
  const bool more = kinds.back() != "total";
  return "\nmemory per rank\n" + memory_table(r["rank_classes"], kinds, style) +
         (more ? "  columns after total are used only if the GPU has enough free memory\n" : "");
}

/// A line about validation.generate; empty without it.
std::string validation_texts(const Json& v) {
  if (!v.contains("texts")) return "";
  const Json& texts = v["texts"];
  const auto prompts = texts["prompts"].get<int64_t>();
  return fmt::format(
      "  {} text{} of up to {} tokens {} generated with the current weights, {} at a time; their memory, with a copy "
      "of "
      "the weights, is in the column `validation` above\n",
      with_commas(prompts), prompts == 1 ? "" : "s", with_commas(texts["positions"].get<int64_t>()),
      prompts == 1 ? "is" : "are", with_commas(texts["at_a_time"].get<int64_t>()));
}

/// Memory in addition to the variables. Activations reuse the memory of those of a step; larger ones need more.
std::string validation(const Json& r, const PlanStyle& style) {
  if (!r.contains("validation")) return "";
  const Json& v = r["validation"];
  const Json& classes = v["rank_classes"];
  const auto takes_more = [](const Json& c) { return c["memory"].contains("validation"); };
  const Json& training = r["rank_classes"];
  const bool more = std::any_of(training.begin(), training.end(), takes_more);
  return fmt::format("\nvalidation of {} in batches of {}, memory per rank\n",
                     plural(v["samples"].get<int64_t>(), "sample"), with_commas(v["batch"].get<int64_t>())) +
         memory_table(classes, memory_kinds(classes), style) +
         (more ? "  in addition to the variables; memory beyond that of training is the column `validation` above\n"
               : "  in addition to the variables; reuses the memory of the training's activations and buffers\n") +
         validation_texts(v);
}

/// Saves may leave out frozen weights, which stay where the job reads them.
std::string left_out_base(const Json& saves) {
  return saves.contains("base") ? ", without the frozen weights of " + text(saves["base"]) : "";
}

/// One line per stage, whose files have similar sizes. A copy of the same size is kept in memory until it is written.
std::string checkpoint(const Json& r, const PlanStyle& style) {
  if (r.contains("final_weights"))
    return fmt::format("\nfinal weights: {}, saved in {} at the end of the run{}\n",
                       format_bytes(r["final_weights"]["bytes"]), text(r["final_weights"]["folder"]),
                       left_out_base(r["final_weights"]));
  if (!r.contains("checkpoint")) return "";
  const Json& c = r["checkpoint"];
  std::map<int, int64_t> bytes;
  for (const Json& row : c["ranks"])
    for (const int rank : row["ranks"]) bytes[rank] = row["bytes"];
  const int stages = r["stages"], workers = r["ranks"], per_stage = workers / stages;
  const bool has_servers = static_cast<int>(bytes.size()) > workers;
  Table table({">ranks", ">stage", ">file size and memory for its copy"});
  for (int stage = 0; stage < stages + (has_servers ? 1 : 0); ++stage) {
    const bool are_servers = stage == stages;
    const int first = stage * per_stage,
              last = are_servers ? static_cast<int>(bytes.size()) - 1 : first + per_stage - 1;
    int64_t least = bytes[first], most = 0;
    for (int rank = first; rank <= last; ++rank) {
      least = std::min(least, bytes[rank]);
      most = std::max(most, bytes[rank]);
    }
    const std::string from = format_bytes(least), to = format_bytes(most);
    table.add({std::to_string(first) + (first == last ? "" : "-" + std::to_string(last)),
               are_servers ? "servers" : std::to_string(stage), from == to ? to : from + " to " + to});
  }
  const std::string integrated = c.contains("integrated_bytes")
                                     ? ", " + format_bytes(c["integrated_bytes"]) + " of that in model.safetensors"
                                     : "";
  return "\ncheckpoint, per rank\n" + table.str(2, style.width) +
         fmt::format("  {} in {} files{}{}; takes about {} on a disk that writes {} MB/s\n", format_bytes(c["bytes"]),
                     c["files"].get<int>(), integrated, left_out_base(c), format_duration(c["seconds"]),
                     c["assumed_bytes_per_second"].get<double>() / 1e6);
}

std::string communication(const Json& r, const PlanStyle& style) {
  Table table({"purpose", "kind", ">group size", ">calls", ">bytes per call", ">bytes"});
  for (const Json& row : r["communication"]) {
    const int64_t calls = row["calls"], bytes = row["bytes"];
    table.add({text(row["purpose"]), text(row["kind"]), row["group_size"].dump(), with_commas(calls),
               bytes % calls == 0 ? with_commas(bytes / calls) : "~" + with_commas(bytes / calls), with_commas(bytes)});
  }
  return std::string(r.contains("asynchronous") ? "\ncommunication per step, one worker with the servers"
                                                : "\ncommunication per step, all ranks") +
         (table.empty() ? std::string(": none\n") : "\n" + table.str(2, style.width));
}

/// One line per group: its parameters, and its settings that differ from the optimizer's.
std::string parameter_groups(const Json& r, const PlanStyle& style) {
  if (!r.contains("parameter_groups")) return "";
  Table table({"parameters", ">tensors", ">elements", "settings"});
  for (const Json& row : r["parameter_groups"]) {
    std::vector<std::string> patterns, settings;
    for (const Json& pattern : row["patterns"]) patterns.push_back(text(pattern));
    for (const auto& [name, value] : row["settings"].items()) settings.push_back(name + " " + text(value));
    if (const double scale = row["learning_rate_scale"]; scale != 1)
      settings.push_back(fmt::format("learning rate x {}", scale));
    table.add({patterns.empty() ? "all others" : join(patterns), with_commas(row["tensors"].get<int64_t>()),
               with_commas(row["parameters"].get<int64_t>()),
               settings.empty() ? "those of the optimizer" : join(settings)});
  }
  return "\nparameter groups\n" + table.str(2, style.width);
}

/// A schedule as a curve of the whole run.
std::string learning_rate(const Json& r) {
  if (!r.contains("learning_rate")) return "";
  const Json& rate = r["learning_rate"];
  const std::string outlived = text(rate["outlived"]);
  return fmt::format("\nlearning rate over {} steps: {:.4g} in the first, {:.4g} in the last\n  {}\n{}",
                     with_commas(rate["steps"].get<int64_t>()), rate["first"].get<double>(), rate["last"].get<double>(),
                     text(rate["curve"]), outlived.empty() ? "" : "  " + outlived + "\n");
}

}  // namespace

std::vector<FoldLine> folded_layers(const Json& report) {
  std::vector<FoldRow> rows;
  for (const Json& layer : report["layers"]) rows.push_back({text(layer["name"]), facts(layer)});
  return fold_rows(rows);
}

std::string render_plan(const Json& r, const PlanStyle& style) {
  std::string out = render_headline(r, style.width) + stages(r, style) + layers(r, style);
  if (r.contains("local_shards") && style.shows_layers())
    out += render_local_shards(r["local_shards"], style.full, style.width);
  out += redistributions(r, style);
  if (r["micro_batches"].get<int>() > 1 || r["stages"].get<int>() > 1)
    out += "\nschedule\n" + draw_schedule(r["tasks"], style.width);
  out += learning_rate(r) + parameter_groups(r, style) + render_served(r, style.width) + memory(r, style) +
         validation(r, style) + checkpoint(r, style) + communication(r, style) + render_estimate(r) +
         render_search(r, style.width);
  for (const Json& note : r["notes"]) out += "\nnote: " + text(note) + "\n";
  return fit_lines(out, style.width);
}

std::string render_model(const Json& r, size_t width) {
  const auto batch = std::max<int64_t>(1, r["batch"].get<int64_t>());
  const auto per_sample = [&](const Json& flops) { return count_text(Json(flops.get<int64_t>() / batch)); };
  const Json& all = r["layers"];
  Table table({"layer", "type", "output", ">parameters", ">flops per sample"});
  for (const FoldLine& line : folded_layers(r)) {
    const std::string indent(static_cast<size_t>(2 * line.depth), ' ');
    if (line.times > 0) {
      table.add({indent + fmt::format("{}, {} times:", line.name, line.times), "", "", "", ""});
      continue;
    }
    const Json& layer = all[line.rows.front()];
    table.add({indent + line.name, text(layer["type"]), shapes(layer["outputs"]), count_text(layer["parameters"]),
               per_sample(layer["flops_per_step"])});
  }
  int64_t flops = 0;
  for (const Json& layer : all) flops += layer["flops_per_step"].get<int64_t>();
  return fmt::format("{}: {}, {} parameters, {} flops per sample (forward and backward), batch {}\n\n", text(r["job"]),
                     plural(static_cast<int64_t>(all.size()), "layer"), with_commas(r["parameters"].get<int64_t>()),
                     per_sample(Json(flops)), with_commas(batch)) +
         table.str(2, width);
}

}  // namespace trainctl
