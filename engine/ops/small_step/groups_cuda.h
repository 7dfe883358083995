// The groups of kernels that are launched as one. Null where the group is none of the kind, or where it does not fit.
#pragma once

#include "engine/ops/small_step/kernel_group_cuda.h"

namespace trainctl::cuda {

/// Layers that work on each row of a batch for itself, one after another: matmul with its fused ops, and losses with
/// their gradients.
std::optional<CudaKernel> prepare_row_chain(std::span<const GroupedKernel> kernels);

/// The end of a network, of any number of rows: a product with few outputs, the loss with its gradient, and the product
/// backward where it follows.
std::optional<CudaKernel> prepare_head(std::span<const GroupedKernel> kernels);

/// Gradients of weights, or steps of descent, that do not depend on one another.
std::optional<CudaKernel> prepare_weight_grads(std::span<const GroupedKernel> kernels);

}  // namespace trainctl::cuda
