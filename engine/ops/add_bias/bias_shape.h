// A bias along attr dim of x, as a shape that broadcasts to x's: [c, 1, 1] along dim 1 of [n, c, h, w].
#pragma once

#include "engine/ops/kernel.h"

namespace trainctl {

inline Shape bias_shape(const Shape& x, const Attrs& attrs) {
  const int64_t dim = attrs.integer("dim", static_cast<int64_t>(x.size()) - 1);
  Shape shape(x.begin() + dim, x.end());
  for (size_t d = 1; d < shape.size(); ++d) shape[d] = 1;
  return shape;
}

inline void set_bias_shape(TensorArg& bias, const TensorArg& x, const Attrs& attrs) {
  bias.shape = bias_shape(x.shape, attrs);
  bias.global_shape = bias_shape(x.global_shape, attrs);
  bias.offset.resize(bias.shape.size(), 0);
}

/// A call of add_bias, (x, b), as one of add.
template <class Call>
Call with_broadcast_bias(Call call) {
  set_bias_shape(call.in[1], call.in[0], call.attrs);
  return call;
}

/// A call of bias_grad, dy -> db, as one of sum_to.
template <class Call>
Call with_broadcast_sum(Call call) {
  set_bias_shape(call.out[0], call.in[0], call.attrs);
  return call;
}

}  // namespace trainctl
