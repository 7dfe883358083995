// Reads optimizer.groups.
#pragma once

#include <string>

#include "engine/spec/job_spec.h"
#include "engine/spec/problems.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {

/// `[{parameters: ['*.bias'], weight_decay: 0}]` into optimizer.groups; optimizer.type is read before.
void read_parameter_groups(const YamlNode& node, const std::string& path, OptimizerSpec& optimizer, Problems& problems);

}  // namespace trainctl
