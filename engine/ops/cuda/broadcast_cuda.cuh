// out = f(a, b) for two operands that are broadcast to out's shape by numpy's rules.
#pragma once

#include "engine/ops/cuda/activations_cuda.cuh"
#include "engine/ops/cuda/strided_cuda.cuh"

namespace trainctl {

/// Adapts F to a map over full and side operands.
template <class F>
struct OfFullAndSides {
  F f;
  __device__ float operator()(std::array<float, 1> full, std::array<float, 1> side) const {
    return f(full[0], side[0]);
  }
  __device__ float operator()(std::array<float, 0>, std::array<float, 2> side) const { return f(side[0], side[1]); }
};

/// f with its operands exchanged: the full operand is b.
template <class F>
struct Exchanged {
  F f;
  __device__ float operator()(float b, float a) const { return f(a, b); }
};

/// f(a, b) == f(b, a).
template <class F>
inline constexpr bool kCommutes = std::is_same_v<F, Sum> || std::is_same_v<F, Product>;

template <class F>
CudaKernel map_broadcast(const CudaKernelCall& call, F f, const char* name) {
  const TensorArg &a = call.in[0], &b = call.in[1], &out = call.out[0];
  const OfFullAndSides<F> op{f};
  if (a.size() == out.size() && b.size() == out.size()) return map_binary(call, f, name);
  const auto strides = [&](const TensorArg& side) { return cpu::broadcast_strides(side.shape, out.shape); };
  if (a.size() == out.size()) return map_strided<1, 1>({&a}, {&b}, out, out.shape, {strides(b)}, op, name);
  if (b.size() == out.size()) {
    using Order = std::conditional_t<kCommutes<F>, F, Exchanged<F>>;
    const OfFullAndSides<Order> exchanged{{f}};
    return map_strided<1, 1>({&b}, {&a}, out, out.shape, {strides(a)}, exchanged, name);
  }
  return map_strided<0, 2>({}, {&a, &b}, out, out.shape, {strides(a), strides(b)}, op, name);
}

}  // namespace trainctl
