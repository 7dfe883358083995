// Weights and images as cuDNN wants them, in scratch memory: weights [k, r, s, c] for images that are channels last,
// and channels padded with zeros.
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

/// Each element of `to` from the same one of `from`; 0 if there is none. `add`: to what is there.
void copy_weight(CudaStream stream, const void* from, DType from_type, const WeightLayout& from_layout, void* to,
                 DType to_type, const WeightLayout& to_layout, bool add);

/// rows of `from_width` elements to rows of `to_width`: what is beyond is dropped, and what is new is 0.
void copy_rows(CudaStream stream, DType type, const void* from, int64_t from_width, void* to, int64_t to_width,
               int64_t rows);

}  // namespace trainctl
