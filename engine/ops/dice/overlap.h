// The shapes of a call of overlap or of its gradient. Plain functions, safe in .cu files.
#pragma once

#include "engine/ops/host_device.h"
#include "engine/ops/kernel.h"

namespace trainctl {

/// p is [rows, pixels, classes], the label i32 [rows, pixels] or f32 like p.
struct OverlapCall {
  int64_t rows = 1, pixels = 1, classes = 1;
  int64_t first_class = 0;  ///< this rank's first class
  bool squared = false;
  const int32_t* ids = nullptr;
  const float* shares = nullptr;

  static OverlapCall of(const KernelCall& call) {
    const TensorArg &p = call.in[0], &label = call.in[1];
    OverlapCall c;
    c.rows = p.shape.front();
    c.classes = p.shape.back();
    for (size_t d = 1; d + 1 < p.shape.size(); ++d) c.pixels *= p.shape[d];
    c.first_class = p.offset.back();
    c.squared = call.attrs.flag("squared");
    if (label.dtype == DType::i32)
      c.ids = label.as<int32_t>();
    else
      c.shares = label.as<float>();
    return c;
  }

  /// The operand of overlap_grad with the gradient of a sum; null: it has none.
  static const float* gradient_of(const KernelCall& call, int64_t sum) {
    if (!call.attrs.has("only")) return call.in[static_cast<size_t>(2 + sum)].as<float>();
    return call.attrs.integer("only") == sum ? call.in[2].as<float>() : nullptr;
  }

  /// The label of a class of this rank; `pixel` counts over all rows.
  TRAINCTL_HOST_DEVICE float label(int64_t pixel, int64_t k) const {
    if (ids != nullptr) return ids[pixel] == first_class + k ? 1.0f : 0.0f;
    return shares[pixel * classes + k];
  }
};

}  // namespace trainctl
