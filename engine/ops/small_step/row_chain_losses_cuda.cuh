// The losses of a chain, one warp per row. Each block of a cluster computes all gradients; the first block writes them
// to memory and sums the loss.
#pragma once

#include "engine/ops/cuda/sums_cuda.cuh"
#include "engine/ops/small_step/cluster_messages_cuda.cuh"
#include "engine/ops/small_step/row_chain_links_cuda.cuh"

namespace trainctl::cuda {

/// A lane's label of the warp's row, requested long before its use.
union Label {
  float value = 0;
  int32_t of_class;
};

__device__ __forceinline__ Label fetch_label(const Link& l, const Place& on) {
  const int row = on.row, lane = on.lane;
  Label label;
  if (row >= on.rows) return label;
  if (l.kind == LossKind::softmax_cross_entropy)
    label.of_class = reinterpret_cast<const int32_t*>(l.w)[on.row0 + row];
  else if (lane < l.n)
    label.value = l.w[static_cast<int64_t>(on.row0 + row) * l.n + lane];
  return label;
}

/// A lane's columns of the warp's row: lane, lane + 32, ..
struct LossRow {
  const float* x;  ///< all columns
  float* dx;       ///< the lane's
  float* y;        ///< null unless this is the first block, which writes the gradients
  int row, n;

  __device__ __forceinline__ LossRow(const Link& l, const Place& on) : x(on.shared + l.rows), row(on.row), n(l.n) {
    dx = l.kept < 0 ? nullptr : on.shared + l.kept + place_in_rows(row, on.lane);
    y = on.block == 0 ? l.y + static_cast<int64_t>(on.row0 + row) * l.n : nullptr;
  }
  __device__ __forceinline__ float prediction(int col) const {
    return x[col / kCols * kRowTile + place_in_rows(row, col % kCols)];
  }
  __device__ __forceinline__ void clear(int of_tile) const {
    if (dx != nullptr) dx[of_tile * kRowTile] = 0;
  }
  /// Zeros beyond the last column.
  __device__ __forceinline__ void set_grad(int col, float v) const {
    if (dx != nullptr) dx[col / kCols * kRowTile] = col < n ? v : 0.0f;
    if (y != nullptr && col < n) y[col] = v;
  }
};

/// For predictions and labels of the same shape.
__device__ __forceinline__ double pair_loss(const Link& l, const Place& on, const LossRow& row, float first_label) {
  const float* const labels = l.w + static_cast<int64_t>(on.row0 + on.row) * l.n;
  const auto scale = static_cast<float>(l.scale);
  double total = 0;
  for (int i = 0, col = on.lane; i < l.tiles; ++i, col += kCols) {
    const float label = i == 0 || col >= l.n ? first_label : labels[col];
    const float off = row.prediction(col) - label;
    row.set_grad(col, slope_of_pair(l.kind, scale, off));
    if (col < l.n) total += loss_of_pair(l.kind, off);
  }
  return total;
}

__device__ __forceinline__ double softmax_loss(const Link& l, const Place& on, const LossRow& row, int32_t label) {
  constexpr int kOfLane = kMostClasses / kCols;
  const int lane = on.lane;
  check_label(label, l.n);
  const float of_label = row.prediction(label);
  float v[kOfLane];
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) v[i] = lane + kCols * i < l.n ? row.prediction(lane + kCols * i) : of_label;
  const SoftmaxRow softmax = softmax_slopes<kCols>(v, lane, l.n, label, of_label, static_cast<float>(l.scale));
#pragma unroll
  for (int i = 0; i < kOfLane; ++i)
    if (i < l.tiles) row.set_grad(lane + kCols * i, v[i]);
  return lane == 0 ? softmax.loss(of_label) : 0.0f;
}

/// Computes the gradients, and in the first block the losses that count_loss() waits for. `came` as in make_tiles().
__device__ __forceinline__ void make_loss(const Link& l, const Place& on, const Label& label, float* came) {
  if (came != nullptr) wait_for_bytes(came);
  const LossRow row(l, on);
  double total = 0;
  if (on.row >= on.rows) {  // padding
    for (int i = 0; i < l.tiles; ++i) row.clear(i);
  } else if (l.kind == LossKind::softmax_cross_entropy) {
    total = softmax_loss(l, on, row, label.of_class);
  } else {
    total = pair_loss(l, on, row, label.value);
  }
  if (on.block == 0) {
    reinterpret_cast<double*>(on.shared + kLosses)[threadIdx.x] = total;
    note(on.shared + kLossesCame);
  }
  if (l.n > kCols) meet_workers();  // the next layer's warps take parts of all rows
}

/// Sums the loss, in a fixed order. Called by a weight-loading warp of the first block, which no other warp waits for.
/// The clusters' parts go to memory; the last cluster to publish its part adds them, in order.
__device__ __forceinline__ void count_loss(const Chain& chain, const Place& on, int cluster) {
  wait_for_bytes(on.shared + kLossesCame);
  const auto* const losses = reinterpret_cast<const double*>(on.shared + kLosses) + on.lane;
  double total = 0;
#pragma unroll
  for (int row = 0; row < kRows; ++row) total += losses[row * 32];
  total = sum_of_group(total, 32);
  const int parts = static_cast<int>(gridDim.x) / chain.blocks;
  bool last = false;
  if (on.lane == 0) {
    __stcg(&chain.loss_parts[cluster], total);
    last = hand_in(chain.ticket) == static_cast<unsigned>(parts) - 1;
  }
  if (!__shfl_sync(~0u, last, 0)) return;
  __threadfence();
  total = sum_of_group(on.lane < parts ? __ldcg(&chain.loss_parts[on.lane]) : 0.0, 32);
  if (on.lane != 0) return;
  *chain.ticket = 0;
  const Link& l = chain.links[chain.loss];
  *l.loss = static_cast<float>((l.add_to_loss ? *l.loss : 0.0) + l.scale * total);
}

}  // namespace trainctl::cuda
