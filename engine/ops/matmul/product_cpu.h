// One matrix product as the matmul kernels state it, and the two ways to make it.
#pragma once

#include "engine/ops/kernel.h"

namespace trainctl::cpu {

/// C[m,n] (+)= op(A) * op(B) (+ bias[n]) (relu), for each of `batch` products. All row-major.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;  ///< [m,k], or [k,m] when transposed
  const float* b = nullptr;  ///< [k,n], or [n,k] when transposed
  float* c = nullptr;
  bool transpose_a = false, transpose_b = false;
  const float* bias = nullptr;
  bool relu = false;
  bool accumulate = false;
  /// With accumulate: C -= *descend * the product (no bias, no relu). Read at each run.
  const float* descend = nullptr;
  int64_t batch = 1;
  int64_t a_step = 0, b_step = 0, c_step = 0;  ///< elements from one product's matrix to the next's; 0: shared
  int64_t a_row = 0, b_row = 0, c_row = 0;     ///< elements from a row, as it lies, to the next; 0: contiguous
  int threads = 1;
};

/// With the register tiles of tiles.h where this processor has them, else with oneDNN. Kernels that one
/// thread prepares share scratch memory: they run one at a time.
CpuKernel prepare_product(const Product& product);

/// With oneDNN 2.6, whose every execution makes six small allocations.
CpuKernel prepare_product_with_onednn(const Product& product);

/// The tiles of one instruction set.
struct Tiles {
  /// Floats of scratch that run() needs for this product (of its `batch`, the first alone is looked at).
  int64_t (*scratch_floats)(const Product& product);
  void (*run)(const Product& product, float* scratch);
};

/// Null where this processor, or this build, does not have the instructions.
const Tiles* tiles_avx2();
const Tiles* tiles_avx512();

}  // namespace trainctl::cpu
