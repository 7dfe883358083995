// The option --map of export and import.
#pragma once

#include <string>
#include <vector>

#include "engine/train/checkpoint/name_map.h"

namespace CLI {
class App;
}

namespace trainctl {

void add_map(CLI::App& command, std::string& map);

/// Reads the map called `name`, or that file; "" stands for identical names. Throws SpecError.
NameMap choose_map(const std::string& map);

/// The text of a map that comes with the program. Throws SpecError.
std::string_view find_map(const std::string& name);
std::vector<std::string> map_names();

/// Lists the first few names under a heading and counts the others; "" for no names.
std::string list_of(const std::string& head, const std::vector<std::string>& names, bool all = false);

}  // namespace trainctl
