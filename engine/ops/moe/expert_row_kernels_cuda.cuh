// The experts' activations, biases and sums over rows, on a GPU; products are elsewhere. Rows are sorted by expert.
#pragma once

#include "engine/ops/moe/expert_activation_cuda.cuh"
#include "engine/ops/moe/expert_products_cuda.cuh"
#include "engine/ops/moe/expert_rows_cuda.cuh"
#include "engine/ops/moe/grouped_products_cuda.h"

namespace trainctl {

/// The expert of a row: the last one that begins at it or before it.
__device__ inline int expert_of_row(const int* starts, int experts, int row) {
  int first = 0, end = experts;
  while (end - first > 1) {
    const int middle = (first + end) / 2;
    if (starts[middle] <= row)
      first = middle;
    else
      end = middle;
  }
  return first;
}

/// Adds the bias [experts, inner] to u, if it is given, and writes a of it. A block computes one row.
__global__ void __launch_bounds__(kExpertThreads)
    activate_kernel(ExpertActivation activation, const int* starts, int experts, int64_t hidden, Ref<Mixed> bias,
                    Ref<Mixed> u, Ref<Mixed> a) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t row = blockIdx.x;
  if (row >= starts[experts]) return;
  const bool gated = is_gated(activation), has_bias = bias.p != nullptr;
  const int64_t inner = gated ? 2 * hidden : hidden;
  const int64_t at = row * inner,
                at_bias = has_bias ? expert_of_row(starts, experts, static_cast<int>(row)) * inner : 0;
  const auto part = [&](int64_t i) {
    if (!has_bias) return value(u, at + i);
    set(u, at + i, value(u, at + i) + value(bias, at_bias + i));
    return value(u, at + i);
  };
  for (int64_t i = threadIdx.x; i < hidden; i += kExpertThreads) {
    const float gate = part(i), other = gated ? part(hidden + i) : 0.0f;
    set(a, row * hidden + i, activated_pair(activation, gate, other).a);
  }
}

/// Adds the bias [experts, features] to rows, times the weight of the row's pair if weights are given. A block computes
/// one row.
__global__ void __launch_bounds__(kExpertThreads)
    add_down_bias_kernel(ExpertRowsRef rows, int experts, int64_t features, Ref<Mixed> bias, Ref<Mixed> weights,
                         Ref<Mixed> made) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t row = blockIdx.x;
  if (row >= rows.starts[experts]) return;
  const int64_t of_expert = expert_of_row(rows.starts, experts, static_cast<int>(row)) * features;
  const float weight = weights.p == nullptr ? 1.0f : value(weights, rows.pair_of[row]);
  for (int64_t i = threadIdx.x; i < features; i += kExpertThreads)
    set(made, row * features + i, value(made, row * features + i) + weight * value(bias, of_expert + i));
}

/// Adds dy . bias of the row's expert to the gradient of its pair's weight. A warp computes one row.
__global__ void __launch_bounds__(kExpertThreads)
    down_bias_weight_grad_kernel(ExpertRowsRef rows, int experts, int64_t most_rows, int64_t features, Ref<Mixed> bias,
                                 Ref<Mixed> dy, Ref<Mixed> dweights) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kExpertThreads / 32) + threadIdx.x / 32;
  if (row >= most_rows || row >= rows.starts[experts]) return;
  const int64_t of_expert = expert_of_row(rows.starts, experts, static_cast<int>(row)) * features;
  const int64_t of_token = rows.token_of[row] * features;
  const int pair = rows.pair_of[row];
  float dot = 0;
  for (int64_t i = threadIdx.x % 32; i < features; i += 32) dot += value(dy, of_token + i) * value(bias, of_expert + i);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, step);
  if (threadIdx.x % 32 == 0) set(dweights, pair, value(dweights, pair) + dot);
}

/// to [experts, columns] (+)= the sum of the rows of each expert; 0 if `is_here` is false, because another rank has the
/// sums. A thread computes one column of one expert (blockIdx.y).
__global__ void __launch_bounds__(kExpertThreads)
    sum_bias_kernel(const int* starts, int64_t columns, ExpertOperand rows, bool is_here, Ref<Mixed> to, bool adds) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kExpertThreads + threadIdx.x;
  const int expert = static_cast<int>(blockIdx.y);
  if (column >= columns) return;
  float sum = 0;
  for (int row = starts[expert]; is_here && row < starts[expert + 1]; ++row) sum += rows.at(row, column);
  const int64_t at = expert * columns + column;
  set(to, at, sum + (adds ? value(to, at) : 0.0f));
}

/// Computes a, du and the gradient of the pair's weight from u and da. A block computes one row.
__global__ void __launch_bounds__(kExpertThreads)
    activate_grad_kernel(ExpertActivation activation, ExpertRowsRef rows, int experts, int64_t hidden,
                         Ref<Mixed> weights, Ref<Mixed> u, Ref<Mixed> da, Ref<Mixed> a, Ref<Mixed> du,
                         Ref<Mixed> dweights) {
  __shared__ float sums[kExpertThreads / 32];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t row = blockIdx.x;
  if (row >= rows.starts[experts]) return;
  const bool gated = is_gated(activation);
  const int64_t inner = gated ? 2 * hidden : hidden;
  const int pair = rows.pair_of[row];
  const float weight = value(weights, pair);
  float dot = 0;
  for (int64_t i = threadIdx.x; i < hidden; i += kExpertThreads) {
    const float other = gated ? value(u, row * inner + hidden + i) : 0.0f, g = value(da, row * hidden + i);
    const ActivatedPair of = activated_pair(activation, value(u, row * inner + i), other);
    dot += g * of.a;
    set(a, row * hidden + i, of.a);
    set(du, row * inner + i, weight * g * of.slope);
    if (gated) set(du, row * inner + hidden + i, weight * g * of.other_slope);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, step);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = dot;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float total = 0;
  for (const float sum : sums) total += sum;
  set(dweights, pair, total);
}

/// y[t] = sum of the token's rows, times their weights if those are given. Pairs of other ranks get 0 in dweights, if
/// that is given. A block computes one token.
__global__ void __launch_bounds__(kExpertThreads)
    combine_rows_kernel(const int* row_of, int top_k, int64_t features, Ref<Mixed> rows, Ref<Mixed> weights,
                        Ref<Mixed> y, Ref<Mixed> dweights) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t pair = static_cast<int64_t>(blockIdx.x) * top_k;
  for (int64_t i = threadIdx.x; i < features; i += kExpertThreads) {
    float sum = 0;
    for (int j = 0; j < top_k; ++j) {
      const int64_t row = row_of[pair + j];
      if (row < 0) continue;
      const float v = value(rows, row * features + i);
      sum += weights.p == nullptr ? v : v * value(weights, pair + j);
    }
    set(y, blockIdx.x * features + i, sum);
  }
  if (dweights.p == nullptr) return;
  for (int j = static_cast<int>(threadIdx.x); j < top_k; j += kExpertThreads)
    if (row_of[pair + j] < 0) set(dweights, pair + j, 0.0f);
}

// The same for rows of bf16 in packs of 8 numbers.

/// A warp computes one row. a is multiplied by the pair's weight, so that its sums over rows need no weighted gradient
/// of y. Clears a and du of the rows behind the last one.
template <ExpertActivation A>
__global__ void __launch_bounds__(kExpertThreads)
    activate_grad_packs_kernel(ExpertRowsRef rows, int experts, int64_t most_rows, int64_t hidden, Ref<Mixed> weights,
                               Ref<bf16> u, Ref<bf16> da, Ref<bf16> a, Ref<bf16> du, Ref<Mixed> dweights) {
  wait_for_kernel_before();
  let_next_kernel_start();
  constexpr bool kGated = is_gated(A);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kExpertThreads / 32) + threadIdx.x / 32;
  const int end = rows.starts[experts], lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= most_rows || row >= end + grouped::kRowsRead) return;
  const int64_t at = row * hidden, at_inner = kGated ? 2 * at : at;
  const bool there = row < end;
  const int pair = there ? rows.pair_of[row] : 0;
  const float weight = there ? value(weights, pair) : 0.0f;
  float dot = 0;
  for (int64_t i = 8 * lane; i < hidden; i += 8 * 32) {
    Raw<bf16, 8> raw[3] = {};
    if (there) {
      raw[0] = fetch<8>(u, at_inner + i);
      if constexpr (kGated) raw[1] = fetch<8>(u, at_inner + hidden + i);
      raw[2] = fetch<8>(da, at + i);
    }
    float gate[8], other[8], g[8], to_a[8], to_gate[8], to_other[8];
    unpack(raw[0], gate);
    unpack(raw[1], other);
    unpack(raw[2], g);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const ActivatedPair of = activated_pair<A>(gate[j], other[j]);
      dot += g[j] * of.a;
      to_a[j] = weight * of.a;
      to_gate[j] = weight * g[j] * of.slope;
      to_other[j] = weight * g[j] * of.other_slope;
    }
    store(a, at + i, to_a);
    store(du, at_inner + i, to_gate);
    if constexpr (kGated) store(du, at_inner + hidden + i, to_other);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, step);
  if (there && lane == 0) set(dweights, pair, dot);
}

/// A thread computes 8 features of a token.
__global__ void __launch_bounds__(kExpertThreads)
    combine_row_packs_kernel(const int* row_of, int64_t tokens, int top_k, int packs, Ref<bf16> rows,
                             Ref<Mixed> weights, Ref<bf16> y, Ref<Mixed> dweights) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kExpertThreads + threadIdx.x, token = i / packs;
  if (token >= tokens) return;
  const int pack = static_cast<int>(i % packs);
  const int64_t pair = token * top_k;
  float sums[8] = {};
  constexpr int kAtOnce = 4;  // loads in flight
  for (int first = 0; first < top_k; first += kAtOnce) {
    Raw<bf16, 8> raw[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t row = first + j < top_k ? row_of[pair + first + j] : -1;
      raw[j].q = {};
      if (row >= 0) raw[j] = fetch<8>(rows, (row * packs + pack) * 8);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const bool weighted = weights.p != nullptr && first + j < top_k;
      const float weight = weighted ? value(weights, pair + first + j) : 1.0f;
      float v[8];
      unpack(raw[j], v);
#pragma unroll
      for (int e = 0; e < 8; ++e) sums[e] += weight * v[e];
    }
  }
  store(y, (token * packs + pack) * 8, sums);
  if (dweights.p == nullptr) return;
  for (int j = pack; j < top_k; j += packs)
    if (row_of[pair + j] < 0) set(dweights, pair + j, 0.0f);
}

}  // namespace trainctl
