// A chain of element-wise ops in one pass: each thread reads its pack of every large input at once, evaluates the
// tokens of the expression with a stack in registers, and writes.
#include <utility>

#include "engine/ops/elementwise/chain_cuda.cuh"

namespace trainctl {
namespace {

using namespace chains;

enum class Known : int { any, with_products, sum_relu_grad, gate, gate_grad, gated_grad, gated_grads };
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

/// The gradients of both factors: x0 x1 silu * =0 x0 x2 * x1 silu_grad =1
template <>
constexpr Steps<11> kSteps<Known::gated_grads>{
    {kX0, kX1, kSilu, {Op::mul}, kTo0, kX0, kX2, {Op::mul}, kX1, kSiluGrad, kTo1}};

// Kernels

/// Elements of a product, for any sizes and types.
template <int V>
__device__ inline void multiply(const Factors& f, int64_t columns, int64_t first, float (&sums)[V]) {
  const int64_t row = first / columns, column = first - row * columns;
#pragma unroll
  for (int j = 0; j < V; ++j) sums[j] = 0;
  for (int k = 0; k < f.terms; ++k) {
    const float left = value(f.p, row * f.terms + k);
#pragma unroll
    for (int j = 0; j < V; ++j)
      sums[j] += left * value(f.q, f.nr ? (column + j) * f.terms + k : k * columns + column + j);
  }
}

/// Computes the tokens of the chain for one thread's pack. See chain_kernel().
template <int V, class T, int kInputs, bool kParameters, Known kKnown>
struct PackOfThread {
  const Chain& chain;
  const Large<T>& large;
  const PlaceInWhole& place;
  int64_t base, pack;  ///< the block's first pack, and the thread's
  const float (&x)[kInputs][V];
  Stack<V>& stack;

  __device__ __forceinline__ void push_row(int index) const {
    const Divisor& n = chain.row_packs[index];
    const uint32_t of_base = static_cast<uint32_t>(base % n.by) + threadIdx.x;
    stack.make_room();
    load_side(chain.rows[index], chain.along[index], 0, static_cast<int64_t>(of_base - n.quotient(of_base) * n.by) * V,
              stack.v[0]);
  }

  __device__ __forceinline__ void name_top(int index) const {
#pragma unroll
    for (int k = 0; k < kMostElementwiseNames; ++k) {
      for (int j = 0; j < V; ++j) stack.named[k][j] = k == index ? stack.v[0][j] : stack.named[k][j];
    }
  }

  __device__ __forceinline__ void pop_output(int index) const {
    if (chain.accumulate[index]) {
      float before[V];
      load(large.out[index], pack * V, before);
      for (int j = 0; j < V; ++j) stack.v[0][j] += before[j];
    }
    store(large.out[index], pack * V, stack.v[0]);
    stack.close_up(0);
  }

  /// Token t. In a compiled chain, op, index and function are constants, so all other cases drop out.
  template <class OpOf, class Index, class Function>
  __device__ __forceinline__ void operator()(OpOf op_, Index index_, Function function, int t) const {
    const ElementwiseOp op = op_;
    const int index = index_;
    switch (op) {
      case ElementwiseOp::input:
        stack.make_room();
        pick(x, index, stack.v[0]);
        break;
      case ElementwiseOp::row:
        push_row(index);
        break;
      case ElementwiseOp::name:
        name_top(index);
        break;
      case ElementwiseOp::named:
        stack.make_room();
        pick(stack.named, index, stack.v[0]);
        break;
      case ElementwiseOp::output:
        pop_output(index);
        break;
      case ElementwiseOp::dropout:
        chain.masks[index].drop(chain.scalars->step, place.of_pack<V>(base, threadIdx.x), stack.v[0]);
        break;
      case ElementwiseOp::product_nr:
        if constexpr (kKnown == Known::with_products) {
          stack.make_room();
          multiply(chain.products[index], chain.columns, pack * V, stack.v[0]);
        }
        break;
      case ElementwiseOp::unary:
      case ElementwiseOp::unary_grad:
      case ElementwiseOp::masked_fill:
        if constexpr (kParameters) compute(op, static_cast<Unary>(function), chain.tokens[t].parameters, stack);
        break;
      default:
        compute(op, stack);
    }
  }
};

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
  const PackOfThread<V, T, kInputs, kParameters, kKnown> run{chain, large, place, base, pack, x, stack};
  if constexpr (kKnown == Known::any || kKnown == Known::with_products)
    run_tokens(chain, run);
  else
    run_steps<kSteps<kKnown>>(run);
}

// Launchers

/// The use that an expression makes of an input.
enum class Role : uint8_t { large, row, factor };

/// Launches the kernel that is compiled for these template arguments.
template <int V, class T, int kInputs, bool kParameters, Known kKnown = Known::any>
CudaKernel launch_chain(const CudaKernelCall& call, Chain chain, const std::vector<Role>& roles) {
  Large<T> large;
  for (size_t k = 0; k < call.in.size(); ++k) {
    const TensorArg& in = call.in[k];
    if (roles[k] == Role::large) large.in[k] = ref<T>(in);
    if (roles[k] != Role::row) continue;
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

/// Selects the kernel: the one for a known sequence of steps, or the smallest general one that can run the chain.
template <int V, class T>
CudaKernel launch_chain(const CudaKernelCall& call, const Chain& chain, const std::vector<Role>& roles) {
  constexpr int kMost = kMostWithoutProducts;
  if (chain.num_products > 0)
    return launch_chain<V, T, kMostElementwiseInputs, true, Known::with_products>(call, chain, roles);
  if constexpr (V > 1 && !std::is_same_v<T, Mixed>) {
    if (kSteps<Known::sum_relu_grad>.match(chain))
      return launch_chain<V, T, 3, false, Known::sum_relu_grad>(call, chain, roles);
    if (kSteps<Known::gate>.match(chain)) return launch_chain<V, T, 2, true, Known::gate>(call, chain, roles);
    if (kSteps<Known::gate_grad>.match(chain)) return launch_chain<V, T, 2, true, Known::gate_grad>(call, chain, roles);
    if (kSteps<Known::gated_grad>.match(chain))
      return launch_chain<V, T, 3, true, Known::gated_grad>(call, chain, roles);
    if (kSteps<Known::gated_grads>.match(chain))
      return launch_chain<V, T, 3, true, Known::gated_grads>(call, chain, roles);
  }
  if constexpr (V == 1)  // for odd addresses and sizes; one kernel is enough
    return launch_chain<V, T, kMost, true>(call, chain, roles);
  const bool few = chain.num_inputs <= 3;
  if (std::any_of(chain.tokens, chain.tokens + chain.num_tokens, [](auto& t) { return has_parameters(t.op); }))
    return few ? launch_chain<V, T, 3, true>(call, chain, roles) : launch_chain<V, T, kMost, true>(call, chain, roles);
  return few ? launch_chain<V, T, 3, false>(call, chain, roles) : launch_chain<V, T, kMost, false>(call, chain, roles);
}

/// The expression's tokens, and the role of each input.
std::vector<Role> read_tokens(const CudaKernelCall& call, Chain& chain) {
  std::vector<Role> roles(call.in.size(), Role::large);
  std::vector<int> product_at(call.in.size(), -1);
  int masks = 0;
  for (const ElementwiseToken& token : parse_expression(call.attrs.text("expression"))) {
    auto index = static_cast<uint8_t>(token.index);
    ElementwiseOp op = token.op;
    if (op == ElementwiseOp::row) roles[index] = Role::row;
    if (op == ElementwiseOp::dropout) {
      check(masks < Chain::kMostMasks, "an element-wise chain has up to 4 dropouts");
      chain.masks[masks] = DropoutMask(call.seed, token.p, token.key, token.batch, call.out[0], call.micro_batch);
      index = static_cast<uint8_t>(masks++);
    }
    if (is_product(op)) {
      int& product = product_at[index];
      if (product < 0) {
        check(chain.num_products < Chain::kMostProducts, "an element-wise chain has up to 3 products");
        product = chain.num_products++;
        const TensorArg &p = call.in[index], &q = call.in[index + 1];
        chain.products[product] = {ref<Mixed>(p), ref<Mixed>(q), op == ElementwiseOp::product_nr,
                                   static_cast<int>(p.shape.back())};
        roles[index] = roles[index + 1] = Role::factor;
      }
      op = ElementwiseOp::product_nr;
      index = static_cast<uint8_t>(product);
    }
    chain.tokens[chain.num_tokens++] = {op, index, token.function, token.parameters};
  }
  return roles;
}

/// Reads the chain from the attrs, and selects the widest packs that all operands permit.
CudaKernel prepare_elementwise(const CudaKernelCall& call) {
  const int64_t n = call.out[0].size();
  if (n == 0) return [](CudaStream) {};
  Chain chain;
  chain.scalars = call.scalars;
  chain.num_inputs = static_cast<int>(call.in.size());
  chain.columns = call.out[0].shape.empty() ? 1 : call.out[0].shape.back();
  const std::vector<Role> roles = read_tokens(call, chain);
  const auto is_dropout = [](const Chain::Token& t) { return t.op == ElementwiseOp::dropout; };
  const auto masks = std::count_if(chain.tokens, chain.tokens + chain.num_tokens, is_dropout);
  const bool keeps_packs =
      std::all_of(chain.masks, chain.masks + masks, [](const DropoutMask& mask) { return mask.keeps_packs(); });
  bool f32 = true, bf = true, aligned = true;
  const auto look_at = [&](const TensorArg& arg) {
    check(arg.size() == n, "the large operands of an element-wise chain have one size");
    f32 &= arg.dtype == DType::f32;
    bf &= arg.dtype == DType::bf16;
    aligned &= packs_are_aligned({&arg});
  };
  for (size_t k = 0; k < call.in.size(); ++k) {
    if (roles[k] == Role::large) look_at(call.in[k]);
  }
  for (size_t k = 0; k < call.out.size(); ++k) {
    look_at(call.out[k]);
    chain.accumulate[k] = call.out[k].accumulate;
  }
  if (bf && aligned && chain.num_products > 0 && masks == 0) {
    std::vector<bool> is_large;
    for (const Role role : roles) is_large.push_back(role == Role::large);
    const bool has_rows = std::count(roles.begin(), roles.end(), Role::row) > 0;
    if (std::optional<CudaKernel> kernel = has_rows ? std::nullopt : prepare_product_chain(call, chain, is_large))
      return *kernel;
  }
  const auto packs_fit = [&](int pack) {
    bool fit = aligned && n % pack == 0 && keeps_packs && (masks == 0 || PlaceInWhole(call.out[0]).run % pack == 0) &&
               (chain.num_products == 0 || chain.columns % pack == 0);
    for (size_t k = 0; k < call.in.size(); ++k) fit = fit && (roles[k] != Role::row || call.in[k].size() % pack == 0);
    return fit;
  };
  if (f32 && packs_fit(kPack<float>)) return launch_chain<kPack<float>, float>(call, chain, roles);
  if (bf && packs_fit(kPack<bf16>)) return launch_chain<kPack<bf16>, bf16>(call, chain, roles);
  if (packs_fit(kPack<Mixed>)) return launch_chain<kPack<Mixed>, Mixed>(call, chain, roles);
  return launch_chain<1, Mixed>(call, chain, roles);
}

}  // namespace

extern const CudaKernels elementwise_cuda = {{"elementwise", prepare_elementwise, kTakesF16}};

}  // namespace trainctl
