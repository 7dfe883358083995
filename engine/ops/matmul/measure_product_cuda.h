// Small device work around cuBLASLt's products: its factors in device memory, and trial runs on copies.
#pragma once

#include <functional>

#include "engine/ops/matmul/algorithm_choice_cuda.h"
#include "engine/ops/matmul/product_cuda.h"

namespace trainctl::cuda {

/// scalars[0] = -*rate, scalars[1] = 1: the factors of a step of descent.
void write_descent_scalars(const float* rate, float* scalars, CudaStream stream);

/// Enqueues the copy of a product with this algorithm; false where the library refuses it.
using TryProduct = std::function<bool(const Product& copy, const void* alpha, const void* beta, void* workspace,
                                      CudaStream stream, const cublasLtMatmulHeuristicResult_t& candidate)>;

/// Times candidates on operands of the product's sizes, filled with random numbers. Every candidate fails where
/// the device has no memory for them.
MeasureAlgorithm measure_on_copies(const Product& product, size_t workspace_bytes, TryProduct run);

}  // namespace trainctl::cuda
