// Element-wise chains with products p q of few terms (an adapter's), in bf16. A warp computes 16 rows x 32 columns at a
// time: the products by mma.sync m16n8k16, whose results stay in registers, and then the chain on them. The block keeps
// p and the fragments of q in shared memory while it passes over up to 128 rows; a warp loads the large operands one
// pass ahead.
//
// The columns of the four 8-wide tiles of a product are interleaved, so that a thread has 8 adjacent columns of rows
// lane / 4 and lane / 4 + 8, one pack of every large operand each:
//
//   column            0 1   2 3   4 5   6 7 | 8 9   ..       lane % 4 = column / 8
//   tile: its column  0:0,1 1:0,1 2:0,1 3:0,1 | 0:2,3 ..
#include <utility>

#include "engine/ops/elementwise/chain_cuda.cuh"

namespace trainctl::chains {
namespace {

constexpr int kWarps = 8, kColumns = 32, kRows = 16, kTermsOfStep = 16;
constexpr int kValues = 16;  ///< values per thread: 8 columns of two rows
constexpr int kMostSteps = 4, kMostPasses = 8;

using Op = ElementwiseOp;
constexpr Step kX0{Op::input, 0}, kX1{Op::input, 1}, kX3{Op::input, 3}, kX4{Op::input, 4}, kX6{Op::input, 6};
constexpr Step kP0{Op::product_nr, 0}, kP1{Op::product_nr, 1}, kP2{Op::product_nr, 2};
constexpr Step kName0{Op::name, 0}, kName1{Op::name, 1}, kNamed0{Op::named, 0}, kNamed1{Op::named, 1};
constexpr Step kAdd{Op::add}, kMul{Op::mul}, kTo0{Op::output, 0}, kTo1{Op::output, 1};
constexpr Step kSilu{Op::unary, 0, Unary::silu}, kSiluGrad{Op::unary_grad, 0, Unary::silu};

/// The chains of a gated block whose layers have adapters; those of others are interpreted.
enum class Known : int { any, sum, gate, gate_grads, gated_grads };
template <Known>
constexpr Steps<1> kSteps{};
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

/// The inputs and products that a kernel has room for.
template <Known kKnown>
constexpr int kInputs = kKnown == Known::sum           ? 4
                        : kKnown == Known::gate        ? 4
                        : kKnown == Known::gate_grads  ? 5
                        : kKnown == Known::gated_grads ? 7
                                                       : kMostElementwiseInputs;
template <Known kKnown>
constexpr int kProducts = kKnown == Known::sum                                   ? 1
                          : kKnown == Known::gate || kKnown == Known::gate_grads ? 2
                                                                                 : Chain::kMostProducts;

/// Bit k: input k is large.
template <Known kKnown>
constexpr unsigned kLarge = kKnown == Known::gate_grads    ? 0b10011u
                            : kKnown == Known::gated_grads ? 0b1001001u
                                                           : 0b1001u;

struct Place {
  int64_t rows = 0, columns = 0;
  int passes = 1;      ///< passes of 16 rows, per block
  unsigned large = 0;  ///< bit k: input k is large
};

// Kernels

__device__ inline void multiply(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Terms `term` and `term` + 1 of a column of q; zeros beyond the last.
__device__ inline uint32_t two_of_column(const Factors& f, int64_t columns, int64_t column, int term) {
  if (term >= f.terms) return 0;
  const auto* const q = static_cast<const uint16_t*>(f.q.p);
  if (f.nr) return *reinterpret_cast<const uint32_t*>(q + column * f.terms + term);
  return q[term * columns + column] | static_cast<uint32_t>(q[(term + 1) * columns + column]) << 16;
}

/// The factors of all products in shared memory.
template <int kStepsOfTerms, int kFactors>
struct Memory {
  static constexpr int kPitch = kStepsOfTerms * kTermsOfStep + 8;  ///< 8 rows are in different banks
  uint2 q[kFactors][kWarps][4][kStepsOfTerms][32];                 ///< fragments, by lane
  uint16_t p[kFactors][kMostPasses * kRows * kPitch];
};

/// Copies the block's rows of p; zeros beyond the last row and term.
template <int kPitch>
__device__ inline void copy_rows(const Factors& f, int64_t first, const Place& place, uint16_t* to) {
  constexpr int kPacks = kPitch / 8 - 1;
  const auto* const from = static_cast<const uint16_t*>(f.p.p);
  for (int i = static_cast<int>(threadIdx.x); i < place.passes * kRows * kPacks; i += kWarps * 32) {
    const int row = i / kPacks, term = i % kPacks * 8;
    const bool there = first + row < place.rows && term < f.terms;
    const uint4 pack = there ? load_16(from + (first + row) * f.terms + term) : make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(to + row * kPitch + term) = pack;
  }
}

__device__ inline uint32_t two(const uint16_t* from) { return *reinterpret_cast<const uint32_t*>(from); }

/// A thread's 16 elements of a product. `p`: the thread's first term of its first row.
template <int kStepsOfTerms, int kPitch>
__device__ inline void product(const uint2 (&q)[4][kStepsOfTerms][32], const uint16_t* p, float (&v)[kValues]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sums[4][4] = {};
#pragma unroll
  for (int s = 0; s < kStepsOfTerms; ++s) {
    const uint16_t* const at = p + s * kTermsOfStep;
    const uint32_t rows[4] = {two(at), two(at + 8 * kPitch), two(at + 8), two(at + 8 * kPitch + 8)};
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      const uint2 columns = q[tile][s][lane];
      const uint32_t b[2] = {columns.x, columns.y};
      multiply(sums[tile], rows, b);
    }
  }
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i / 2 * 8 + tile * 2 + i % 2] = sums[tile][i];
  }
}

/// Results are rounded to bf16, so the approximations of the device are exact enough.
__device__ inline float quick_sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
struct QuickSilu {
  __device__ float operator()(float x) const { return x * quick_sigmoid(x); }
};
struct QuickSiluGrad {
  __device__ float operator()(float dy, float x) const {
    const float s = quick_sigmoid(x);
    return dy * (s * (1.0f + x * (1.0f - s)));
  }
};

template <auto value>
using Constant = std::integral_constant<decltype(value), value>;

template <int kStepsOfTerms, Known kKnown>
__global__ void __launch_bounds__(kWarps * 32, kStepsOfTerms > 2 || kKnown == Known::any ? 1 : 2)
    product_chain_kernel(__grid_constant__ const Chain chain, __grid_constant__ const Large<bf16> large,
                         const Place place) {
  wait_for_kernel_before();
  let_next_kernel_start();
  constexpr int kMost = kInputs<kKnown>, kFactors = kProducts<kKnown>;
  using Shared = Memory<kStepsOfTerms, kFactors>;
  extern __shared__ uint4 bytes[];
  auto& memory = *reinterpret_cast<Shared*>(bytes);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4, term = lane % 4 * 2;
  const int64_t first_column = (int64_t{blockIdx.x} * kWarps + warp) * kColumns;
  const int64_t first_row = int64_t{blockIdx.y} * place.passes * kRows;
  const bool has_columns = first_column < place.columns;
  using Packs = Raw<bf16, 8>[kMost][2];
  const auto offset_of = [&](int pass, int half) {
    return (first_row + pass * kRows + group + half * 8) * place.columns + first_column + lane % 4 * 8;
  };
  const auto has_row = [&](int pass, int half) { return first_row + pass * kRows + group + half * 8 < place.rows; };
  const auto load_pass = [&](int pass, Packs& to) {
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      const unsigned which = kKnown == Known::any ? place.large : kLarge<kKnown>;
      if ((which >> k & 1) == 0) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (has_row(pass, half)) to[k][half] = fetch<8>(large.in[k], offset_of(pass, half));
    }
  };
  Packs next;
  if (has_columns && kKnown != Known::any) load_pass(0, next);
#pragma unroll
  for (int k = 0; k < kFactors; ++k) {
    if (k >= chain.num_products) continue;
    copy_rows<Shared::kPitch>(chain.products[k], first_row, place, memory.p[k]);
    if (!has_columns) continue;
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      const int64_t column = first_column + group / 2 * 8 + tile * 2 + group % 2;
#pragma unroll
      for (int s = 0; s < kStepsOfTerms; ++s)
        memory.q[k][warp][tile][s][lane] = {
            two_of_column(chain.products[k], place.columns, column, s * kTermsOfStep + term),
            two_of_column(chain.products[k], place.columns, column, s * kTermsOfStep + 8 + term)};
    }
  }
  __syncthreads();
  if (!has_columns) return;
  for (int pass = 0; pass < place.passes; ++pass) {
    if (first_row + pass * kRows >= place.rows) return;
    Packs x;
    if constexpr (kKnown == Known::any) {
      load_pass(pass, x);
    } else {
      memcpy(x, next, sizeof x);
      if (pass + 1 < place.passes) load_pass(pass + 1, next);
    }
    Stack<kValues> stack;
    const auto run = [&](auto op_, auto index_, auto function, int t) {
      const ElementwiseOp op = op_;
      const int index = index_;
      switch (op) {
        case ElementwiseOp::input:
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
          break;
        case ElementwiseOp::product_nr:
          stack.make_room();
#pragma unroll
          for (int k = 0; k < kFactors; ++k)
            if (k == index)
              product<kStepsOfTerms, Shared::kPitch>(
                  memory.q[k][warp], memory.p[k] + (pass * kRows + group) * Shared::kPitch + term, stack.v[0]);
          break;
        case ElementwiseOp::name:
#pragma unroll
          for (int k = 0; k < kMostElementwiseNames; ++k) {
#pragma unroll
            for (int j = 0; j < kValues; ++j) stack.named[k][j] = k == index ? stack.v[0][j] : stack.named[k][j];
          }
          break;
        case ElementwiseOp::named:
          stack.make_room();
          pick(stack.named, index, stack.v[0]);
          break;
        case ElementwiseOp::output:
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float eight_of[8];
#pragma unroll
            for (int j = 0; j < 8; ++j) eight_of[j] = stack.v[0][half * 8 + j];
            if (has_row(pass, half)) store(large.out[index], offset_of(pass, half), eight_of);
          }
          stack.close_up(0);
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
}

// Launchers

template <int kStepsOfTerms, Known kKnown>
CudaKernel launch_product_chain(const CudaKernelCall& call, const Chain& chain, const Place& place) {
  Large<bf16> large;
  for (size_t k = 0; k < call.in.size(); ++k)
    if (place.large >> k & 1) large.in[k] = ref<bf16>(call.in[k]);
  for (size_t k = 0; k < call.out.size(); ++k) large.out[k] = ref<bf16>(call.out[k]);
  const dim3 grid(static_cast<unsigned>(ceil_div(place.columns, kWarps * kColumns)),
                  static_cast<unsigned>(ceil_div(place.rows, int64_t{kRows} * place.passes)));
  const auto kernel = product_chain_kernel<kStepsOfTerms, kKnown>;
  constexpr int kBytes = sizeof(Memory<kStepsOfTerms, kProducts<kKnown>>);
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "cudaFuncSetAttribute");
  return
      [=](CudaStream stream) { launch(kernel, grid, kWarps * 32, kBytes, stream, "elementwise", chain, large, place); };
}

template <int kStepsOfTerms>
CudaKernel launch_product_chain(const CudaKernelCall& call, const Chain& chain, const Place& place) {
  if (kSteps<Known::sum>.match(chain)) return launch_product_chain<kStepsOfTerms, Known::sum>(call, chain, place);
  if (kSteps<Known::gate>.match(chain)) return launch_product_chain<kStepsOfTerms, Known::gate>(call, chain, place);
  if (kSteps<Known::gate_grads>.match(chain))
    return launch_product_chain<kStepsOfTerms, Known::gate_grads>(call, chain, place);
  if (kSteps<Known::gated_grads>.match(chain))
    return launch_product_chain<kStepsOfTerms, Known::gated_grads>(call, chain, place);
  return launch_product_chain<kStepsOfTerms, Known::any>(call, chain, place);
}

}  // namespace

std::optional<CudaKernel> prepare_product_chain(const CudaKernelCall& call, const Chain& chain,
                                                const std::vector<bool>& is_large) {
  Place place{call.out[0].size() / chain.columns, chain.columns};
  int terms = 0;
  for (int k = 0; k < chain.num_products; ++k) {
    const Factors& f = chain.products[k];
    if (!f.p.is_bf16 || !f.q.is_bf16 || f.terms % 8 != 0) return std::nullopt;
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
  // Blocks pass over up to 128 rows, unless there would then be too few blocks.
  const int64_t blocks = ceil_div(place.columns, kWarps * kColumns) * ceil_div(place.rows, kRows);
  place.passes = static_cast<int>(std::clamp<int64_t>(blocks / (int64_t{16} * multiprocessors()), 1, kMostPasses));
  if (terms <= kTermsOfStep) return launch_product_chain<1>(call, chain, place);
  if (terms <= 2 * kTermsOfStep) return launch_product_chain<2>(call, chain, place);
  return launch_product_chain<kMostSteps>(call, chain, place);
}

}  // namespace trainctl::chains
