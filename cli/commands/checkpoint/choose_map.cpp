// See the header.
#include "cli/commands/checkpoint/choose_map.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/errors.h"
#include "cli/text/job_templates.h"
#include "cli/text/sources.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/train/files/input_file.h"

namespace trainctl {

void add_map(CLI::App& command, std::string& map) {
  command.add_option("--map", map,
                     "Name map of the tensors: " + join(map_names()) + ", or a YAML file; default: names of the job");
}

std::vector<std::string> map_names() {
  std::vector<std::string> names;
  for (const JobTemplate& item : name_maps()) names.emplace_back(item.name);
  return names;
}

std::string_view find_map(const std::string& name) {
  for (const JobTemplate& item : name_maps())
    if (item.name == name) return item.text;
  const std::string near = did_you_mean(name, map_names());
  throw SpecError({}, "--map", "unknown name map '" + name + "'",
                  near + (near.empty() ? "" : " ") + "available maps: " + join(map_names()) + ", or a *.yaml file");
}

NameMap choose_map(const std::string& map) {
  if (map.empty()) return NameMap::same_names();
  const bool is_file = map.find('/') != std::string::npos || map.ends_with(".yaml") || map.ends_with(".yml");
  const std::string text = is_file ? read_whole_file(map) : std::string(find_map(map));
  const std::string name = is_file ? map : "<map " + map + ">";
  keep_source(name, text);
  return NameMap::parse(text, name);
}

std::string list_of(const std::string& head, const std::vector<std::string>& names, bool all) {
  constexpr size_t kMost = 4;
  if (names.empty()) return "";
  std::string text = fmt::format("  {}: {}\n", head, names.size());
  const size_t shown = all ? names.size() : std::min(kMost, names.size());
  for (size_t i = 0; i < shown; ++i) text += "    " + names[i] + "\n";
  if (shown < names.size()) text += fmt::format("    and {} more\n", names.size() - shown);
  return text;
}

}  // namespace trainctl
