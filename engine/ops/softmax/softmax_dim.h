// The tensors of a softmax as [outer, n, inner] around its dim.
#pragma once

#include "engine/ops/kernel.h"

namespace trainctl {

struct SoftmaxDim {
  int64_t outer = 1, n = 1, inner = 1;
};

inline SoftmaxDim softmax_dim(const KernelCall& call, const Shape& shape) {
  const auto ndim = static_cast<int64_t>(shape.size());
  int64_t dim = call.attrs.integer("dim", -1);
  if (dim < 0) dim += ndim;
  SoftmaxDim a;
  for (int64_t d = 0; d < ndim; ++d) {
    const int64_t size = shape[static_cast<size_t>(d)];
    (d < dim ? a.outer : d == dim ? a.n : a.inner) *= size;
  }
  return a;
}
inline SoftmaxDim softmax_dim(const KernelCall& call) { return softmax_dim(call, call.out[0].shape); }

}  // namespace trainctl
