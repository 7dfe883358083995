// A convolution by cuDNN: the fastest of the ways (conv_ways.h) and engines that it has, measured once on a machine and
// kept in the file `convolutions` (device_choices_cuda.h).
#pragma once

#include <functional>
#include <string>

#include "engine/ops/conv2d/conv_own_cuda.h"

namespace trainctl {

struct ConvProblem {
  ConvKind kind = ConvKind::forward;
  ConvShape shape;
  ConvTensors tensors;
  bool tf32 = false;
  bool relu = false;  ///< after the bias
  /// If there is a bias: the kernels that add it and then apply relu in place, for ways that are not fused.
  std::function<CudaKernel(const ConvTensors&, CudaScratch*)> finish = {};
};

/// Null if cuDNN has no engine for it in any way; then `tried` is what was tried, in words.
CudaKernel library_convolution(const ConvProblem& problem, CudaScratch* scratch, std::string& tried);

}  // namespace trainctl
