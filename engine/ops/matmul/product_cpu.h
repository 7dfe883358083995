// One matrix product as the matmul kernels describe it, and the two ways to compute it.
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
  int64_t a_row = 0, b_row = 0, c_row = 0;     ///< elements from one row in memory to the next; 0: contiguous
  int threads = 1;
  int64_t whole_c = 0;  ///< if this is one thread's share of a product: elements of C of the whole product; else 0
};

/// Uses the register tiles of tiles.h if this processor has the instructions, else oneDNN. Kernels prepared by one
/// thread share scratch memory, so they must run one at a time.
CpuKernel prepare_product(const Product& product);

/// Uses oneDNN; each execution of version 2.6 makes six small allocations.
CpuKernel prepare_product_with_onednn(const Product& product);

/// The tiles of one instruction set.
struct Tiles {
  /// Floats of scratch that run() needs for the first product of the batch; the others need the same.
  int64_t (*scratch_floats)(const Product& product);
  void (*run)(const Product& product, float* scratch);
};

/// Null if this processor or this build does not have the instructions.
const Tiles* tiles_avx2();
const Tiles* tiles_avx512();
/// The tiles with vectors of four floats, which every processor has.
const Tiles& tiles_of_fours();

/// For a kernel that multiplies small matrices as a part of its work: the widest tiles that this processor has. The
/// product has all of its row strides.
const Tiles& tiles_for_blocks();

}  // namespace trainctl::cpu
