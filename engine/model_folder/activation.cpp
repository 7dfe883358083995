// Activations by their names in transformers.
#include "engine/model_folder/activation.h"

#include <array>
#include <utility>

namespace trainctl {

std::string activation_of(const ModelConfig& config, std::string_view field, const std::string& fallback) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kActivations = {{
      {"silu", "silu"},
      {"swish", "silu"},
      {"gelu", "gelu"},
      {"gelu_new", "gelu, approximate: tanh"},
      {"gelu_pytorch_tanh", "gelu, approximate: tanh"},
      {"gelu_fast", "gelu, approximate: tanh"},
      {"relu", "relu"},
      {"tanh", "tanh"},
      {"sigmoid", "sigmoid"},
      {"quick_gelu", "quick_gelu"},
  }};
  const std::string name = config.text(field, fallback);
  for (const auto& [theirs, ours] : kActivations)
    if (name == theirs) return std::string(ours);
  config.refuse(field,
                "supported activations: silu, gelu, gelu_new, gelu_pytorch_tanh, quick_gelu, relu, tanh, sigmoid");
}

}  // namespace trainctl
