// The order in which the dims of a tensor are stored.
#pragma once

#include <cstdint>

#include "engine/graph/shape.h"

namespace trainctl {

enum class Format : uint8_t {
  declared,       ///< dims in the order that the graph has
  channels_last,  ///< images, in the graph [n, c, h, w], as [n, h, w, c]
};

/// Returns the position in memory order of dim `dim` of the graph: channels (dim 1) are stored last in channels_last.
constexpr int stored_dim(int dim, Format format) {
  constexpr int kChannelsLast[] = {0, 3, 1, 2};
  return format == Format::declared ? dim : kChannelsLast[dim];
}

/// Reorders sizes or offsets from the order of the graph's dims to the order in which the dims are stored.
inline Shape stored_shape(const Shape& shape, Format format) {
  Shape stored = shape;
  for (size_t d = 0; d < shape.size(); ++d)
    stored[static_cast<size_t>(stored_dim(static_cast<int>(d), format))] = shape[d];
  return stored;
}

/// True if images of this shape (that of the graph or the stored one) have the same bytes in both formats.
inline bool same_in_both_formats(const Shape& shape, Format format) {
  const int64_t channels = shape[static_cast<size_t>(stored_dim(1, format))];
  const int64_t pixels =
      shape[static_cast<size_t>(stored_dim(2, format))] * shape[static_cast<size_t>(stored_dim(3, format))];
  return channels == 1 || pixels == 1;
}

}  // namespace trainctl
