// A job file as fields with their paths, to compare jobs.
#include "engine/spec/job_fields.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/text.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

/// Writes a YAML value on one line.
std::string flow(const YamlNode& node) {
  std::vector<std::string> words;
  if (node.is_list()) {
    for (const YamlNode& item : node.items) words.push_back(flow(item));
    return "[" + join(words) + "]";
  }
  if (!node.is_map()) return node.is_null() ? "null" : node.text;
  for (const YamlNode::Entry& entry : node.entries) words.push_back(entry.key + ": " + flow(entry.value));
  return "{" + join(words) + "}";
}

bool has_maps(const YamlNode& list) {
  return std::any_of(list.items.begin(), list.items.end(), [](const YamlNode& item) { return item.is_map(); });
}

void add(const YamlNode& node, const std::string& path, Fields& fields) {
  const std::string prefix = path.empty() ? "" : path + ".";
  if (node.is_map()) {
    for (const YamlNode::Entry& entry : node.entries)
      if (prefix + entry.key != "env") add(entry.value, prefix + entry.key, fields);
  } else if (node.is_list() && has_maps(node)) {
    for (size_t i = 0; i < node.items.size(); ++i) {
      const YamlNode* name = node.items[i].find("name");
      add(node.items[i], prefix + (name != nullptr ? name->text : std::to_string(i)), fields);
    }
  } else {
    fields.emplace_back(path, flow(node));
  }
}

}  // namespace

Fields job_fields(const std::string& yaml, const std::string& file) {
  Fields fields;
  add(read_yaml(yaml, file), "", fields);
  return fields;
}

nlohmann::ordered_json differing_fields(const std::vector<Fields>& jobs) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<std::optional<std::string>>> values;
  for (size_t j = 0; j < jobs.size(); ++j) {
    for (const auto& [path, value] : jobs[j]) {
      const auto [entry, is_new] = values.try_emplace(path, jobs.size());
      if (is_new) order.push_back(path);
      entry->second[j] = value;
    }
  }
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const std::string& path : order) {
    const auto& all = values[path];
    if (path == "launch.log_dir" || path == "train.checkpoint.dir") continue;
    if (std::all_of(all.begin(), all.end(), [&](const auto& value) { return value == all.front(); })) continue;
    nlohmann::ordered_json row = {{"field", path}, {"values", nlohmann::ordered_json::array()}};
    for (const auto& value : all) row["values"].push_back(value ? nlohmann::ordered_json(*value) : nullptr);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace trainctl
