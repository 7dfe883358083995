// The reference model of a loss such as dpo: the layers of the network once more, with the parameters of the start of
// the run. Layer "h.0.qkv" has the copy "reference.h.0.qkv", to which the settings of its original apply.
#pragma once

#include <string>
#include <string_view>

namespace trainctl {

inline constexpr std::string_view kReferencePrefix = "reference.";

inline std::string reference_layer(const std::string& layer) { return std::string(kReferencePrefix) + layer; }
/// The layer of the job whose settings apply to this one: its original, or itself.
inline std::string layer_in_job(const std::string& layer) {
  return layer.starts_with(kReferencePrefix) ? layer.substr(kReferencePrefix.size()) : layer;
}

}  // namespace trainctl
