// Activations by their names in transformers.
#pragma once

#include <string>
#include <string_view>

#include "engine/model_folder/model_config.h"

namespace trainctl {

/// The type and the fields of the layer that computes the activation named by a field: "gelu, approximate: tanh".
std::string activation_of(const ModelConfig& config, std::string_view field, const std::string& fallback);

}  // namespace trainctl
