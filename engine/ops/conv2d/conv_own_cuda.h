// The engine's own convolution for GPUs, for what cuDNN has no engine for: any sizes, groups, strides and both formats.
// Sums are in f32 and in a fixed order. It uses no tensor cores: many times slower than cuDNN on large images.
#pragma once

#include "engine/ops/conv2d/conv_shape.h"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/cudnn_plans.h"

namespace trainctl {

using ConvKind = cuda::CudnnConvolution::Kind;

/// The operands: images, weight, images of the output; or the gradient of one of them.
struct ConvTensors {
  TensorArg x, w, y;
  TensorArg bias = {};  ///< if it is added in the same call
};

CudaKernel own_convolution(ConvKind kind, const ConvShape& s, const ConvTensors& tensors, CudaScratch* scratch);

}  // namespace trainctl
