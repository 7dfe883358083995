// An optimizer step over a whole bucket in one launch: each element's gradient, weight and states are read once and
// written once. The same pass clips the gradient and writes the bf16 copy that the next step computes with.
#pragma once

#include "engine/ops/cuda/map_cuda.cuh"
#include "engine/ops/loss_scale.h"

namespace trainctl {

/// Clips by global norm or by value, and skips steps whose gradients are not finite, as cpu::Clip.
struct CudaClip {
  float norm = 0;                       ///< the largest global norm; 0: no clipping by norm
  float value = 0;                      ///< the largest absolute value of an element; 0: no clipping by value
  bool skips_not_finite = false;        ///< a step whose gradients are not all finite changes nothing
  const float* squared_norm = nullptr;  ///< [1], over all gradients of the job
  GradientScale gradients = {};

  static CudaClip of(const CudaKernelCall& call) {
    CudaClip clip{static_cast<float>(call.attrs.number("clip_norm", 0.0)),
                  static_cast<float>(call.attrs.number("clip_value", 0.0)), call.attrs.flag("skip_not_finite")};
    clip.gradients = GradientScale::of(call);
    if (clip.norm <= 0 && !clip.skips_not_finite) return clip;
    check(call.in.size() > 1, "clip_norm and skip_not_finite need the squared global norm as second input");
    clip.squared_norm = call.in[1].as<float>();
    return clip;
  }
  /// A gradient clipped by value, before its factor; keeps NaN.
  __device__ float bounded(float g) const {
    if (value <= 0) return g;
    const float most = gradients.scaled(value);
    const float above = g < -most ? -most : g;
    return above > most ? most : above;
  }
  /// True if this step changes neither weights nor states.
  __device__ bool skips() const { return skips_not_finite && !isfinite(*squared_norm); }
  /// The factor of every gradient in this step.
  __device__ float scale() const {
    const float inverse = gradients.inverse();
    return norm > 0 ? inverse * fminf(1.0f, norm / (sqrtf(*squared_norm) * inverse + 1e-6f)) : inverse;
  }
};

// Kernels

/// The learning rate is that of the step times attr learning_rate_scale, which a group of parameters may have.
///
/// Rule: `auto at(scalars, clip scale)` computes the values that all elements of a step share; `update(gradient,
/// weight&, states)` of its result updates one element.
template <int V, class G, int S, class Rule>
__global__ void __launch_bounds__(kMapThreads)
    optimizer_kernel(Ref<G> gradient, Ref<float> weight, std::array<Ref<float>, S> states, Ref<bf16> copy, Rule rule,
                     CudaClip clip, const StepScalars* scalars, float rate_scale, Span span) {
  wait_for_kernel_before();
  let_next_kernel_start();
  StepScalars now = *scalars;
  now.learning_rate *= rate_scale;
  const auto step = rule.at(now, clip.scale());
  const bool skips = clip.skips();
  const auto take = [&]<int W>(int64_t at, std::integral_constant<int, W>) {
    float g[W], w[W], s[S == 0 ? 1 : S][W];
    load(gradient, at, g);
    load(weight, at, w);
#pragma unroll
    for (int k = 0; k < S; ++k) load(states[k], at, s[k]);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      std::array<float, S> of{};
      for (int k = 0; k < S; ++k) of[k] = s[k][j];
      if (!skips) step.update(clip.bounded(g[j]), w[j], of);
      for (int k = 0; k < S; ++k) s[k][j] = of[k];
    }
    store(weight, at, w);
#pragma unroll
    for (int k = 0; k < S; ++k) store(states[k], at, s[k]);
    if (copy.p != nullptr) {
      if constexpr (W == 4) {
        const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(w[0], w[1]), __floats2bfloat162_rn(w[2], w[3])};
        uint2 q;
        memcpy(&q, pairs, sizeof q);
        *reinterpret_cast<uint2*>(copy.p + at) = q;
      } else {
        store(copy, at, w);
      }
    }
  };
  const int64_t pack = static_cast<int64_t>(blockIdx.x) * kMapThreads + threadIdx.x;
  if (pack < span.packs) take(span.head + pack * V, std::integral_constant<int, V>{});
  if constexpr (V > 1) {
    const int64_t edges = span.n - span.packs * V;
    if (blockIdx.x != gridDim.x - 1 || threadIdx.x >= edges) return;
    take(threadIdx.x < span.head ? threadIdx.x : span.packs * V + threadIdx.x, std::integral_constant<int, 1>{});
  }
}

// Launchers

template <int V, class G, int S, class Rule>
CudaKernel launch_optimizer(const CudaKernelCall& call, const TensorArg* copy, Rule rule, int64_t head,
                            const char* name) {
  std::array<Ref<float>, S> states;
  for (int k = 0; k < S; ++k) states[k] = ref<float>(call.out[static_cast<size_t>(k) + 1]);
  const Span span = span_of<V>(call.out[0].size(), head);
  const auto blocks = static_cast<unsigned>(std::max<int64_t>(1, ceil_div(span.packs, kMapThreads)));
  return [=, gradient = ref<G>(call.in[0]), weight = ref<float>(call.out[0]), clip = CudaClip::of(call),
          scalars = call.scalars, rate_scale = static_cast<float>(call.attrs.number("learning_rate_scale", 1.0)),
          to = copy == nullptr ? Ref<bf16>{} : ref<bf16>(*copy)](CudaStream stream) {
    if (span.n == 0) return;
    launch(optimizer_kernel<V, G, S, Rule>, blocks, kMapThreads, 0, stream, name, gradient, weight, states, to, rule,
           clip, scalars, rate_scale, span);
  };
}

/// in: gradient, (clip norm^2); out: weight, S states, (bf16 copy of the weight). Weight and states are f32.
template <int S, class Rule>
CudaKernel prepare_optimizer(const CudaKernelCall& call, Rule rule, const char* name) {
  check(call.out.size() > S, "an optimizer's states are outputs after the weight");
  const TensorArg* copy = call.out.size() > S + 1 && call.out.back().dtype == DType::bf16 ? &call.out.back() : nullptr;
  for (int k = 0; k <= S; ++k) {
    check(call.out[static_cast<size_t>(k)].dtype == DType::f32, "an optimizer's weight and states are f32");
  }
  check(call.in[0].size() == call.out[0].size(), "an optimizer has a gradient for each weight");
  return with_float_type(call.in[0].dtype, [&](auto g) {
    using G = decltype(g);
    constexpr int kWidth = kPack<G>;
    const auto fits = [&](int64_t first) {
      bool aligned = packs_are_aligned({&call.in[0], &call.out[0]}, first);
      for (int k = 1; k <= S; ++k) aligned = aligned && packs_are_aligned({&call.out[static_cast<size_t>(k)]}, first);
      if (copy == nullptr) return aligned;
      return aligned &&
             (reinterpret_cast<uintptr_t>(copy->data) + static_cast<uintptr_t>(2 * first)) % (2 * kWidth) == 0;
    };
    for (int64_t head = 0; head < kWidth; ++head) {
      if (fits(head)) return launch_optimizer<kWidth, G, S>(call, copy, rule, head, name);
    }
    return launch_optimizer<1, G, S>(call, copy, rule, 0, name);
  });
}

}  // namespace trainctl
