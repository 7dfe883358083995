// The kernels that compute the steps of an epilogue when the kernel before them does not.
#include "engine/ops/fused_kernels.h"

#include "engine/base/error.h"
#include "engine/ops/op_def.h"

namespace trainctl {

extern const OpDef relu_op, relu_grad_op, gelu_op, gelu_grad_op, add_bias_op, add_op, bias_grad_op;

const KernelDef& activation_kernel(Activation activation) {
  check(activation != Activation::none, "an activation");
  return activation == Activation::relu ? relu_op.kernel : gelu_op.kernel;
}

const KernelDef& slope_kernel(Activation activation) {
  check(activation != Activation::none, "an activation");
  return activation == Activation::relu ? relu_grad_op.kernel : gelu_grad_op.kernel;
}

const KernelDef& bias_kernel() { return add_bias_op.kernel; }
const KernelDef& residual_kernel() { return add_op.kernel; }
const KernelDef& bias_grad_kernel() { return bias_grad_op.kernel; }

}  // namespace trainctl
