// The epilogue of our own products, which processes a finished sum before it is stored. CUDA sources only.
#pragma once

#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/matmul/product_cuda.h"

namespace trainctl::cuda {

/// C = relu(sum * scale + bias), or times a relu's slope; see finished(). All matrices are laid out as C.
struct Finish {
  float* c = nullptr;  ///< [batch, m, n]
  int m = 0, n = 0;
  const float* bias = nullptr;
  bool relu = false;
  const float* relu_result = nullptr;  ///< multiplies by relu's slope, derived from relu's result
  bool accumulate = false;
  const float* descend = nullptr;  ///< with accumulate: C -= *descend * the sum, a gradient step; null: C += the sum
  bool vectors = false;            ///< rows may be accessed as aligned float4
};

inline bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

inline Finish finish_of(const Product& p) {
  Finish f;
  f.c = static_cast<float*>(p.c);
  f.m = static_cast<int>(p.m);
  f.n = static_cast<int>(p.n);
  f.bias = static_cast<const float*>(p.bias);
  f.relu = p.activation == Activation::relu;
  f.relu_result = static_cast<const float*>(p.slope_at);
  f.accumulate = p.accumulate;
  f.descend = p.descend;
  f.vectors = p.n % 4 == 0 && is_aligned(p.c) && is_aligned(p.slope_at) && is_aligned(p.bias);
  return f;
}

/// Returns whether a Finish can express the product's whole epilogue.
inline bool can_finish(const Product& p) {
  return p.operands == DType::f32 && p.result == DType::f32 && !p.tf32 &&
         (p.bias == nullptr || p.bias_type == DType::f32) && p.before == nullptr &&
         (p.activation == Activation::none || p.activation == Activation::relu) &&
         (p.slope == Activation::none || p.slope == Activation::relu);
}

/// The value to store: `old` is the previous value of C, `result` the element of relu_result.
__device__ inline float finished(const Finish& f, float scale, float sum, float old, float bias, float result) {
  float v = sum * scale + old + bias;
  if (f.relu) v = v < 0.0f ? 0.0f : v;
  if (f.relu_result != nullptr) v = result > 0.0f ? v : 0.0f;
  return v;
}

__device__ inline float scale_of(const Finish& f) { return f.descend == nullptr ? 1.0f : -*f.descend; }

/// Stores one element: for kernels whose threads hold single sums.
__device__ inline void store_finished(const Finish& f, int64_t step, int row, int col, float sum) {
  const int64_t at = step + static_cast<int64_t>(row) * f.n + col;
  f.c[at] = finished(f, scale_of(f), sum, f.accumulate ? f.c[at] : 0.0f, f.bias != nullptr ? f.bias[col] : 0.0f,
                     f.relu_result != nullptr ? f.relu_result[at] : 0.0f);
}

}  // namespace trainctl::cuda
