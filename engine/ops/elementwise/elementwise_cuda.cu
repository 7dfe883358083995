// A chain of element-wise ops in one pass: each thread reads its pack of every large input at once, evaluates the
// tokens of the expression with a stack in registers, and writes.
#include <utility>

#include "engine/ops/cuda/activations_cuda.cuh"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/dropout_cuda.cuh"
#include "engine/ops/cuda/unary_cuda.cuh"
#include "engine/ops/elementwise/expression.h"

namespace trainctl {
namespace {

struct Chain {
  struct Token {
    ElementwiseOp op;
    uint8_t index;  ///< index of x, b, :, $ and =; for dropout, index of its mask
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

bool has_parameters(ElementwiseOp op) {
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
using Op = ElementwiseOp;
constexpr Step kX0{Op::input, 0}, kX1{Op::input, 1}, kX2{Op::input, 2}, kTo0{Op::output, 0}, kTo1{Op::output, 1};
constexpr Step kSilu{Op::unary, 0, Unary::silu}, kSiluGrad{Op::unary_grad, 0, Unary::silu};

enum class Known : int { any, sum_relu_grad, gate, gate_grad, gated_grad };
/// Any chain, read from memory.
template <Known>
constexpr Steps<1> kSteps{};
/// The gradients of a residual's two readers, through its relu: x0 x1 + x2 relu_grad =0
template <>
constexpr Steps<6> kSteps<Known::sum_relu_grad>{{kX0, kX1, {Op::add}, kX2, {Op::relu_grad}, kTo0}};
/// A gated layer: x0 silu x1 * =0
template <>
constexpr Steps<5> kSteps<Known::gate>{{kX0, kSilu, kX1, {Op::mul}, kTo0}};
/// The values that its gradients need: x0 silu :0 =0 $0 x1 * =1
template <>
constexpr Steps<8> kSteps<Known::gate_grad>{{kX0, kSilu, {Op::name}, kTo0, {Op::named}, kX1, {Op::mul}, kTo1}};
/// x0 x1 * x2 silu_grad =0
template <>
constexpr Steps<6> kSteps<Known::gated_grad>{{kX0, kX1, {Op::mul}, kX2, kSiluGrad, kTo0}};

// Kernels

template <auto value>
using Constant = std::integral_constant<decltype(value), value>;

/// kInputs: the most large inputs that are read ahead. kParameters: some tokens have parameters; the code of these
/// would take registers from chains without them. kKnown: the chain.
template <int V, class T, int kInputs, bool kParameters, Known kKnown>
__global__ void __launch_bounds__(kMapThreads)
    chain_kernel(__grid_constant__ const Chain chain, __grid_constant__ const Large<T> large,
                 __grid_constant__ const PlaceInWhole place) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t base = static_cast<int64_t>(blockIdx.x) * kMapThreads, pack = base + threadIdx.x;
  if (pack >= chain.packs) return;
  float x[kInputs][V];
#pragma unroll
  for (int k = 0; k < kInputs; ++k) {
    if (k < chain.num_inputs && large.in[k].p != nullptr) load(large.in[k], pack * V, x[k]);
  }
  Stack<V> stack;
  // In a compiled chain, op, index and function are constants, so all other cases drop out.
  const auto run = [&](auto op_, auto index_, auto function, int t) {
    const ElementwiseOp op = op_;
    const int index = index_;
    switch (op) {
      case ElementwiseOp::input:
        stack.make_room();
        pick(x, index, stack.v[0]);
        break;
      case ElementwiseOp::row: {
        const Divisor& n = chain.row_packs[index];
        const uint32_t of_base = static_cast<uint32_t>(base % n.by) + threadIdx.x;
        stack.make_room();
        load_side(chain.rows[index], chain.along[index], 0,
                  static_cast<int64_t>(of_base - n.quotient(of_base) * n.by) * V, stack.v[0]);
        break;
      }
      case ElementwiseOp::name:
#pragma unroll
        for (int k = 0; k < kMostElementwiseNames; ++k) {
          for (int j = 0; j < V; ++j) stack.named[k][j] = k == index ? stack.v[0][j] : stack.named[k][j];
        }
        break;
      case ElementwiseOp::named:
        stack.make_room();
        pick(stack.named, index, stack.v[0]);
        break;
      case ElementwiseOp::output: {
        if (chain.accumulate[index]) {
          float before[V];
          load(large.out[index], pack * V, before);
          for (int j = 0; j < V; ++j) stack.v[0][j] += before[j];
        }
        store(large.out[index], pack * V, stack.v[0]);
        stack.close_up(0);
        break;
      }
      case ElementwiseOp::dropout:
        chain.masks[index].drop(chain.scalars->step, place.of_pack<V>(base, threadIdx.x), stack.v[0]);
        break;
      case ElementwiseOp::unary:
      case ElementwiseOp::unary_grad:
      case ElementwiseOp::masked_fill:
        if constexpr (kParameters) compute(op, static_cast<Unary>(function), chain.tokens[t].parameters, stack);
        break;
      default:
        compute(op, stack);
    }
  };
  if constexpr (kKnown == Known::any) {
    for (int t = 0; t < chain.num_tokens; ++t)
      run(chain.tokens[t].op, chain.tokens[t].index, chain.tokens[t].function, t);
  } else {
    [&]<size_t... t>(std::index_sequence<t...>) {
      (run(Constant<kSteps<kKnown>.of[t].op>{}, Constant<kSteps<kKnown>.of[t].index>{},
           Constant<kSteps<kKnown>.of[t].function>{}, int(t)),
       ...);
    }
    (std::make_index_sequence<std::size(kSteps<kKnown>.of)>{});
  }
}

// Launchers

template <int V, class T, int kInputs, bool kParameters, Known kKnown = Known::any>
CudaKernel launch_chain(const CudaKernelCall& call, Chain chain, const std::vector<bool>& is_row) {
  Large<T> large;
  for (size_t k = 0; k < call.in.size(); ++k) {
    const TensorArg& in = call.in[k];
    if (!is_row[k]) {
      large.in[k] = ref<T>(in);
      continue;
    }
    chain.rows[k] = ref<Mixed>(in);
    chain.row_packs[k] = Divisor(in.size() / V);
    chain.along[k] = V > 1 && packs_are_aligned({&in}) ? Along::packs : Along::elements;
  }
  for (size_t k = 0; k < call.out.size(); ++k) large.out[k] = ref<T>(call.out[k]);
  PlaceInWhole place(call.out[0]);
  place.set_pack(V);
  chain.packs = call.out[0].size() / V;
  const auto blocks = static_cast<unsigned>(ceil_div(chain.packs, kMapThreads));
  return [=](CudaStream stream) {
    launch(chain_kernel<V, T, kInputs, kParameters, kKnown>, blocks, kMapThreads, 0, stream, "elementwise", chain,
           large, place);
  };
}

template <int V, class T>
CudaKernel launch_chain(const CudaKernelCall& call, const Chain& chain, const std::vector<bool>& is_row) {
  constexpr int kMost = kMostElementwiseInputs;
  if constexpr (V > 1 && !std::is_same_v<T, Mixed>) {
    if (kSteps<Known::sum_relu_grad>.match(chain))
      return launch_chain<V, T, 3, false, Known::sum_relu_grad>(call, chain, is_row);
    if (kSteps<Known::gate>.match(chain)) return launch_chain<V, T, 2, true, Known::gate>(call, chain, is_row);
    if (kSteps<Known::gate_grad>.match(chain))
      return launch_chain<V, T, 2, true, Known::gate_grad>(call, chain, is_row);
    if (kSteps<Known::gated_grad>.match(chain))
      return launch_chain<V, T, 3, true, Known::gated_grad>(call, chain, is_row);
  }
  const bool few = chain.num_inputs <= 3;
  if (std::any_of(chain.tokens, chain.tokens + chain.num_tokens, [](auto& t) { return has_parameters(t.op); }))
    return few ? launch_chain<V, T, 3, true>(call, chain, is_row)
               : launch_chain<V, T, kMost, true>(call, chain, is_row);
  return few ? launch_chain<V, T, 3, false>(call, chain, is_row)
             : launch_chain<V, T, kMost, false>(call, chain, is_row);
}

CudaKernel prepare_elementwise(const CudaKernelCall& call) {
  const int64_t n = call.out[0].size();
  if (n == 0) return [](CudaStream) {};
  Chain chain;
  chain.scalars = call.scalars;
  chain.num_inputs = static_cast<int>(call.in.size());
  std::vector<bool> is_row(call.in.size());
  bool draws = false, keeps_packs = true;
  int masks = 0;
  for (const ElementwiseToken& token : parse_expression(call.attrs.text("expression"))) {
    auto index = static_cast<uint8_t>(token.index);
    if (token.op == ElementwiseOp::row) is_row[static_cast<size_t>(token.index)] = true;
    if (token.op == ElementwiseOp::dropout) {
      check(masks < Chain::kMostMasks, "an element-wise chain has up to 4 dropouts");
      chain.masks[masks] = DropoutMask(call.seed, token.p, token.key, token.batch, call.out[0], call.micro_batch);
      keeps_packs &= chain.masks[masks].keeps_packs();
      index = static_cast<uint8_t>(masks++);
      draws = true;
    }
    chain.tokens[chain.num_tokens++] = {token.op, index, token.function, token.parameters};
  }
  bool f32 = true, bf = true, aligned = true;
  const auto look_at = [&](const TensorArg& arg) {
    check(arg.size() == n, "the large operands of an element-wise chain have one size");
    f32 &= arg.dtype == DType::f32;
    bf &= arg.dtype == DType::bf16;
    aligned &= packs_are_aligned({&arg});
  };
  for (size_t k = 0; k < call.in.size(); ++k) {
    if (!is_row[k]) look_at(call.in[k]);
  }
  for (size_t k = 0; k < call.out.size(); ++k) {
    look_at(call.out[k]);
    chain.accumulate[k] = call.out[k].accumulate;
  }
  const auto packs_fit = [&](int pack) {
    bool fit = aligned && n % pack == 0 && keeps_packs && (!draws || PlaceInWhole(call.out[0]).run % pack == 0);
    for (size_t k = 0; k < call.in.size(); ++k) fit = fit && (!is_row[k] || call.in[k].size() % pack == 0);
    return fit;
  };
  if (f32 && packs_fit(kPack<float>)) return launch_chain<kPack<float>, float>(call, chain, is_row);
  if (bf && packs_fit(kPack<bf16>)) return launch_chain<kPack<bf16>, bf16>(call, chain, is_row);
  if (packs_fit(kPack<Mixed>)) return launch_chain<kPack<Mixed>, Mixed>(call, chain, is_row);
  return launch_chain<1, Mixed>(call, chain, is_row);
}

}  // namespace

extern const CudaKernels elementwise_cuda = {{"elementwise", prepare_elementwise}};

}  // namespace trainctl
