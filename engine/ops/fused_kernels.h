// The kernels that compute the steps of an epilogue when the kernel before them does not.
#pragma once

#include "engine/ops/kernel_def.h"

namespace trainctl {

/// (x) -> y
const KernelDef& activation_kernel(Activation activation);
/// (dy, y or x) -> dx
const KernelDef& slope_kernel(Activation activation);
/// (x, b) -> y
const KernelDef& bias_kernel();
/// (a, b) -> a + b
const KernelDef& residual_kernel();
/// (dy) -> db
const KernelDef& bias_grad_kernel();

}  // namespace trainctl
