// The option --map of export and import, and their lists of names.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace trainctl {

void add_map(CLI::App& command, std::string& map);

/// Lists the first few names under a heading and counts the others; "" for no names.
std::string list_of(const std::string& head, const std::vector<std::string>& names, bool all = false);

}  // namespace trainctl
