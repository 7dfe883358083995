// Operands of norms of rows: x [.., n], parameters [n] that all rows share, and f32 statistics of each row.
#pragma once

#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/rows_cuda.cuh"

namespace trainctl {

/// A parameter [n]; `otherwise` if it is absent.
template <class T>
RowSide<T> row_side(const TensorArg* arg, float otherwise, const Rows& rows, int pack) {
  if (arg == nullptr) return {{}, otherwise};
  return {ref<T>(*arg), 0, pack > 1 && rows.before == 0 && rows.n % pack == 0 && packs_are_aligned({arg})};
}

/// Null if the call has fewer inputs.
inline const TensorArg* optional_input(const CudaKernelCall& call, size_t index) {
  return index < call.in.size() ? &call.in[index] : nullptr;
}

inline Ref<float> statistic(const TensorArg& arg) {
  check(arg.dtype == DType::f32, "statistics of rows are f32");
  return ref<float>(arg);
}

inline int64_t rows_of(const TensorArg& x) { return x.shape.back() == 0 ? 0 : x.size() / x.shape.back(); }

}  // namespace trainctl
