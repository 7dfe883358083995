// Losses with their gradients as part of a grouped launch: reads a call, and computes a lane's elements of a row.
#pragma once

#include <optional>

#include "engine/ops/cuda/data_check_cuda.cuh"
#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/program_kernels.h"
#include "engine/ops/small_step/kernel_group_cuda.h"
#include "engine/ops/softmax_cross_entropy/targets.h"

namespace trainctl::cuda {

enum class LossKind : uint8_t { none, mae, mse, softmax_cross_entropy };

struct RowLoss {
  LossKind kind = LossKind::none;
  DType type = DType::f32;  ///< dtype of the predictions and of their gradient
  int n = 0;                ///< predictions per row
  int64_t rows = 0;
  double scale = 1;
};

/// Null if the kernel is not one of these losses with its gradient, or if its input is empty.
inline std::optional<RowLoss> row_loss_of(const GroupedKernel& kernel) {
  const CudaKernelCall& call = kernel.call;
  RowLoss l;
  if (kernel.kernel == &mae_with_grad_kernel) {
    l.kind = LossKind::mae;
  } else if (kernel.kernel == &mse_with_grad_kernel) {
    l.kind = LossKind::mse;
  } else if (kernel.kernel == &softmax_cross_entropy_with_grad_kernel && Targets::of(call.attrs).plain()) {
    l.kind = LossKind::softmax_cross_entropy;
  } else {
    return std::nullopt;
  }
  const TensorArg &x = call.in[0], &labels = call.in[1], &loss = call.out[0], &dx = call.out[1];
  const bool classes = l.kind == LossKind::softmax_cross_entropy;
  if (dx.dtype != x.dtype || loss.dtype != DType::f32 || x.shape.empty() || x.size() == 0 ||
      x.size() > (int64_t{1} << 30) || labels.dtype != (classes ? DType::i32 : DType::f32) ||
      (!classes && labels.size() != x.size())) {
    return std::nullopt;
  }
  l.type = x.dtype;
  l.n = x.shape.size() == 1 && !classes ? 1 : static_cast<int>(x.shape.back());  // 1-D: one number per row
  l.rows = x.size() / l.n;
  l.scale = call.attrs.number("scale", 1.0);
  return l;
}

// Losses of predictions and labels of the same shape; off = prediction - label

__device__ __forceinline__ float slope_of_pair(LossKind kind, float scale, float off) {
  const float sign = off > 0.0f ? scale : off < 0.0f ? -scale : off;  // keeps NaN
  return kind == LossKind::mae ? sign : 2.0f * scale * off;
}
__device__ __forceinline__ double loss_of_pair(LossKind kind, float off) {
  return kind == LossKind::mae ? static_cast<double>(fabsf(off)) : static_cast<double>(off) * off;
}

// Softmax and cross entropy of a row that kLanes lanes share

__device__ __forceinline__ void check_label(int32_t label, int classes) {
  if (label < 0 || label >= classes) data_is_wrong("softmax_cross_entropy: the data contains a label that is not a "
                                                   "class of the logits");
}

struct SoftmaxRow {
  float top;     ///< the largest logit
  float others;  ///< sum of e^(x - top) over all classes but the label: see softmax_cross_entropy_cuda.cu

  __device__ __forceinline__ float loss(float of_label) const {
    const float off = of_label - top;  // off <= 0: nothing cancels
    return off == 0 ? log1pf(others) : logf(others + __expf(off)) - off;
  }
};

/// In `v`: the logits of classes lane, lane + kLanes, .., padded with the label's logit. Replaces them by their
/// gradients, padded with zeros.
template <int kLanes, int kOfLane>
__device__ __forceinline__ SoftmaxRow softmax_slopes(float (&v)[kOfLane], int lane, int n, int32_t label,
                                                     float of_label, float scale) {
  float top = of_label, others = 0;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) top = v[i] <= top ? top : v[i];  // keeps NaN
#pragma unroll
  for (int apart = kLanes / 2; apart > 0; apart /= 2) {
    const float other = __shfl_xor_sync(~0u, top, apart);
    top = other <= top ? top : other;
  }
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const int c = lane + kLanes * i;
    v[i] = c < n ? __expf(v[i] - top) : 0.0f;
    if (c != label) others += v[i];
  }
#pragma unroll
  for (int apart = kLanes / 2; apart > 0; apart /= 2) others += __shfl_xor_sync(~0u, others, apart);
  const float share = scale / (others + __expf(of_label - top));
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) v[i] = lane + kLanes * i == label ? -share * others : v[i] * share;
  return {top, others};
}

}  // namespace trainctl::cuda
