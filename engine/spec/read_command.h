// `command`, `env` and `working_dir`: the user's own program instead of a network.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/spec/problems.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {

/// The words as the user wrote them: `true`, `0.10` and `1e-3` stay text.
std::vector<std::string> read_command(const YamlNode& node, const std::string& path, Problems& problems);

std::map<std::string, std::string> read_environment(const YamlNode& node, const std::string& path, Problems& problems);

/// Variables that trainctl sets so that ranks find each other; `env` may not set them.
bool is_reserved_variable(std::string_view name);
/// Pattern of the names that `env` may set, for the schema.
std::string variable_name_pattern();

}  // namespace trainctl
