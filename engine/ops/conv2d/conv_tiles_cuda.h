// The weight gradient of a convolution in tiles on tensor cores, for bf16 images that are channels last. Windows are
// split over enough blocks to fill the GPU; their sums are f32 and are added in a fixed order.
#pragma once

#include "engine/ops/conv2d/conv_own_cuda.h"

namespace trainctl {

/// Returns whether tiles can compute it (conv_tiles.h).
bool can_tile(const ConvShape& s, const ConvTensors& tensors);
/// Null if they cannot.
CudaKernel weight_grad_by_tiles(const ConvShape& s, const ConvTensors& tensors, CudaScratch* scratch);

}  // namespace trainctl
