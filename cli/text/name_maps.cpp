// The name maps that come with the program, and those of files.
#include "cli/text/name_maps.h"

#include "cli/text/job_templates.h"
#include "cli/text/sources.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/model_folder/model_folder.h"
#include "engine/spec/job_spec.h"
#include "engine/train/files/input_file.h"

namespace trainctl {

std::vector<std::string> map_names() {
  std::vector<std::string> names;
  for (const JobTemplate& item : name_maps()) names.emplace_back(item.name);
  return names;
}

std::string_view find_map(const std::string& name) {
  for (const JobTemplate& item : name_maps())
    if (item.name == name) return item.text;
  const std::string near = did_you_mean(name, map_names());
  throw SpecError(
      {}, "--map", "unknown name map '" + name + "'",
      near + (near.empty() ? "" : " ") + "available maps: " + join(map_names()) + ", auto, or a *.yaml file");
}

NameMap choose_map(const std::string& map, const std::string& folder) {
  if (map.empty() || map == "job") return NameMap::same_names();
  const std::string chosen = map == "auto" ? std::string(map_of_folder(folder)) : map;
  const bool is_file = WeightsSpec{.from = folder, .map = chosen}.map_is_file();
  const std::string text = is_file ? read_whole_file(chosen) : std::string(find_map(chosen));
  const std::string name = is_file ? chosen : "<map " + chosen + ">";
  keep_source(name, text);
  return NameMap::parse(text, name);
}

}  // namespace trainctl
