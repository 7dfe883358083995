// `track`: the trackers that get the numbers of a run while it trains, besides the files in the run's folder.
//
//   track: [tensorboard, mlflow, wandb, 'command: ./push.py']
//   track: [{type: mlflow, to: mlruns}, {command: ./push.py, required: false}]
#pragma once

#include <optional>
#include <string>

#include "engine/spec/fields.h"
#include "engine/spec/problems.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {

/// The fields of one tracker, a TrackerSpec.
const Section& tracker_section();

/// Converts one tracker to a mapping with its type. The tracker may be written as `mlflow`, 'command: ./push.py' or
/// {command: ./push.py}. For anything else, adds a problem and returns nullopt.
std::optional<YamlNode> tracker_fields(const YamlNode& node, const std::string& path, Problems& problems);

/// Returns whether the `to` of an MLflow tracker is a folder, not the URI of a server or a database.
bool is_tracking_folder(const std::string& to);

}  // namespace trainctl
