// An optimizer step whose rate depends on norms of the whole parameter, as cpu::prepare_layerwise: two launches
// per parameter. The first updates states and writes each block's part of both norms to scratch; in the second, each
// block adds all parts in the same order and updates its elements.
#pragma once

#include "engine/ops/cuda/optimizer_cuda.cuh"
#include "engine/ops/whole_parameters.h"

namespace trainctl {

inline constexpr int kLayerwiseThreads = 256;
/// Elements of a thread, and the most blocks of a launch: each thread of a large parameter has more.
inline constexpr int64_t kLayerwiseElements = 8, kMostLayerwiseBlocks = 1024;

// Kernels

/// Adds up `v` over the threads of a block, in a fixed order; all threads get the sum.
__device__ inline double layerwise_total(double v, double* shared) {
  __syncthreads();
  shared[threadIdx.x] = v;
  __syncthreads();
  for (unsigned half = kLayerwiseThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  return shared[0];
}

/// The elements of one parameter, and its operands.
template <class G, int S>
struct LayerwiseOperands {
  Ref<G> gradient;
  Ref<float> weight;
  std::array<Ref<float>, S> states;
  Ref<bf16> copy;
  int64_t first = 0, size = 0;

  __device__ void load(int64_t at, float& g, float& w, std::array<float, S>& of) const {
    g = value(gradient, at);
    w = value(weight, at);
    for (int k = 0; k < S; ++k) of[k] = value(states[k], at);
  }
  __device__ void store(int64_t at, const std::array<float, S>& of) const {
    for (int k = 0; k < S; ++k) set(states[k], at, of[k]);
  }
};

/// parts: [blocks, 2], squares of weights and of directions.
template <class G, int S, class Rule>
__global__ void __launch_bounds__(kLayerwiseThreads)
    layerwise_norms(LayerwiseOperands<G, S> operands, Rule rule, CudaClip clip, const StepScalars* scalars,
                    float rate_scale, double* parts) {
  wait_for_kernel_before();
  let_next_kernel_start();
  __shared__ double shared[kLayerwiseThreads];
  StepScalars now = *scalars;
  now.learning_rate *= rate_scale;
  const auto step = rule.at(now, clip.scale());
  double weights = 0, directions = 0;
  if (!clip.skips()) {
    const int64_t stride = static_cast<int64_t>(gridDim.x) * kLayerwiseThreads;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * kLayerwiseThreads + threadIdx.x; i < operands.size;
         i += stride) {
      float g, w;
      std::array<float, S> of{};
      operands.load(operands.first + i, g, w, of);
      step.begin(clip.bounded(g), of);
      operands.store(operands.first + i, of);
      const double d = step.direction(clip.bounded(g), w, of);
      weights += static_cast<double>(w) * w;
      directions += d * d;
    }
  }
  const double weights_total = layerwise_total(weights, shared);
  const double directions_total = layerwise_total(directions, shared);
  if (threadIdx.x != 0) return;
  parts[2 * blockIdx.x] = weights_total;
  parts[2 * blockIdx.x + 1] = directions_total;
}

/// Adds up the norms that layerwise_norms wrote as `parts`, and updates the elements of this block.
template <class G, int S, class Rule>
__global__ void __launch_bounds__(kLayerwiseThreads)
    layerwise_update(LayerwiseOperands<G, S> operands, Rule rule, CudaClip clip, const StepScalars* scalars,
                     float rate_scale, const double* parts) {
  wait_for_kernel_before();
  let_next_kernel_start();
  __shared__ double shared[kLayerwiseThreads];
  StepScalars now = *scalars;
  now.learning_rate *= rate_scale;
  const auto step = rule.at(now, clip.scale());
  double weights = 0, directions = 0;
  for (unsigned b = threadIdx.x; b < gridDim.x; b += kLayerwiseThreads) {
    weights += parts[2 * b];
    directions += parts[2 * b + 1];
  }
  const double weights_total = layerwise_total(weights, shared);
  const double directions_total = layerwise_total(directions, shared);
  const float ratio = step.ratio(static_cast<float>(sqrt(weights_total)), static_cast<float>(sqrt(directions_total)));
  const bool skips = clip.skips();
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kLayerwiseThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kLayerwiseThreads + threadIdx.x; i < operands.size; i += stride) {
    const int64_t at = operands.first + i;
    float g, w;
    std::array<float, S> of{};
    operands.load(at, g, w, of);
    if (!skips) {
      step.update(clip.bounded(g), w, of, ratio);
      set(operands.weight, at, w);
      operands.store(at, of);
    }
    if (operands.copy.p != nullptr) set(operands.copy, at, w);
  }
}

// Launchers

/// in: gradient, (clip norm^2); out: weight, S states, (bf16 copy of the weight). Weight and states are f32.
template <int S, class Rule>
CudaKernel prepare_layerwise(const CudaKernelCall& call, Rule rule, const char* name) {
  check(call.out.size() > S, "an optimizer's states are outputs after the weight");
  call.scratch->need(2 * kMostLayerwiseBlocks * static_cast<int64_t>(sizeof(double)));
  return with_float_type(call.in[0].dtype, [&](auto g) -> CudaKernel {
    using G = decltype(g);
    LayerwiseOperands<G, S> operands;
    operands.gradient = ref<G>(call.in[0]);
    operands.weight = ref<float>(call.out[0]);
    for (int k = 0; k < S; ++k) operands.states[k] = ref<float>(call.out[static_cast<size_t>(k) + 1]);
    if (call.out.back().dtype == DType::bf16) operands.copy = ref<bf16>(call.out.back());
    return [=, parameters = whole_parameters(call), clip = CudaClip::of(call), scalars = call.scalars,
            rate_scale = static_cast<float>(call.attrs.number("learning_rate_scale", 1.0)),
            scratch = call.scratch](CudaStream stream) {
      auto* const parts = static_cast<double*>(scratch->memory());
      for (const WholeParameter& p : parameters) {
        LayerwiseOperands<G, S> of = operands;
        of.first = p.first;
        of.size = p.size();
        const auto blocks = static_cast<unsigned>(
            std::clamp<int64_t>(ceil_div(of.size, kLayerwiseThreads * kLayerwiseElements), 1, kMostLayerwiseBlocks));
        launch(layerwise_norms<G, S, Rule>, blocks, kLayerwiseThreads, 0, stream, name, of, rule, clip, scalars,
               rate_scale, parts);
        launch(layerwise_update<G, S, Rule>, blocks, kLayerwiseThreads, 0, stream, name, of, rule, clip, scalars,
               rate_scale, static_cast<const double*>(parts));
      }
    };
  });
}

}  // namespace trainctl
