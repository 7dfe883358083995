// The groups of kernels that are launched as one. Null: the group is of another kind, or does not fit.
#pragma once

#include "engine/ops/small_step/kernel_group_cuda.h"

namespace trainctl::cuda {

/// Consecutive layers that treat each row of a batch independently: matmul with its fused ops, and losses with their
/// gradients.
std::optional<CudaKernel> prepare_row_chain(std::span<const GroupedKernel> kernels);

/// The end of a network, for any number of rows: a product with few outputs, the loss with its gradient, and the
/// backward product if it follows.
std::optional<CudaKernel> prepare_head(std::span<const GroupedKernel> kernels);

/// Weight gradients, or SGD steps fused with them, that do not depend on one another.
std::optional<CudaKernel> prepare_weight_grads(std::span<const GroupedKernel> kernels);

}  // namespace trainctl::cuda
