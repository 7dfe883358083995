// Products of factors in 8 bits (quantise/quantised.h): which products of bf16 they can replace, and the kernel.
#pragma once

#include <optional>

#include "engine/ops/kernel_def.h"

namespace trainctl {

/// C[m, n] = sum_k A[m, k] B[n, k]; both factors are lines along k. in: A's words, A's scales, B's words, B's scales,
/// with the epilogue's bias the bias [n]; attrs a_squares, b_squares: how the scales are (not both); attr tensor: each
/// factor has one scale; attrs a_e5m2, b_e5m2: its numbers are E5M2 (not both). C has the dims of A's rows before the last
/// one, or any whose sizes multiply to m. It can accumulate.
extern const KernelDef matmul_fp8_kernel;

/// A factor of a product, as an input of its kernel.
struct Fp8Factor {
  size_t input = 0;
  bool columns = false;  ///< the product sums over all dims but the last: the factor's lines are its columns
};
struct Fp8Factors {
  Fp8Factor a, b;
};
/// The factors of a matrix product of two inputs whose second has 2 dims, or of a weight's gradient; empty for other
/// kernels.
std::optional<Fp8Factors> fp8_factors(const KernelDef& kernel, const Attrs& attrs);

}  // namespace trainctl
