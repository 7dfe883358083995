// One matrix product as the matmul kernels state it, and its kernel.
#pragma once

#include "engine/ops/kernel.h"

namespace trainctl::cpu {

/// C[m,n] (+)= op(A) * op(B) (+ bias[n]) (relu), for each of `batch` products. All row-major and contiguous.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;  ///< [m,k], or [k,m] when transposed
  const float* b = nullptr;  ///< [k,n], or [n,k] when transposed
  float* c = nullptr;
  bool transpose_a = false, transpose_b = false;
  const float* bias = nullptr;
  bool relu = false;
  bool accumulate = false;
  int64_t batch = 1;
  int64_t a_step = 0, b_step = 0, c_step = 0;  ///< elements from one product's matrix to the next's; 0: shared
  int threads = 1;
};

CpuKernel prepare_product(const Product& product);

}  // namespace trainctl::cpu
