// The router on GPUs: a warp computes a row, with its scores in shared memory.
#include <climits>

#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/moe/routing.h"

namespace trainctl {
namespace {

constexpr int kRouteWarps = 4, kRouteLanes = 32;
constexpr size_t kMostRouteBytes = 48 << 10;  // of shared memory

__device__ inline float sum_of_warp(float v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
  return v;
}

/// The scores of a row in s, by all lanes of a warp.
__device__ void scores_of(const Routing& r, Ref<Mixed> logits, int64_t first, float* s) {
  const int lane = static_cast<int>(threadIdx.x);
  float top = -INFINITY, total = 0;
  for (int e = lane; e < r.experts; e += kRouteLanes) {
    s[e] = value(logits, first + e);
    top = fmaxf(top, s[e]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
  for (int e = lane; e < r.experts; e += kRouteLanes) {
    s[e] = r.sigmoid ? 1.0f / (1.0f + expf(-s[e])) : expf(s[e] - top);
    total += s[e];
  }
  total = sum_of_warp(total);
  if (!r.sigmoid)
    for (int e = lane; e < r.experts; e += kRouteLanes) s[e] /= total;
  __syncwarp();
}

/// The index of the largest of n values, the first of equal ones. -INFINITY is not a candidate.
__device__ int largest_of_warp(const float* values, int n) {
  float best = -INFINITY;
  int at = INT_MAX;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kRouteLanes) {
    if (values[i] > best) {
      best = values[i];
      at = i;
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, best, step);
    const int other_at = __shfl_xor_sync(0xffffffffu, at, step);
    if (other > best || (other == best && other_at < at)) {
      best = other;
      at = other_at;
    }
  }
  __syncwarp();  // the caller may change the values
  return at;
}

/// candidates[e] = s[e] (+ bias[e]), or -INFINITY outside of the best groups. `groups` is memory for one number per
/// group.
__device__ void find_candidates(const Routing& r, const float* s, const float* bias, float* candidates, float* groups) {
  const int lane = static_cast<int>(threadIdx.x), size = r.group_size();
  const auto rank_of = [&](int e) { return bias == nullptr ? s[e] : s[e] + bias[e]; };
  for (int g = lane; g < r.groups; g += kRouteLanes) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = 0; i < size; ++i) {
      const float v = rank_of(g * size + i);
      second = fmaxf(second, fminf(first, v));
      first = fmaxf(first, v);
    }
    groups[g] = r.sigmoid && size > 1 ? first + second : first;
  }
  for (int e = lane; e < r.experts; e += kRouteLanes) candidates[e] = r.top_groups == r.groups ? rank_of(e) : -INFINITY;
  __syncwarp();
  for (int i = 0; i < r.top_groups && r.top_groups < r.groups; ++i) {
    const int g = largest_of_warp(groups, r.groups);
    for (int e = lane; e < size; e += kRouteLanes) candidates[g * size + e] = rank_of(g * size + e);
    if (lane == 0) groups[g] = -INFINITY;
    __syncwarp();
  }
}

/// weights and ids [rows, top_k] of the experts with the highest scores: one warp per row.
__global__ void __launch_bounds__(kRouteWarps* kRouteLanes)
    route_kernel(Routing r, Ref<Mixed> logits, const float* bias, Ref<Mixed> weights, int32_t* ids, int64_t rows) {
  extern __shared__ float route_shared[];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRouteWarps + threadIdx.y;
  if (row >= rows) return;
  float* const s = route_shared + threadIdx.y * (2 * r.experts + r.groups);
  float *const candidates = s + r.experts, *const groups = candidates + r.experts;
  scores_of(r, logits, row * r.experts, s);
  find_candidates(r, s, bias, candidates, groups);
  const bool first_lane = threadIdx.x == 0;
  float total = kLeastScores;
  for (int j = 0; j < r.top_k; ++j) {
    int e = largest_of_warp(candidates, r.experts);
    if (e == INT_MAX) e = j;  // the logits are NaN, and so are the weights
    total += s[e];
    if (first_lane) {
      ids[row * r.top_k + j] = e;
      candidates[e] = -INFINITY;
    }
    __syncwarp();
  }
  const float factor = r.normalize ? r.scale / total : r.scale;
  if (first_lane)
    for (int j = 0; j < r.top_k; ++j) set(weights, row * r.top_k + j, s[ids[row * r.top_k + j]] * factor);
}

/// dlogits [rows, experts] from the gradients of the weights: one warp per row.
__global__ void __launch_bounds__(kRouteWarps* kRouteLanes)
    route_grad_kernel(Routing r, Ref<Mixed> dweights, Ref<Mixed> logits, const int32_t* ids, Ref<Mixed> dlogits,
                      int64_t rows) {
  extern __shared__ float route_shared[];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRouteWarps + threadIdx.y;
  if (row >= rows) return;
  float *const s = route_shared + threadIdx.y * 2 * r.experts, *const ds = s + r.experts;
  scores_of(r, logits, row * r.experts, s);
  const int lane = static_cast<int>(threadIdx.x);
  for (int e = lane; e < r.experts; e += kRouteLanes) ds[e] = 0;
  __syncwarp();
  const int32_t* const chosen = ids + row * r.top_k;
  float total = kLeastScores, sum = 0, along = 0;
  for (int j = 0; j < r.top_k; ++j) {
    total += s[chosen[j]];
    sum += value(dweights, row * r.top_k + j) * s[chosen[j]];
  }
  const float factor = r.normalize ? r.scale / total : r.scale,
              constant = r.normalization_gradient(value(dweights, row * r.top_k), sum, total);
  for (int j = 0; j < r.top_k; ++j) {
    const float slope = factor * (value(dweights, row * r.top_k + j) - constant);
    along += slope * s[chosen[j]];
    if (lane == 0) ds[chosen[j]] = slope;
  }
  __syncwarp();
  for (int e = lane; e < r.experts; e += kRouteLanes)
    set(dlogits, row * r.experts + e, r.sigmoid ? ds[e] * s[e] * (1 - s[e]) : s[e] * (ds[e] - along));
}

size_t bytes_of_block(const Routing& r, bool backward) {
  const size_t floats = 2 * static_cast<size_t>(r.experts) + (backward ? 0 : static_cast<size_t>(r.groups));
  const size_t bytes = kRouteWarps * floats * sizeof(float);
  check(bytes <= kMostRouteBytes, "a router of a GPU has at most 1,000 experts");
  return bytes;
}

}  // namespace

CudaKernel prepare_route(const CudaKernelCall& call) {
  const Routing routing = Routing::of(call.attrs, call.in[0].shape.back());
  const int64_t rows = call.in[0].size() / routing.experts;
  if (rows == 0) return [](CudaStream) {};
  return [=, logits = ref<Mixed>(call.in[0]), weights = ref<Mixed>(call.out[0]),
          bias = static_cast<const float*>(call.in.size() > 1 ? call.in[1].as<float>() : nullptr),
          ids = call.out[1].as<int32_t>(), bytes = bytes_of_block(routing, false)](CudaStream stream) {
    launch(route_kernel, static_cast<unsigned>(ceil_div(rows, kRouteWarps)), dim3(kRouteLanes, kRouteWarps), bytes,
           stream, "route", routing, logits, bias, weights, ids, rows);
  };
}

CudaKernel prepare_route_grad(const CudaKernelCall& call) {
  const Routing routing = Routing::of(call.attrs, call.in[1].shape.back());
  const int64_t rows = call.in[1].size() / routing.experts;
  if (rows == 0) return [](CudaStream) {};
  return [=, dweights = ref<Mixed>(call.in[0]), logits = ref<Mixed>(call.in[1]),
          ids = static_cast<const int32_t*>(call.in[2].as<int32_t>()), dlogits = ref<Mixed>(call.out[0]),
          bytes = bytes_of_block(routing, true)](CudaStream stream) {
    launch(route_grad_kernel, static_cast<unsigned>(ceil_div(rows, kRouteWarps)), dim3(kRouteLanes, kRouteWarps), bytes,
           stream, "route_grad", routing, dweights, logits, ids, dlogits, rows);
  };
}

}  // namespace trainctl
