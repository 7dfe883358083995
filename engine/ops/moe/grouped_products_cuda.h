// Products of bf16 of all experts in one launch, by the tensor cores of Hopper. Rows are pairs of a token and an
// expert, ordered by expert; their numbers are known only on the device. Sums are in f32 and have a fixed order.
#pragma once

#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/moe/experts_size.h"

namespace trainctl::grouped {

/// Locates the rows of the experts in memory of the device.
struct Rows {
  const int* starts = nullptr;    ///< [experts + 1]: the first row of each expert
  const int* token_of = nullptr;  ///< [rows]
  const int* pair_of = nullptr;   ///< [rows]: token * top_k + slot
  int64_t experts = 0, rows = 0;
};

/// Rows of bf16 numbers. `by_token`: row i is that of the token of pair i.
struct Operand {
  const void* data = nullptr;
  int64_t width = 0;
  bool by_token = false;
};

/// True if the kernels apply to experts of this size and tokens `x`: a Hopper GPU, whose copy engine can read rows of
/// this width. All operands begin at multiples of 16 bytes.
bool applies(const ExpertsSize& n, const void* x);

/// u[row] = up[expert] x[token] and a = act(u), with up [experts, parts, hidden, features].
void up_product(CudaStream stream, const Rows& rows, const ExpertsSize& n, ExpertActivation activation, const void* x,
                const void* up, void* u, void* a);
/// y[row] = weight[pair] * down[expert] a[row], with down [experts, features, hidden] and weights of bf16 or f32.
void down_product(CudaStream stream, const Rows& rows, const ExpertsSize& n, const void* a, const void* down,
                  const void* weights, bool weights_are_bf16, void* y);
/// y[row, columns] = x[row] matrix[expert], with matrix [experts, width of x, columns].
void product(CudaStream stream, const Rows& rows, const Operand& x, const void* matrix, int64_t columns, void* y);
/// y[expert] (+)= sum over the expert's rows of left[row]' right[row]; one of both is by token. y is f32 or bf16. Of
/// the other, the kRowsRead rows behind the last one are read too, and must be finite.
void sum_over_rows(CudaStream stream, const Rows& rows, const Operand& left, const Operand& right, void* y,
                   bool y_is_bf16, bool adds);

inline constexpr int64_t kRowsRead = 256;  ///< rows that sum_over_rows() reads behind the last one

}  // namespace trainctl::grouped
