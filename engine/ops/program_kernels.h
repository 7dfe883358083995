// The kernels that only compiled programs use, not ops of the graph; for the passes that emit them.
#pragma once

#include "engine/ops/kernel_def.h"

namespace trainctl {

/// out[o,i] = in[o,index,i]; attrs outer, parts, index, inner (elements). Converts if the types differ.
extern const KernelDef copy_slice_kernel;
/// out[p,o,i] = in[o,p,i]; attrs outer, parts, inner.
extern const KernelDef pack_kernel;
/// out[o,p,i] = in[p,o,i]; attrs outer, parts, inner.
extern const KernelDef unpack_kernel;
/// out += in, both of the same shape.
extern const KernelDef accumulate_kernel;
/// out = 0
extern const KernelDef zero_kernel;
/// out[1] = sum in^2, computed in double; can accumulate.
extern const KernelDef sum_squares_kernel;
/// out[1] = 0 if in[1] is finite, else 1.
extern const KernelDef count_not_finite_kernel;
/// Optimizer states in fewer bytes, see pack_states/pack_states.cpp.
extern const KernelDef unpack_states_kernel, pack_states_kernel;
/// out: squared norm, the last norms. attrs limit, least, mean; see limit_norm/limit_norm.cpp.
extern const KernelDef limit_norm_kernel;
/// out: gradients; clips that of each parameter by its own norm, in place. in: weights, which only define the shard.
/// attrs norm, parameters (OptimizerDef::needs_whole_parameters).
extern const KernelDef clip_parameters_kernel;
/// out += rate (in - out), with the StepScalars' average_rate.
extern const KernelDef average_weights_kernel;
/// out: weights, their average, (bf16 copy of the weights). Exchanges the first two and writes the copy.
extern const KernelDef exchange_average_kernel;
/// in: sum of the replicas' differences (outer weights - weights); out: outer weights, momentum, weights, (bf16 copy of
/// the weights). With g = scale in: momentum = mu momentum + g; outer weights -= rate (g + mu momentum), without
/// nesterov rate momentum; the weights are the outer weights. attrs learning_rate, momentum, scale, nesterov.
extern const KernelDef outer_update_kernel;
/// A chain of element-wise ops in one pass; attr expression: elementwise/expression.h.
extern const KernelDef elementwise_kernel;
/// A loss and its gradient in one pass. in: prediction, label; out: loss [1] f32 (can accumulate), gradient like
/// the prediction, which may use the prediction's memory. attr scale.
extern const KernelDef mae_with_grad_kernel, mse_with_grad_kernel, softmax_cross_entropy_with_grad_kernel;
/// in: gradient, (clip norm^2 [1]); out: weight, (momentum), (bf16 copy of the weight).
/// attrs momentum, nesterov, weight_decay, clip_norm (0 = none).
/// The copy, if present, is the last output and the only one of type bf16: the new weight rounded to nearest even.
/// It is written and never read.
extern const KernelDef sgd_update_kernel;
/// in: gradient, (clip norm^2 [1]); out: weight, m, v, (bf16 copy of the weight).
/// attrs beta1, beta2, eps, weight_decay, decoupled (adamw), clip_norm.
extern const KernelDef adam_update_kernel;

}  // namespace trainctl
