// Gradients of keys or values, one part for each query head of a group, that are added in their order.
#pragma once

#include "engine/ops/attention/attention_shape.h"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {

/// Parts of bf16 [b, g, keys, d] at a fixed distance in bytes; d is a multiple of 8.
struct KeyParts {
  int64_t b = 0, g = 0, keys = 0, d = 0;
  int64_t count = 0, bytes = 0;
};

/// to[b, g, key] = the sum of the parts, in f32; `to` with the strides of `heads`. Both aligned to 16 bytes.
void add_key_parts(CudaStream stream, const void* from, const KeyParts& parts, void* to, const Heads& heads);

}  // namespace trainctl
