// Fields of layers on volumes [n, c, depth, height, width]: one number for the three dims, or one for each.
#pragma once

#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

#include "engine/ops/layer_def.h"

namespace trainctl {

using Three = std::array<int64_t, 3>;

inline Three three_of(const Attrs& attrs, const char* field) {
  const Ints given = attrs.ints(field);
  if (given.size() == 3) return {given[0], given[1], given[2]};
  return {given.at(0), given.at(0), given.at(0)};
}

inline Field of_three(const char* name, const char* doc) {
  return per_dim(name, std::string(doc) + ": one number, or [depth, height, width].");
}

/// The faults of these fields.
inline std::vector<FieldFault> faults_of_three(const Attrs& attrs, std::initializer_list<const char*> fields) {
  std::vector<FieldFault> faults;
  for (const char* field : fields) {
    const auto* given = attrs.has(field) ? std::get_if<Ints>(attrs.find(field)) : nullptr;
    if (given != nullptr && given->size() != 1 && given->size() != 3)
      faults.push_back({field,
                        fmt::format("{} numbers; expected one, or one for each of depth, height and width",
                                    given->size()),
                        "e.g. [3, 3, 3]"});
  }
  return faults;
}

/// Throws unless the layer's input is a volume with the batch in dim 0.
inline void expect_volume(const LayerContext& layer) {
  if (layer.shape().size() != 5)
    shape_error(fmt::format("{} needs an input [n, c, depth, height, width], but got {}", layer.def.name,
                            to_string(layer.shape())));
}

}  // namespace trainctl
