// One matrix product as the matmul kernels state it, and the three ways to make it on a GPU:
//   thin    products with a vector: a warp an element of C
//   tile    tiles on tensor cores, k shared by clusters; small products, where a library's launch costs more than the
//           work
//   cublas  everything else
// The first two are f32 alone, in true f32.
#pragma once

#include <optional>

#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl::cuda {

/// C[m,n] (+)= op(A) op(B) (+ bias[n]), then the activation, or times an activation's slope; for each of `batch`
/// products. All row-major; all but `a` contiguous.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;  ///< [m,k], or [k,m] when transposed
  const void* b = nullptr;  ///< [k,n], or [n,k] when transposed
  void* c = nullptr;
  DType operands = DType::f32, result = DType::f32;
  bool transpose_a = false, transpose_b = false;
  int64_t batch = 1;
  int64_t a_step = 0, b_step = 0, c_step = 0;  ///< elements from one product's matrix to the next's; 0: shared
  int64_t a_row = 0;                           ///< elements from a row of `a`, as it lies, to the next; 0: contiguous

  const void* bias = nullptr;
  DType bias_type = DType::f32;
  Activation activation = Activation::none;
  void* before = nullptr;  ///< [m,n], where wanted: what the activation is of
  /// C is multiplied by this activation's slope; relu's from its result, gelu's from what it is of.
  Activation slope = Activation::none;
  const void* slope_at = nullptr;  ///< [m,n]

  bool accumulate = false;
  /// With accumulate: C -= *descend * the product. Device memory, read at each run.
  const float* descend = nullptr;
  /// Sums over k of C's type, where wanted: of op(A) [m], of op(B) [n]. Added to, or a step of descent, as told here.
  void* a_sums = nullptr;
  void* b_sums = nullptr;
  bool sums_accumulate = false;

  bool tf32 = false;
};

/// Null where this way does not make this product.
std::optional<CudaKernel> prepare_thin(const Product& product);
std::optional<CudaKernel> prepare_tile(const Product& product);
/// Null where the library has no such epilogue.
std::optional<CudaKernel> prepare_cublas(const Product& product, CudaScratch& scratch);

/// The fastest of the three that makes all of it.
std::optional<CudaKernel> prepare_product(const Product& product, CudaScratch& scratch);

}  // namespace trainctl::cuda
