// Element-wise chains with products p q of few terms (an adapter's), in bf16. A warp computes 16 rows x 32 columns at a
// time: the products by mma.sync m16n8k16, whose results stay in registers, and then the chain on them. The block keeps
// p and the fragments of q in shared memory while it passes over up to 96 rows (64 if products have more than 16
// terms). In chains that kernels are compiled for, each thread requests its own packs of the large operands one or two
// passes ahead, through a ring in shared memory.
//
// The columns of the four 8-wide tiles of a product are interleaved, so that a thread has 8 adjacent columns of rows
// lane / 4 and lane / 4 + 8, one pack of every large operand each:
//
//   column            0 1   2 3   4 5   6 7 | 8 9   ..       lane % 4 = column / 8
//   tile: its column  0:0,1 1:0,1 2:0,1 3:0,1 | 0:2,3 ..
#include <bit>
#include <utility>

#include "engine/ops/elementwise/product_tiles_cuda.cuh"

namespace trainctl::chains {
namespace {

using Op = ElementwiseOp;
constexpr Step kX0{Op::input, 0}, kX1{Op::input, 1}, kX3{Op::input, 3}, kX4{Op::input, 4}, kX6{Op::input, 6};
constexpr Step kP0{Op::product_nr, 0}, kP1{Op::product_nr, 1}, kP2{Op::product_nr, 2};
constexpr Step kName0{Op::name, 0}, kName1{Op::name, 1}, kNamed0{Op::named, 0}, kNamed1{Op::named, 1};
constexpr Step kAdd{Op::add}, kMul{Op::mul}, kTo0{Op::output, 0}, kTo1{Op::output, 1};
constexpr Step kSilu{Op::unary, 0, Unary::silu}, kSiluGrad{Op::unary_grad, 0, Unary::silu};

/// Large products of few terms, and the chains of a gated block whose layers have adapters. Others are interpreted.
enum class Known : int { any, product, residual, sum, gate, gate_grads, gated_grads };
template <Known>
constexpr Steps<1> kSteps{};
/// l0 =0
template <>
constexpr Steps<2> kSteps<Known::product>{{kP0, kTo0}};
/// x0 l1 + =0
template <>
constexpr Steps<4> kSteps<Known::residual>{{kX0, kP0, kAdd, kTo0}};
/// x0 l1 + x3 + =0
template <>
constexpr Steps<6> kSteps<Known::sum>{{kX0, kP0, kAdd, kX3, kAdd, kTo0}};
/// x0 l1 + silu x3 l4 + * =0
template <>
constexpr Steps<9> kSteps<Known::gate>{{kX0, kP0, kAdd, kSilu, kX3, kP1, kAdd, kMul, kTo0}};
/// x0 x1 l2 + :0 silu * =0 x0 x4 l5 + * $0 silu_grad =1
template <>
constexpr Steps<16> kSteps<Known::gate_grads>{
    {kX0, kX1, kP0, kAdd, kName0, kSilu, kMul, kTo0, kX0, kX4, kP1, kAdd, kMul, kNamed0, kSiluGrad, kTo1}};
/// x0 m1 + :0 x3 l4 + :1 silu * =0 $0 x6 l7 + * $1 silu_grad =1
template <>
constexpr Steps<19> kSteps<Known::gated_grads>{{kX0, kP0, kAdd, kName0, kX3, kP1, kAdd, kName1, kSilu, kMul, kTo0,
                                                kNamed0, kX6, kP2, kAdd, kMul, kNamed1, kSiluGrad, kTo1}};

/// The inputs and products that a kernel has room for, and the large inputs, which it requests ahead: bit k is input k.
struct Room {
  int inputs = kMostElementwiseInputs, products = Chain::kMostProducts;
  unsigned ahead = 0;
};
template <Known kKnown>
constexpr Room kRoom = kKnown == Known::product       ? Room{1, 1, 0}
                       : kKnown == Known::residual    ? Room{1, 1, 0b1u}
                       : kKnown == Known::sum         ? Room{4, 1, 0b1001u}
                       : kKnown == Known::gate        ? Room{4, 2, 0b1001u}
                       : kKnown == Known::gate_grads  ? Room{5, 2, 0b10011u}
                       : kKnown == Known::gated_grads ? Room{7, 3, 0b1001001u}
                                                      : Room{};

// Kernels

template <int kStepsOfTerms, Known kKnown>
using MemoryOf = Memory<kStepsOfTerms, kRoom<kKnown>.products, std::popcount(kRoom<kKnown>.ahead)>;

/// Results are rounded to bf16, so the approximations of the device are exact enough.
__device__ inline float quick_sigmoid(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634f));
  return __fdividef(1.0f, 1.0f + power);
}
struct QuickSilu {
  __device__ float operator()(float x) const { return x * quick_sigmoid(x); }
};
struct QuickSiluGrad {
  __device__ float operator()(float dy, float x) const {
    const float s = quick_sigmoid(x);
    return dy * (s * (1.0f + x * (1.0f - s)));
  }
};

/// Blocks that share a multiprocessor.
template <int kStepsOfTerms, Known kKnown>
constexpr int kBlocks = kStepsOfTerms > 2 || kKnown == Known::any                      ? 1
                        : kStepsOfTerms == 1 && std::popcount(kRoom<kKnown>.ahead) < 3 ? 3
                                                                                       : 2;

/// True if the chain has product k: a known chain has all that its kernel has room for.
template <Known kKnown>
__device__ __forceinline__ bool is_used(const Chain& chain, int k) {
  return kKnown != Known::any || k < chain.num_products;
}

/// Keeps the fragments of each q for the 32 columns of a warp in shared memory. `column`, `term`: the first column and
/// term that this thread loads.
template <int kStepsOfTerms, Known kKnown>
__device__ __forceinline__ void keep_columns(const Chain& chain, int64_t columns, int64_t column, int term, int warp,
                                             MemoryOf<kStepsOfTerms, kKnown>& memory) {
  constexpr int kFactors = kRoom<kKnown>.products;
  Columns<kStepsOfTerms> of_q[kFactors];
#pragma unroll
  for (int k = 0; k < kFactors; ++k)
    if (is_used<kKnown>(chain, k)) of_q[k].load(chain.products[k], columns, column, term);
#pragma unroll
  for (int k = 0; k < kFactors; ++k)
    if (is_used<kKnown>(chain, k)) of_q[k].store(chain.products[k], term, memory.q[k][warp]);
}

/// Pushes the thread's values of the input `index`: 8 columns of each of its two rows.
template <int kMost>
__device__ __forceinline__ void push_input(const Raw<bf16, 8> (&x)[kMost][2], int index, Stack<kValues>& stack) {
  stack.make_room();
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    if (k != index) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float eight_of[8];
      unpack(x[k][half], eight_of);
#pragma unroll
      for (int j = 0; j < 8; ++j) stack.v[0][half * 8 + j] = eight_of[j];
    }
  }
}

/// The 8 columns of one of the thread's two rows, from the top of the stack.
__device__ __forceinline__ void copy_half(const Stack<kValues>& stack, int half, float (&to)[8]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) to[j] = stack.v[0][half * 8 + j];
}

/// Gives the top of the stack a name; it stays there.
__device__ __forceinline__ void name_top(Stack<kValues>& stack, int name) {
#pragma unroll
  for (int k = 0; k < kMostElementwiseNames; ++k) {
#pragma unroll
    for (int j = 0; j < kValues; ++j) stack.named[k][j] = k == name ? stack.v[0][j] : stack.named[k][j];
  }
}

/// A thread's 8 columns in the rows of its block: two rows of each pass, 8 rows apart.
struct OwnRows {
  int thread, warp;
  int term;       ///< the first of its terms
  int group;      ///< the first of the two, in a pass
  int rows;       ///< rows of the block
  int64_t first;  ///< offset of the first row of pass 0
  int64_t eight_rows;

  __device__ int64_t offset_of(int pass, int half) const { return first + (pass * 2 + half) * eight_rows; }
  __device__ bool has_row(int pass, int half) const { return group + pass * kRows + half * 8 < rows; }
};

/// A thread's packs of the large operands in a pass.
template <Known kKnown>
using Packs = Raw<bf16, 8>[kRoom<kKnown>.inputs][2];

/// Loads the thread's packs of a pass from memory.
template <Known kKnown>
__device__ __forceinline__ void load_pass(const Large<bf16>& large, unsigned which, const OwnRows& own, int pass,
                                          Packs<kKnown>& to) {
#pragma unroll
  for (int k = 0; k < kRoom<kKnown>.inputs; ++k) {
    if ((which >> k & 1) == 0) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (own.has_row(pass, half)) to[k][half] = fetch<8>(large.in[k], own.offset_of(pass, half));
  }
}

/// Calls function(k, nth, half) for both packs of each input k that is requested ahead; it is the nth of them.
template <Known kKnown, class Function>
__device__ __forceinline__ void for_requested(Function&& function) {
  constexpr unsigned kRequested = kRoom<kKnown>.ahead;
#pragma unroll
  for (int k = 0; k < kRoom<kKnown>.inputs; ++k) {
    if ((kRequested >> k & 1) == 0) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) function(k, std::popcount(kRequested & ((1u << k) - 1)), half);
  }
}

/// Requests the thread's packs of a pass, if there is one, for the ring in shared memory.
template <int kStepsOfTerms, Known kKnown>
__device__ __forceinline__ void request_pass(const Large<bf16>& large, const OwnRows& own, int pass, bool is_there,
                                             MemoryOf<kStepsOfTerms, kKnown>& memory) {
  if (is_there)
    for_requested<kKnown>([&](int k, int nth, int half) {
      const bool there = own.has_row(pass, half);
      request_16(&memory.ahead[pass % kRing<kStepsOfTerms>][nth][half][own.thread],
                 large.in[k].p + (there ? own.offset_of(pass, half) : 0), there);
    });
  end_group_of_requests();
}

/// Computes the tokens of the chain for one thread in one pass.
template <int kStepsOfTerms, Known kKnown>
struct PassOfThread {
  using Shared = MemoryOf<kStepsOfTerms, kKnown>;

  const Chain& chain;
  const Large<bf16>& large;
  const Shared& memory;
  const OwnRows& own;
  int pass;
  const Packs<kKnown>& x;
  Stack<kValues>& stack;

  __device__ __forceinline__ void push_product(int index) const {
    stack.make_room();
#pragma unroll
    for (int k = 0; k < kRoom<kKnown>.products; ++k)
      if (k == index)
        product<kStepsOfTerms, Shared::kPitch>(
            memory.q[k][own.warp], memory.p[k] + (pass * kRows + own.group) * Shared::kPitch + own.term, stack.v[0]);
  }

  __device__ __forceinline__ void pop_output(int index) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float eight_of[8];
      copy_half(stack, half, eight_of);
      if (own.has_row(pass, half)) store(large.out[index], own.offset_of(pass, half), eight_of);
    }
    stack.close_up(0);
  }

  /// Token t. In a compiled chain, op, index and function are constants, so all other cases drop out.
  template <class OpOf, class Index, class Function>
  __device__ __forceinline__ void operator()(OpOf op_, Index index_, Function function, int t) const {
    const ElementwiseOp op = op_;
    const int index = index_;
    switch (op) {
      case ElementwiseOp::input:
        push_input(x, index, stack);
        break;
      case ElementwiseOp::product_nr:
        push_product(index);
        break;
      case ElementwiseOp::name:
        name_top(stack, index);
        break;
      case ElementwiseOp::named:
        stack.make_room();
        pick(stack.named, index, stack.v[0]);
        break;
      case ElementwiseOp::output:
        pop_output(index);
        break;
      case ElementwiseOp::unary:
      case ElementwiseOp::unary_grad:
      case ElementwiseOp::masked_fill:
        if (static_cast<Unary>(function) == Unary::silu && op != ElementwiseOp::masked_fill)
          op == ElementwiseOp::unary ? stack.map(QuickSilu{}) : stack.join(QuickSiluGrad{});
        else
          compute(op, static_cast<Unary>(function), chain.tokens[t].parameters, stack);
        break;
      default:
        compute(op, stack);
    }
  }
};

/// Computes a chain on [rows, columns]. A block takes the kWarps * 32 columns of block.x % across and up to `passes`
/// times 16 rows, 16 per pass; in a pass a warp computes its products and then each token of the chain.
template <int kStepsOfTerms, Known kKnown>
__global__ void __launch_bounds__(kWarps * 32, kBlocks<kStepsOfTerms, kKnown>)
    product_chain_kernel(__grid_constant__ const Chain chain, __grid_constant__ const Large<bf16> large,
                         const Place place) {
  wait_for_kernel_before();
  let_next_kernel_start();
  constexpr int kFactors = kRoom<kKnown>.products, kSlots = kRing<kStepsOfTerms>;
  using Shared = MemoryOf<kStepsOfTerms, kKnown>;
  extern __shared__ uint4 bytes[];
  auto& memory = *reinterpret_cast<Shared*>(bytes);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int group = lane / 4, term = lane % 4 * 2;
  const unsigned row_block = blockIdx.x / place.across, column_block = blockIdx.x - row_block * place.across;
  const int64_t first_column = (int64_t{column_block} * kWarps + warp) * kColumns;
  const int64_t first_row = int64_t{row_block} * place.passes * kRows;
  const bool has_columns = first_column < place.columns;
  const int rows = static_cast<int>(min(place.rows - first_row, int64_t{place.passes} * kRows));
  const OwnRows own{
      thread,           warp, term, group, rows, (first_row + group) * place.columns + first_column + lane % 4 * 8,
      8 * place.columns};
  const auto request = [&](int pass) {
    request_pass<kStepsOfTerms, kKnown>(large, own, pass, has_columns && pass < place.passes, memory);
  };
#pragma unroll
  for (int k = 0; k < kFactors; ++k)
    if (is_used<kKnown>(chain, k)) request_rows<Shared::kPitch>(chain.products[k], first_row, place, memory.p[k]);
  end_group_of_requests();
#pragma unroll
  for (int pass = 0; pass < kSlots - 1; ++pass) request(pass);
  if (has_columns)
    keep_columns<kStepsOfTerms, kKnown>(chain, place.columns, first_column + group / 2 * 8 + group % 2, term, warp,
                                        memory);
  wait_for_requests<kSlots - 1>();
  __syncthreads();
  if (!has_columns) return;
  for (int pass = 0; pass * kRows < rows; ++pass) {
    Packs<kKnown> x;
    if constexpr (kRoom<kKnown>.ahead == 0) {
      load_pass<kKnown>(large, place.large, own, pass, x);
    } else {
      request(pass + kSlots - 1);
      wait_for_requests<kSlots - 1>();
      for_requested<kKnown>(
          [&](int k, int nth, int half) { x[k][half].q = memory.ahead[pass % kSlots][nth][half][thread]; });
    }
    Stack<kValues> stack;
    const PassOfThread<kStepsOfTerms, kKnown> run{chain, large, memory, own, pass, x, stack};
    if constexpr (kKnown == Known::any)
      run_tokens(chain, run);
    else
      run_steps<kSteps<kKnown>>(run);
  }
}

// Launchers

template <int kStepsOfTerms, Known kKnown>
CudaKernel launch_product_chain(const CudaKernelCall& call, const Chain& chain, const Place& place) {
  Large<bf16> large;
  for (size_t k = 0; k < call.in.size(); ++k)
    if (place.large >> k & 1) large.in[k] = ref<bf16>(call.in[k]);
  for (size_t k = 0; k < call.out.size(); ++k) large.out[k] = ref<bf16>(call.out[k]);
  const int64_t blocks = place.across * ceil_div(place.rows, int64_t{kRows} * place.passes);
  check(blocks < int64_t{1} << 31, "a chain with products has too many elements for one kernel");
  const auto grid = static_cast<unsigned>(blocks);
  const auto kernel = product_chain_kernel<kStepsOfTerms, kKnown>;
  constexpr int kBytes = sizeof(MemoryOf<kStepsOfTerms, kKnown>);
  static_assert(kBlocks<kStepsOfTerms, kKnown> * (kBytes + 1024) <= 228 * 1024, "blocks share a multiprocessor");
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "cudaFuncSetAttribute");
  return
      [=](CudaStream stream) { launch(kernel, grid, kWarps * 32, kBytes, stream, "elementwise", chain, large, place); };
}

/// The first of the kernels that is compiled for this chain, or the one that interprets it.
template <int kStepsOfTerms, Known kFirst, Known... kMore>
CudaKernel launch_known_chain(const CudaKernelCall& call, const Chain& chain, const Place& place) {
  if constexpr (sizeof...(kMore) > 0)
    if (!kSteps<kFirst>.match(chain)) return launch_known_chain<kStepsOfTerms, kMore...>(call, chain, place);
  return launch_product_chain<kStepsOfTerms, kFirst>(call, chain, place);
}

}  // namespace

/// Null if the chain is not one that this kernel computes: large operands in bf16, products of up to kMostSteps *
/// kTermsOfStep terms, nothing that accumulates.
std::optional<CudaKernel> prepare_product_chain(const CudaKernelCall& call, const Chain& chain,
                                                const std::vector<bool>& is_large) {
  Place place{.rows = call.out[0].size() / chain.columns, .columns = chain.columns};
  place.across = static_cast<unsigned>(ceil_div(place.columns, kWarps * kColumns));
  int terms = 0;
  for (int k = 0; k < chain.num_products; ++k) {
    const Factors& f = chain.products[k];
    if (!f.p.is_bf16 || !f.q.is_bf16 || f.terms == 0 || f.terms % 8 != 0) return std::nullopt;
    terms = std::max(terms, f.terms);
  }
  for (size_t k = 0; k < call.in.size(); ++k)
    if (is_large[k])
      place.large |= 1u << k;
    else if (!packs_are_aligned({&call.in[k]}))
      return std::nullopt;
  const bool accumulates =
      std::any_of(std::begin(chain.accumulate), std::end(chain.accumulate), [](bool a) { return a; });
  if (!built_for_hopper() || accumulates || place.columns % kColumns != 0 || terms > kMostSteps * kTermsOfStep)
    return std::nullopt;
  // Blocks pass over all rows that they have room for, unless there would then be too few blocks.
  const int64_t blocks = place.across * ceil_div(place.rows, kRows);
  const auto launch_with = [&]<int kStepsOfTerms>(std::integral_constant<int, kStepsOfTerms>) {
    const int64_t passes = blocks / (int64_t{12} * multiprocessors());
    place.passes = static_cast<int>(std::clamp<int64_t>(passes, 1, kMostPasses<kStepsOfTerms>));
    return launch_known_chain<kStepsOfTerms, Known::product, Known::residual, Known::sum, Known::gate,
                              Known::gate_grads, Known::gated_grads, Known::any>(call, chain, place);
  };
  if (terms <= kTermsOfStep) return launch_with(std::integral_constant<int, 1>{});
  if (terms <= 2 * kTermsOfStep) return launch_with(std::integral_constant<int, 2>{});
  return launch_with(std::integral_constant<int, kMostSteps>{});
}

}  // namespace trainctl::chains
