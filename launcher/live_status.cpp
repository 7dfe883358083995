// Converts LiveStatus to and from JSON, and abbreviates lists of ranks.
#include "launcher/live_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/measures.h"

namespace trainctl {
namespace {


template <class T>
void read_field(const nlohmann::ordered_json& json, const char* key, T& value) {
  const auto found = json.find(key);
  if (found == json.end()) return;
  if constexpr (std::is_same_v<T, std::string>) {
    if (found->is_string()) value = found->get<std::string>();
  } else if (found->is_number()) {
    value = found->get<T>();
  }
}

std::vector<int> integers(const nlohmann::ordered_json& json, const char* key) {
  std::vector<int> numbers;
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array()) return numbers;
  for (const nlohmann::ordered_json& number : *found) numbers.push_back(number.is_number_integer() ? number.get<int>() : 0);
  return numbers;
}

}  // namespace

void put_loss(nlohmann::ordered_json& json, float loss) {
  json["loss"] = loss;  // dump() writes null for nan and inf, which JSON does not have
  if (const std::string_view why = not_finite_name(static_cast<double>(loss)); !why.empty()) json["not_finite"] = why;
}

std::optional<float> loss_of(const nlohmann::ordered_json& json) {
  if (const auto loss = json.find("loss"); loss != json.end() && loss->is_number()) return loss->get<float>();
  const auto why = json.find("not_finite");
  if (why == json.end() || !why->is_string()) return {};
  using Limits = std::numeric_limits<float>;
  if (*why == "inf") return Limits::infinity();
  if (*why == "-inf") return -Limits::infinity();
  return *why == "nan" ? std::optional(Limits::quiet_NaN()) : std::nullopt;
}

void put_metrics(nlohmann::ordered_json& json, const Metrics& metrics) {
  for (const auto& [name, value] : metrics) json["metrics"][name] = value;
}

Metrics metrics_of(const nlohmann::ordered_json& json) {
  Metrics metrics;
  const auto found = json.find("metrics");
  if (found == json.end() || !found->is_object()) return metrics;
  for (const auto& [name, value] : found->items())
    if (value.is_number()) metrics.emplace_back(name, value.get<double>());
  return metrics;
}

std::string metric_text(const Metrics::value_type& metric) {
  return fmt::format("{} {:.4f}", metric.first, metric.second);
}

std::string to_json(const LiveStatus& status) {
  nlohmann::ordered_json json = {{"state", status.state},
               {"attempt", status.attempt},
               {"max_restarts", status.max_restarts},
               {"epoch", status.epoch},
               {"epochs", status.epochs},
               {"step", status.step},
               {"steps", status.steps},
               {"samples_per_second", status.samples_per_second},
               {"tokens_per_second", status.tokens_per_second},
               {"share_of_peak", status.share_of_peak},
              {"memory_bytes", status.memory_bytes},
              {"gpu_memory_bytes", status.gpu_memory_bytes}};
  if (status.seconds_left) json["seconds_left"] = *status.seconds_left;
  if (status.loss) put_loss(json, *status.loss);
  put_metrics(json, status.metrics);
  if (status.slowest) json["slowest"] = *status.slowest;
  json["pids"] = status.pids;
  json["gpus"] = status.gpus;
  json["ranks"] = nlohmann::ordered_json::array();
  for (const RankGroup& group : status.ranks) json["ranks"].push_back({group.ranks, group.doing});
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::optional<LiveStatus> parse_live_status(std::string_view text) {
  const nlohmann::ordered_json json = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!json.is_object()) return {};
  LiveStatus status;
  read_field(json, "state", status.state);
  read_field(json, "attempt", status.attempt);
  read_field(json, "max_restarts", status.max_restarts);
  read_field(json, "epoch", status.epoch);
  read_field(json, "epochs", status.epochs);
  read_field(json, "step", status.step);
  read_field(json, "steps", status.steps);
  read_field(json, "samples_per_second", status.samples_per_second);
  read_field(json, "tokens_per_second", status.tokens_per_second);
  read_field(json, "share_of_peak", status.share_of_peak);
  read_field(json, "memory_bytes", status.memory_bytes);
  read_field(json, "gpu_memory_bytes", status.gpu_memory_bytes);
  if (const auto left = json.find("seconds_left"); left != json.end() && left->is_number())
    status.seconds_left = left->get<double>();
  if (const auto slowest = json.find("slowest"); slowest != json.end() && slowest->is_number_integer())
    status.slowest = slowest->get<int>();
  status.pids = integers(json, "pids");
  status.gpus = integers(json, "gpus");
  status.loss = loss_of(json);
  status.metrics = metrics_of(json);
  if (json.contains("ranks") && json["ranks"].is_array()) {
    for (const nlohmann::ordered_json& group : json["ranks"]) {
      if (group.is_array() && group.size() == 2 && group[0].is_string() && group[1].is_string())
        status.ranks.push_back({group[0].get<std::string>(), group[1].get<std::string>()});
    }
  }
  return status;
}

std::string format_ranks(const std::vector<int>& ascending) {
  std::string text;
  for (size_t i = 0; i < ascending.size();) {
    size_t end = i;
    while (end + 1 < ascending.size() && ascending[end + 1] == ascending[end] + 1) ++end;
    if (!text.empty()) text += ",";
    text += std::to_string(ascending[i]);
    if (end > i) text += (end == i + 1 ? "," : "-") + std::to_string(ascending[end]);
    i = end + 1;
  }
  return text;
}

std::vector<RankGroup> group_ranks(const std::vector<std::string>& doing, const RankNames& names) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (size_t rank = 0; rank < doing.size(); ++rank) {
    const bool is_server = names.is_server(static_cast<int>(rank));
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) {
      return g.first == doing[rank] && names.is_server(g.second.front()) == is_server;
    });
    if (group == groups.end()) group = groups.insert(groups.end(), {doing[rank], {}});
    group->second.push_back(static_cast<int>(rank));
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  std::vector<RankGroup> result;
  for (auto& [text, ranks] : groups) result.push_back({names.numbers(ranks), std::move(text)});
  return result;
}

}  // namespace trainctl
