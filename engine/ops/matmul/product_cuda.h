// One matrix product as the matmul kernels describe it, and the three ways to compute it on a GPU:
//   thin    products with a vector, true f32
//   tile    small products, true f32: tiles on tensor cores, k split over clusters; a library's launch would cost more
//           than the work
//   cublas  everything else
#pragma once

#include <optional>

#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl::cuda {

/// C[m,n] (+)= op(A) op(B) (+ bias[n]) (+ residual[m,n]), then the activation, or times an activation's slope; for each
/// of `batch` products. All row-major; all but `a` contiguous.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;  ///< [m,k], or [k,m] when transposed
  const void* b = nullptr;  ///< [k,n], or [n,k] when transposed
  void* c = nullptr;
  DType operands = DType::f32, result = DType::f32;
  /// Factors in 8 bits (quantise/quantised.h), in place of those of type `operands`: null if they are not. Then A is
  /// [m,k] and B [n,k], transpose_b is set, and k is a multiple of 128.
  const float* a_scales = nullptr;
  const float* b_scales = nullptr;
  bool a_squares = false, b_squares = false;  ///< how the scales are
  bool tensor_scales = false;                 ///< each factor has one
  bool a_e5m2 = false, b_e5m2 = false;

  bool is_fp8() const { return a_scales != nullptr; }
  bool transpose_a = false, transpose_b = false;
  int64_t batch = 1;
  int64_t a_step = 0, b_step = 0, c_step = 0;  ///< elements from one product's matrix to the next's; 0: shared
  int64_t a_row = 0;                           ///< elements from one row of `a` in memory to the next; 0: contiguous

  const void* bias = nullptr;
  DType bias_type = DType::f32;
  const void* residual = nullptr;  ///< [m,n] in C's type, laid out as C; not with accumulate
  Activation activation = Activation::none;
  void* before = nullptr;  ///< [m,n], or null: the activation's input, to be kept
  /// C is multiplied by this activation's slope.
  Activation slope = Activation::none;
  const void* slope_at = nullptr;  ///< [m,n]: relu's result, or gelu's input

  bool accumulate = false;
  /// With accumulate: C -= *descend * the product. In device memory, read at each run.
  const float* descend = nullptr;
  /// Sums over k of op(A) [m] and op(B) [n] in C's type, or null. `descend` applies to them too.
  void* a_sums = nullptr;
  void* b_sums = nullptr;
  bool sums_accumulate = false;

  bool tf32 = false;
};

/// Null if this way cannot compute the product.
std::optional<CudaKernel> prepare_thin(const Product& product);
std::optional<CudaKernel> prepare_tile(const Product& product);
/// Null if the library has no such epilogue.
std::optional<CudaKernel> prepare_cublas(const Product& product, CudaScratch& scratch);

/// The fastest of the three that can compute all of it; null: none can.
std::optional<CudaKernel> prepare_product(const Product& product, CudaScratch& scratch);

}  // namespace trainctl::cuda
