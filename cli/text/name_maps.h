// The name maps that come with the program, and those of files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/train/checkpoint/name_map.h"

namespace trainctl {

std::vector<std::string> map_names();
/// Returns the text of a built-in map. Throws SpecError, which lists those that exist.
std::string_view find_map(const std::string& name);
/// Returns the map of a built-in name, of a file, or for "auto" that of the model in `folder`, chosen by its
/// config.json; for "job" or "" the names are those of the job. Throws SpecError, EnvError.
NameMap choose_map(const std::string& map, const std::string& folder);

}  // namespace trainctl
