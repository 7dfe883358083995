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

/// One tracker as a mapping with its type: of `mlflow`, 'command: ./push.py' and {command: ./push.py}. Nothing, and a
/// problem, if it is none of these.
std::optional<YamlNode> tracker_fields(const YamlNode& node, const std::string& path, Problems& problems);

/// Returns whether the `to` of an MLflow tracker is a folder, not the URI of a server or a database.
bool is_tracking_folder(const std::string& to);

}  // namespace trainctl
