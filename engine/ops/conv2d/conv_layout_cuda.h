// Converts weights and images to the layouts that cuDNN requires, in scratch memory: weights [k, r, s, c] for images
// that are channels last, and channels padded with zeros.
#pragma once

#include "engine/graph/dtype.h"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {

/// A weight [k, c, window], or [k, window, c] if it is channels last.
struct WeightLayout {
  int64_t k = 0, c = 0, window = 1;
  bool channels_last = false;

  int64_t size() const { return k * c * window; }
};

/// Sets each element of `to` to the same element of `from`, or to 0 if `from` lacks it. `add`: adds to `to` instead.
void copy_weight(CudaStream stream, const void* from, DType from_type, const WeightLayout& from_layout, void* to,
                 DType to_type, const WeightLayout& to_layout, bool add);

/// Copies rows of `from_width` elements to rows of `to_width`. Narrower rows are truncated, wider ones padded with 0.
void copy_rows(CudaStream stream, DType type, const void* from, int64_t from_width, void* to, int64_t to_width,
               int64_t rows);

}  // namespace trainctl
