// The option --map of export and import, and their lists of names.
#include "cli/commands/checkpoint/choose_map.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/text/name_maps.h"
#include "engine/base/text.h"

namespace trainctl {

void add_map(CLI::App& command, std::string& map) {
  command.add_option("--map", map,
                     "Name map of the tensors: auto (by the model's config.json), " + join(map_names()) +
                         ", or a YAML file; default: names of the job");
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
