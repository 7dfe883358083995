// `a.b=c` of the command line, applied to the tree before anything is read from it.
#pragma once

#include <string>

#include "engine/spec/problems.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {

/// Sets the field that the override names, creating mappings on the way; `network[0].units=8` goes into a
/// list, `network.layer1.units=8` to its item of that name. A key that holds dots itself (a glob) is
/// matched whole where it exists, and taken whole below parallel.strategies and parallel.stage_config.
/// The value is YAML; its position is unknown, its file "command line".
void apply_override(YamlNode& root, const std::string& text, Problems& problems);

}  // namespace trainctl
