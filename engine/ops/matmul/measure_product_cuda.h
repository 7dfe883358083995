// Device work around cuBLASLt's products: factors in device memory, and trial runs on copies of the operands.
#pragma once

#include <functional>

#include "engine/ops/matmul/algorithm_choice_cuda.h"
#include "engine/ops/matmul/product_cuda.h"

namespace trainctl::cuda {

/// scalars[0] = -*rate, scalars[1] = 1: the factors of a fused SGD step.
void write_descent_scalars(const float* rate, float* scalars, CudaStream stream);

/// Enqueues the product `copy` with this algorithm; false if the library refuses it.
using TryProduct = std::function<bool(const Product& copy, const void* alpha, const void* beta, void* workspace,
                                      CudaStream stream, const cublasLtMatmulAlgo_t& candidate)>;

/// Times candidates on operands of the product's sizes, filled with pseudo-random numbers. If the device has no memory
/// for them, every candidate fails.
MeasureAlgorithm measure_on_copies(const Product& product, size_t workspace_bytes, TryProduct run);

}  // namespace trainctl::cuda
