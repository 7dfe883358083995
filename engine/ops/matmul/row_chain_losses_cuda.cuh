// The losses of a chain, a warp a row of each set. Each block of a cluster makes all gradients; the first one writes them to memory
// and counts the loss.
#pragma once

#include "engine/ops/cluster_messages_cuda.cuh"
#include "engine/ops/data_check_cuda.cuh"
#include "engine/ops/matmul/row_chain_links_cuda.cuh"
#include "engine/ops/sums_cuda.cuh"

namespace trainctl::cuda {

/// What the warp's row is compared with, as far as a lane has it: asked for long before.
union Label {
  float value = 0;
  int32_t of_class;
};

__device__ __forceinline__ Label fetch_label(const Link& l, const Place& on, int row) {
  const int lane = on.lane;
  Label label;
  if (row >= on.rows) return label;
  if (l.kind == LinkKind::softmax_cross_entropy)
    label.of_class = reinterpret_cast<const int32_t*>(l.w)[on.row0 + row];
  else if (lane < l.n)
    label.value = l.w[static_cast<int64_t>(on.row0 + row) * l.n + lane];
  return label;
}

/// A lane's columns of the warp's row: every 32nd.
struct LossRow {
  const float* x;  ///< all columns
  float* dx;       ///< the lane's
  float* y;        ///< null: another block writes it
  int row, n;
  int tile;  ///< floats from a tile to the next

  __device__ __forceinline__ LossRow(const Link& l, const Place& on, int row, int sets)
      : x(on.shared + l.rows), row(row), n(l.n), tile(sets * kRowTile) {
    dx = l.kept < 0 ? nullptr : on.shared + l.kept + place_in_rows(row, on.lane);
    y = on.block == 0 ? l.y + static_cast<int64_t>(on.row0 + row) * l.n : nullptr;
  }
  __device__ __forceinline__ float prediction(int col) const {
    return x[col / kCols * tile + place_in_rows(row, col % kCols)];
  }
  __device__ __forceinline__ void clear(int of_tile) const {
    if (dx != nullptr) dx[of_tile * tile] = 0;
  }
  /// Zeros beyond the last column.
  __device__ __forceinline__ void set_grad(int col, float v) const {
    if (dx != nullptr) dx[col / kCols * tile] = col < n ? v : 0.0f;
    if (y != nullptr && col < n) y[col] = v;
  }
};

/// Of predictions and labels of the same shape.
__device__ __forceinline__ double pair_loss(const Link& l, const Place& on, const LossRow& row, int in_batch,
                                            const Label& first_label) {
  const float* const labels = l.w + static_cast<int64_t>(in_batch) * l.n;
  const auto scale = static_cast<float>(l.scale);
  double total = 0;
  for (int i = 0, col = on.lane; i < l.tiles; ++i, col += kCols) {
    const float label = i == 0 || col >= l.n ? first_label.value : labels[col];
    const float off = row.prediction(col) - label;
    const float slope = off > 0.0f ? scale : off < 0.0f ? -scale : off;  // a NaN goes through
    row.set_grad(col, l.kind == LinkKind::mae ? slope : 2.0f * scale * off);
    if (col < l.n) total += l.kind == LinkKind::mae ? static_cast<double>(fabsf(off)) : static_cast<double>(off) * off;
  }
  return total;
}

/// See softmax_cross_entropy_cuda.cu for why the label's own term is kept apart.
__device__ __forceinline__ double softmax_loss(const Link& l, const Place& on, const LossRow& row, int32_t label) {
  constexpr int kOfLane = kMostClasses / kCols;
  const int lane = on.lane;
  if (label < 0 || label >= l.n) data_is_wrong("softmax_cross_entropy: a label is no class of the logits");
  const float of_label = row.prediction(label);
  float v[kOfLane], top = of_label, others = 0;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const int c = lane + kCols * i;
    v[i] = c < l.n ? row.prediction(c) : of_label;
    top = v[i] <= top ? top : v[i];  // a NaN goes through
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) {
    const float other = __shfl_xor_sync(~0u, top, apart);
    top = other <= top ? top : other;
  }
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const int c = lane + kCols * i;
    v[i] = c < l.n ? __expf(v[i] - top) : 0.0f;
    if (c != label) others += v[i];
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) others += __shfl_xor_sync(~0u, others, apart);
  const float share = static_cast<float>(l.scale) / (others + __expf(of_label - top));
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const int c = lane + kCols * i;
    if (i < l.tiles) row.set_grad(c, c == label ? -share * others : v[i] * share);
  }
  if (lane != 0) return 0;
  const double own = exp(static_cast<double>(of_label) - top);
  return log(static_cast<double>(others) + own) + (static_cast<double>(top) - of_label);
}

/// The gradients; gives what this thread has of the loss's sum. `came` as in make_tiles().
template <int kSets>
__device__ __forceinline__ double make_loss(const Link& l, const Place& on, const Label (&labels)[kSets], float* came) {
  if (came != nullptr) wait_for_bytes(came);
  double total = 0;
#pragma unroll 1
  for (int set = 0; set < kSets; ++set) {
    const int row = on.row + set * kRows;
    const LossRow in_shared(l, on, row, kSets);
    if (row >= on.rows) {  // nobody's, but taken along
      for (int i = 0; i < l.tiles; ++i) in_shared.clear(i);
      continue;
    }
    Label label = labels[0];
#pragma unroll
    for (int i = 1; i < kSets; ++i)
      if (i == set) label = labels[i];
    total += l.kind == LinkKind::softmax_cross_entropy ? softmax_loss(l, on, in_shared, label.of_class)
                                                       : pair_loss(l, on, in_shared, on.row0 + row, label);
  }
  if (l.n > kCols) __syncthreads();  // the next layer's warps take parts of all rows
  return total;
}

// The loss itself. All warps' parts go to memory, and the warp that hands in the last one adds them up: nothing waits
// for it but the end of the launch.

/// By the warps of the cluster's first block: lane 0 gets how many came before.
__device__ __forceinline__ unsigned hand_in_loss(const Chain& chain, const Place& on, int cluster, double of_thread) {
  const double of_row = sum_of_group(of_thread, 32);
  if (on.lane != 0) return 0;
  __stcg(&chain.loss_parts[cluster * kRows + on.row], of_row);
  __threadfence();
  return atomicAdd(chain.ticket, 1u);
}

/// In a fixed order, whoever does it.
__device__ __forceinline__ void write_loss(const Chain& chain, const Place& on, unsigned came_before) {
  const int parts = static_cast<int>(gridDim.x) / chain.blocks * kRows;
  if (__shfl_sync(~0u, came_before, 0) != static_cast<unsigned>(parts) - 1) return;
  __threadfence();
  double total = 0;
  for (int i = on.lane; i < parts; i += 32) total += __ldcg(&chain.loss_parts[i]);
  total = sum_of_group(total, 32);
  if (on.lane != 0) return;
  *chain.ticket = 0;
  const Link& l = chain.links[chain.loss];
  *l.loss = static_cast<float>((l.add_to_loss ? *l.loss : 0.0) + l.scale * total);
}

}  // namespace trainctl::cuda
