// --map of export and import.
#pragma once

#include <string>
#include <vector>

#include "engine/train/checkpoint/name_map.h"

namespace CLI {
class App;
}

namespace trainctl {

void add_map(CLI::App& command, std::string& map);

/// "gpt2", or a file; "": the same names. Throws SpecError.
NameMap choose_map(const std::string& map);

/// The text of a map that comes with the program. Throws SpecError.
std::string_view find_map(const std::string& name);
std::vector<std::string> map_names();

/// Lines under a head, those over a few counted only; nothing for no names.
std::string list_of(const std::string& head, const std::vector<std::string>& names, bool all = false);

}  // namespace trainctl
