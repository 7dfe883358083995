// Overrides on the command line, `a.b=c`: applied to the tree before anything is read from it.
#pragma once

#include <string>

#include "engine/spec/problems.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {

/// Sets the field that the override names and creates mappings on the way.
///   network[0].units=8        an item of a list, by index
///   network.layer1.units=8    an item of a list, by name, also by one that the parser gives it: network.relu_1
///   loss.input=fc             where the file has the shorthand `loss: mse`, that becomes {type: mse, input: fc}
/// A key that itself contains dots (a glob) is matched whole if it exists, and always taken whole below
/// parallel.strategies and parallel.stage_config. The value is YAML and not empty; its position is unknown, its
/// file "command line".
void apply_override(YamlNode& root, const std::string& text, Problems& problems);

}  // namespace trainctl
