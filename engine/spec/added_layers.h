// Layers that a layer of the job adds to the network (EntryType::added), such as the shared expert of a mixture. They
// are ordinary layers with names of their own, "moe.shared_up", which strategies, stages and checkpoints may refer to.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "engine/spec/job_spec.h"

namespace trainctl {

/// The layers that `layer` adds; its readers read the last one. Empty if it adds none. A dense layer without `units`
/// has one unit per feature of the layer's output.
std::vector<LayerSpec> added_layers(const LayerSpec& layer);

/// Calls `visit` for each layer of the network and, after it, for those that it adds.
void visit_layers(const JobSpec& spec, const std::function<void(const LayerSpec&)>& visit);

/// The layer that a name like "moe.shared_up" belongs to: "moe"; "" if there is no dot. Names that begin with that of a
/// layer and a dot are reserved for it.
std::string_view layer_before_dot(std::string_view name);

}  // namespace trainctl
