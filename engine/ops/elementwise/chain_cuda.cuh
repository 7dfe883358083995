// A chain of element-wise ops as kernels receive it, and its evaluation with a stack in registers.
#pragma once

#include <algorithm>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/ops/cuda/activations_cuda.cuh"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/dropout_cuda.cuh"
#include "engine/ops/cuda/unary_cuda.cuh"
#include "engine/ops/elementwise/expression.h"

namespace trainctl::chains {

/// The product of p, [rows, terms], and q, [columns, terms] transposed or [terms, columns].
struct Factors {
  Ref<Mixed> p, q;
  bool nr = false;  ///< q is transposed
  int terms = 0;
};

struct Chain {
  struct Token {
    ElementwiseOp op;  ///< product_nr for both kinds of products
    uint8_t index;     ///< index of x, b, :, $ and =; for dropout, index of its mask; for a product, of its factors
    Unary function;
    UnaryParameters parameters;
  };
  int num_tokens = 0, num_inputs = 0;
  Token tokens[kMostElementwiseTokens];
  Ref<Mixed> rows[kMostElementwiseInputs];  ///< inputs of b
  Divisor row_packs[kMostElementwiseInputs];
  Along along[kMostElementwiseInputs];
  bool accumulate[kMostElementwiseOutputs] = {};
  static constexpr int kMostMasks = 4;
  DropoutMask masks[kMostMasks];
  const StepScalars* scalars = nullptr;
  int64_t packs = 0;
  static constexpr int kMostProducts = 3;
  int num_products = 0;
  Factors products[kMostProducts];
  int64_t columns = 1;  ///< the last dim of the outputs
};

template <class T>
struct Large {
  Ref<T> in[kMostElementwiseInputs], out[kMostElementwiseOutputs];
};

/// The top is v[0]. Every index is a constant, so that it stays in registers.
template <int V>
struct Stack {
  float v[kMostElementwiseDepth][V];
  float named[kMostElementwiseNames][V];

  __device__ void make_room() {
#pragma unroll
    for (int d = kMostElementwiseDepth - 1; d > 0; --d) {
#pragma unroll
      for (int j = 0; j < V; ++j) v[d][j] = v[d - 1][j];
    }
  }
  __device__ void close_up(int from) {
#pragma unroll
    for (int d = 0; d + 1 < kMostElementwiseDepth; ++d) {
      if (d < from) continue;
#pragma unroll
      for (int j = 0; j < V; ++j) v[d][j] = v[d + 1][j];
    }
  }
  template <class F>
  __device__ void map(F f) {
#pragma unroll
    for (int j = 0; j < V; ++j) v[0][j] = f(v[0][j]);
  }
  /// Replaces the top two values by f(below, top).
  template <class F>
  __device__ void join(F f) {
#pragma unroll
    for (int j = 0; j < V; ++j) v[0][j] = f(v[1][j], v[0][j]);
    close_up(1);
  }
  /// Replaces the top three values by f(lowest, middle, top).
  template <class F>
  __device__ void join_three(F f) {
#pragma unroll
    for (int j = 0; j < V; ++j) v[0][j] = f(v[2][j], v[1][j], v[0][j]);
    close_up(1);
    close_up(1);
  }
};

/// to = from[index], with constant indices only.
template <int N, int V>
__device__ inline void pick(const float (&from)[N][V], int index, float (&to)[V]) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if (k != index) continue;
#pragma unroll
    for (int j = 0; j < V; ++j) to[j] = from[k][j];
  }
}

/// Applies an op without parameters to the top of the stack: join() replaces two values by one, map() one by one.
template <int V>
__device__ inline void compute(ElementwiseOp op, Stack<V>& stack) {
  switch (op) {
    case ElementwiseOp::add:
      return stack.join(Sum{});
    case ElementwiseOp::sub:
      return stack.join(Difference{});
    case ElementwiseOp::mul:
      return stack.join(Product{});
    case ElementwiseOp::div:
      return stack.join(Quotient{});
    case ElementwiseOp::relu:
      return stack.map(Relu{});
    case ElementwiseOp::sigmoid:
      return stack.map(Sigmoid{});
    case ElementwiseOp::tanh:
      return stack.map(Tanh{});
    case ElementwiseOp::gelu:
      return stack.map(Gelu{});
    case ElementwiseOp::gelu_tanh:
      return stack.map(GeluTanh{});
    case ElementwiseOp::relu_grad:
      return stack.join(ReluGrad{});
    case ElementwiseOp::sigmoid_grad:
      return stack.join(SigmoidGrad{});
    case ElementwiseOp::tanh_grad:
      return stack.join(TanhGrad{});
    case ElementwiseOp::gelu_grad:
      return stack.join(GeluGrad{});
    case ElementwiseOp::gelu_tanh_grad:
      return stack.join(GeluTanhGrad{});
    case ElementwiseOp::where:
      return stack.join_three(Where{});
    default:
      return;
  }
}

/// Functions with parameters.
template <int V>
__device__ inline void compute(ElementwiseOp op, Unary function, const UnaryParameters& p, Stack<V>& stack) {
  if (op == ElementwiseOp::unary)
    with_unary(function, [&](auto f) { stack.map(UnaryValue<f.value>{p}); });
  else if (op == ElementwiseOp::unary_grad)
    with_unary(function, [&](auto f) { stack.join(UnaryGrad<f.value>{p}); });
  else
    stack.join(MaskedFill{p.a, p.b != 0.0f});
}

inline bool has_parameters(ElementwiseOp op) {
  return op == ElementwiseOp::unary || op == ElementwiseOp::unary_grad || op == ElementwiseOp::masked_fill;
}

/// A chain that a kernel is compiled for: an interpreter takes twice as long as memory does.
struct Step {
  ElementwiseOp op;
  uint8_t index = 0;
  Unary function = {};

  bool matches(const Chain::Token& token) const {
    const bool unary = op == ElementwiseOp::unary || op == ElementwiseOp::unary_grad;
    return op == token.op && index == token.index && (!unary || function == token.function);
  }
};
template <size_t N>
struct Steps {
  Step of[N];

  bool match(const Chain& chain) const {
    return chain.num_tokens == N &&
           std::equal(of, of + N, chain.tokens, [](const Step& s, const Chain::Token& t) { return s.matches(t); });
  }
};

/// Calls run(op, index, function, t) for each token t of a chain in memory.
template <class Run>
__device__ __forceinline__ void run_tokens(const Chain& chain, const Run& run) {
  for (int t = 0; t < chain.num_tokens; ++t)
    run(chain.tokens[t].op, chain.tokens[t].index, chain.tokens[t].function, t);
}

template <auto value>
using Constant = std::integral_constant<decltype(value), value>;

/// Calls run(op, index, function, t) for each step t of a chain that a kernel is compiled for; the first three are
/// constants.
template <const auto& kSteps, class Run>
__device__ __forceinline__ void run_steps(const Run& run) {
  [&]<size_t... t>(std::index_sequence<t...>) {
    (run(Constant<kSteps.of[t].op>{}, Constant<kSteps.of[t].index>{}, Constant<kSteps.of[t].function>{}, int(t)), ...);
  }
  (std::make_index_sequence<std::size(kSteps.of)>{});
}

using Op = ElementwiseOp;
constexpr Step kX0{Op::input, 0}, kX1{Op::input, 1}, kX2{Op::input, 2}, kTo0{Op::output, 0}, kTo1{Op::output, 1};
constexpr Step kSilu{Op::unary, 0, Unary::silu}, kSiluGrad{Op::unary_grad, 0, Unary::silu};

/// Runs chains with products in bf16 on tensor cores (product_chain_cuda.cu). Empty: the chain has no products, or ones
/// that this kernel does not support.
std::optional<CudaKernel> prepare_product_chain(const CudaKernelCall& call, const Chain& chain,
                                                const std::vector<bool>& is_large);

}  // namespace trainctl::chains
