// The first lines of a plan: what it is, and the facts that users compare.
#include "cli/render/headline.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "cli/text/profile_report.h"
#include "cli/text/wrap.h"
#include "engine/base/measures.h"
#include "engine/base/text.h"
#include "launcher/rank_names.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

std::string word_of(const Json& value) { return value.get<std::string>(); }

/// "1.23 M (1,234,567)".
std::string with_short(const Json& count, std::string_view units) {
  const auto value = count.get<double>();
  const std::string exact =
      count.is_number_integer() ? with_commas(count.get<int64_t>()) : fmt::format("{:.4g}", value);
  const std::string brief = short_count(value, units);
  return brief.empty() ? exact : brief + " (" + exact + ")";
}

/// A total of the whole job, and the smallest and largest value per rank unless a single rank has the total.
std::string total_text(const Json& r, const char* field, std::string_view units) {
  std::string line = with_short(r[field], units);
  Json classes = Json::array();
  for (const Json& c : r["rank_classes"])
    if (!c.contains("server")) classes.push_back(c);
  const auto [least, most] = std::minmax_element(classes.begin(), classes.end(), [&](const Json& a, const Json& b) {
    return a[field].get<double>() < b[field].get<double>();
  });
  if (r["ranks"].get<int>() > 1 || (*least)[field] != r[field]) {
    line += "; per rank " + with_short((*least)[field], units);
    if ((*least)[field] != (*most)[field]) line += " to " + with_short((*most)[field], units);
  }
  return line;
}

/// "8, 4 of them", or "4 to 8 of them" for many ranks.
std::string counts_text(const std::vector<int64_t>& of_ranks) {
  constexpr size_t kMostListed = 8;
  if (of_ranks.size() <= kMostListed) {
    std::vector<std::string> texts;
    for (const int64_t count : of_ranks) texts.push_back(std::to_string(count));
    return join(texts) + " of them";
  }
  const auto [least, most] = std::minmax_element(of_ranks.begin(), of_ranks.end());
  return fmt::format("{} to {} of them", *least, *most);
}

/// "gpt: semi_auto_parallel, 8 ranks = 2 stages x 4 (mesh 2x2), batch 64 = 4 micro-batches of 16, 1f1b".
std::string first_line(const Json& r) {
  std::vector<std::string> mesh;
  for (const Json& size : r["mesh"]) mesh.push_back(size.dump());
  const int stages = r["stages"], all = r["ranks"], micro = r["micro_batches"];
  const int64_t batch = r["batch"];
  const auto servers = r.contains("servers") ? static_cast<int>(r["servers"].size()) : 0;
  std::string out = fmt::format("{}: {}, {}", word_of(r["job"]), word_of(r["mode"]), processes_text(all, servers));
  if (stages > 1) out += fmt::format(" = {} stages x {}", stages, all / stages);
  if (all / stages > 1 && !mesh.empty()) out += fmt::format(" (mesh {})", join(mesh, "x"));
  out += fmt::format(", batch {}{}", batch, r.contains("asynchronous") ? " per worker" : "");
  if (micro > 1) out += fmt::format(" = {} micro-batches of {}, {}", micro, batch / micro, word_of(r["schedule"]));
  if (const auto of_ranks = r.find("rank_micro_batches"); of_ranks != r.end())
    out += ", ranks run " + counts_text(of_ranks->get<std::vector<int64_t>>());
  if (const int chunks = r["chunks"]; chunks > 1) out += fmt::format(", {} chunks per stage", chunks);
  if (const int level = r["optimizer_shard_level"]; level > 0)
    out += fmt::format(", optimizer_shard level {}{}", level, r["optimizer_shard_within_host"] ? " within a host" : "");
  if (const std::string type = word_of(r["gradient_precision"]); type != "fp32") out += ", gradients in " + type;
  if (r.contains("loss_scale")) {
    const Json& scale = r["loss_scale"];
    out += fmt::format(", fp16 with a loss scale of {} (x {} after {} finite steps, x {} after an overflow)",
                       scale["initial"].get<double>(), scale["growth_factor"].get<double>(),
                       with_commas(scale["growth_interval"].get<int64_t>()), scale["backoff_factor"].get<double>());
  }
  return out + "\n";
}

std::string sizes_text(const Json& sizes) {
  if (sizes.is_null()) return "mixed: no product of data, tensor, context and pipeline; see --layers";
  std::string text = fmt::format("data {} x tensor {} x context {} x pipeline {}", sizes["data"].get<int>(),
                                 sizes["tensor"].get<int>(), sizes["context"].get<int>(), sizes["pipeline"].get<int>());
  if (const int copies = sizes["copies"]; copies > 1) text += fmt::format(" x {} copies of the same work", copies);
  return text + (sizes["sequence_parallel"].get<bool>() ? ", sequence-parallel" : "");
}

/// "expert 4: 2 of 8 experts per rank": 4 ranks share the experts of a layer.
std::string experts_text(const Json& shares) {
  std::vector<std::string> texts, sizes;
  for (const Json& share : shares) {
    const auto own = share["per_rank"].get<int64_t>(), all = share["all"].get<int64_t>();
    texts.push_back(fmt::format("{} of {}", own, all));
    sizes.push_back(std::to_string(own > 0 ? all / own : 1));
  }
  if (std::all_of(sizes.begin(), sizes.end(), [&](const auto& size) { return size == sizes[0]; })) sizes.resize(1);
  return "expert " + join(sizes) + ": " + join(texts) + " experts per rank";
}

std::string rate_of(const Json& per_second, const char* unit) {
  const double rate = per_second;
  return (rate < 100 ? fmt::format("{:.3g}", rate) : with_commas(static_cast<int64_t>(rate + 0.5))) + " " + unit + "/s";
}

std::string step_text(const Json& estimate) {
  return fmt::format("{} on {} ({}); 90 % of steps between {} and {}", duration_text(estimate["seconds"]),
                     word_of(estimate["machine"]), word_of(estimate["source"]), duration_text(estimate["low"]),
                     duration_text(estimate["high"]));
}

std::string throughput_text(const Json& headline) {
  const std::string samples = rate_of(headline["samples_per_second"], "samples");
  return headline.contains("tokens_per_second") ? rate_of(headline["tokens_per_second"], "tokens") + ", " + samples
                                                : samples;
}

/// "MFU 45.2 %, 447 TFLOP/s per GPU (data sheet: 989)".
std::string utilization_text(const Json& headline) {
  const double rate = headline["flops_per_second"];
  const bool tera = rate >= 1e11;
  std::string text = fmt::format("{:.3g} {} per {}", rate / (tera ? 1e12 : 1e9), tera ? "TFLOP/s" : "GFLOP/s",
                                 word_of(headline["device"]));
  if (headline.contains("mfu"))
    text = fmt::format("MFU {:.1f} %, {} (data sheet: {:.3g})", 100 * headline["mfu"].get<double>(), text,
                       headline["peak_flops_per_second"].get<double>() / 1e12);
  return text;
}

std::string memory_text(const Json& r) {
  const Json& memory = r["headline"]["memory"];
  const std::string needs = format_bytes(memory["bytes"]);
  const std::string rank = fmt::format("rank {}", memory["rank"].get<int>());
  if (!memory.contains("available")) return needs + " on " + rank + ", the most of all ranks";
  const Json& need = r["estimate"]["memory"];
  return fmt::format("{} of {} on {}, plus {} for the driver and libraries", needs, format_bytes(memory["available"]),
                     rank, format_bytes(need["reserved"])) +
         (need["fits"].get<bool>() ? "" : ": does not fit");
}

}  // namespace

std::string short_count(double count, std::string_view units) {
  size_t unit = 0;
  for (; count >= 999.5 && unit < units.size(); ++unit) count /= 1000;
  if (unit == 0) return "";
  return fmt::format("{:.{}f} {}", count, count < 9.995 ? 2 : count < 99.95 ? 1 : 0, units[unit - 1]);
}

std::string render_headline(const Json& r, size_t width) {
  std::string out = fit_lines(first_line(r), width);
  const auto add = [&](std::string_view label, const std::string& value) { out += labelled(label, value, width); };
  add("parallel", sizes_text(r["sizes"]));
  if (r.contains("experts_per_rank")) add("mixture", experts_text(r["experts_per_rank"]));
  const bool has_headline = r.contains("headline");
  if (has_headline && r["headline"].contains("step_seconds")) {
    const Json& h = r["headline"];
    add("step time", step_text(r["estimate"]));
    add("throughput", throughput_text(h));
    add("utilization", utilization_text(h));
    add("idle",
        fmt::format("{:.1f} % of the time of each {}", 100 * h["idle_share"].get<double>(), word_of(h["device"])));
  } else {
    add("step time", "not predicted; set launch.machine, for example h100x8");
  }
  if (has_headline) add("memory", memory_text(r));
  add("parameters", total_text(r, "parameters", "KMBT"));
  add("flops", total_text(r, "flops_per_step", "KMGTPE"));
  return out;
}

}  // namespace trainctl
