// A part of a tensor, as checkpoints store it.
#pragma once

#include "engine/graph/shape.h"

namespace trainctl {

/// Elements [offset, offset + shape) of each dim.
struct Box {
  Shape offset, shape;
  bool operator==(const Box&) const = default;
};

}  // namespace trainctl
