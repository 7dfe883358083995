// The initial values of a layer's weight or bias, from its field `init` or `bias_init`.
#pragma once

#include "engine/base/field.h"
#include "engine/graph/graph.h"

namespace trainctl {

/// Elements of the input that one element of the output depends on, and the reverse.
struct Fans {
  int64_t in = 1, out = 1;
};
/// The fans of a weight [out, in, ..] whose remaining dims are a window, as in PyTorch.
Fans fans_of(const Shape& weight);

/// `attrs`: attributes of an entry of initial_types(). `fans`: null for a bias, for which only some types are defined;
/// for the others it throws ShapeError.
Init initial_values_of(const Attrs& attrs, const Fans* fans);

/// Same as in PyTorch's Linear: uniform(-1/sqrt(features), 1/sqrt(features)).
Init linear_init(int64_t features);
Init constant_init(double value);

}  // namespace trainctl
