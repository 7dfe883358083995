// One more way to compute a product (product_cuda.h): few rows in bf16 with a weight, as fast as the weight is read.
#pragma once

#include <optional>

#include "engine/ops/matmul/product_cuda.h"

namespace trainctl::cuda {

/// Null unless A has at most 4 rows and B is [n, k], both in bf16 and with rows of whole 16 bytes, and nothing but a
/// bias and a residual is added.
std::optional<CudaKernel> prepare_few_rows(const Product& product);

}  // namespace trainctl::cuda
