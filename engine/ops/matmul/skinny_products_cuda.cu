// Products with few columns (skinny_products.h) in bf16 on tensor cores. A block of 8 warps passes over rows of the
// large operand, 16 at a time, through a ring of tiles in shared memory; a warp has 64 (32 of more than 32 features) of
// its columns:
//
//   of rows      rows x features     += large w        over a warp's columns in registers, then over warps
//   of weights   features x columns  += small^T large  in registers until the last row
#include <algorithm>

#include "engine/ops/cuda/async_copies_cuda.cuh"
#include "engine/ops/cuda/kernels_in_order_cuda.h"
#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/matmul/skinny_products.h"
#include "engine/ops/named_ops.h"

namespace trainctl {

extern const OpDef matmul_weight_grad_op;

namespace skinny {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kRows = SkinnyParts::kRows, kRing = 4;
constexpr int kPad = 8;  ///< elements after a row, so that 8 rows are in different banks

/// kSixteens: features / 16, rounded up.
template <int kSixteens>
struct Sizes {
  static constexpr int kFeatures = kSixteens * 16, kTiles = kSixteens < 4 ? 8 : 4;  ///< a tile has 8 columns
  static constexpr int kWarpColumns = kTiles * 8, kColumns = kWarps * kWarpColumns;
  static constexpr int kPitch = kColumns + kPad, kSmallPitch = kFeatures + kPad;
  struct Tile {
    bf16 large[kRows * kPitch], small[kRows * kSmallPitch];
  };
  struct alignas(16) Memory {
    Tile ring[kRing];
    float sums[2][kWarps][kRows * kFeatures];  ///< parts of the sums of rows, for this tile and the one before
  };
};

/// Features are those of all operands with few columns, one after another.
struct Operands {
  static constexpr int kEights = kMostFeatures / 8;
  const bf16* large = nullptr;      ///< [rows, n]
  const bf16* w[kEights] = {};      ///< each [n, r], or [r, n] with `by_feature`, from its eight features on
  const bf16* small[kEights] = {};  ///< each [rows, r], from its eight features on
  float* of_rows = nullptr;         ///< partial sums, as in SkinnyParts
  float* of_weights = nullptr;      ///< the same; with `by_feature` [row_parts, features, n]
  int64_t rows = 0, n = 0;
  int r = 0, features = 0;  ///< r is a multiple of 8
  bool by_feature = false;
  int64_t rows_of_part = 0;

  void set_w(size_t operand, const bf16* from) { set(w, operand, from, by_feature ? n : 1); }
  void set_small(size_t operand, const bf16* from) { set(small, operand, from, 1); }

 private:
  /// Features beyond the last read those of the first operand; their results are not used.
  void set(const bf16* (&to)[kEights], size_t operand, const bf16* from, int64_t step) const {
    const int of_each = r / 8, first = static_cast<int>(operand) * of_each;
    for (int i = 0; i < kEights; ++i) {
      if (i >= first && i < first + of_each) to[i] = from + (i - first) * 8 * step;
      if (operand == 0 && i >= features / 8) to[i] = from;
    }
  }
};

__device__ inline void multiply(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Four 8 x 8 matrices, transposed: lane i has the address of row i % 8 of matrix i / 8.
__device__ inline void load_transposed(uint32_t (&to)[4], const bf16* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from)))
               : "memory");
}

__device__ inline uint32_t two(const bf16* from) { return *reinterpret_cast<const uint32_t*>(from); }

/// Copies 16 rows of the large operand's columns and, for gradients of weights, of the small ones; zeros beyond their
/// ends.
template <int kSixteens, bool kWeights>
__device__ inline void copy_tile(const Operands& o, typename Sizes<kSixteens>::Tile& tile, int64_t column,
                                 int64_t row) {
  using S = Sizes<kSixteens>;
  constexpr int kPacks = S::kColumns / 8, kSmallPacks = S::kFeatures / 8, kRowsAtOnce = kThreads / kPacks;
  const int first = static_cast<int>(threadIdx.x) / kPacks, c = static_cast<int>(threadIdx.x) % kPacks * 8;
  const int rows = column + c < o.n ? static_cast<int>(min(o.rows - row, int64_t{kRows})) : 0;
  const bf16* from = o.large + (row + first) * o.n + column + c;
  bf16* const to = tile.large + first * S::kPitch + c;
#pragma unroll
  for (int r = 0; r < kRows; r += kRowsAtOnce, from += kRowsAtOnce * o.n)
    request_16(to + r * S::kPitch, first + r < rows ? from : o.large, first + r < rows);
  if constexpr (kWeights) {
    static_assert(kRows * kSmallPacks <= kThreads);
    const int at = static_cast<int>(threadIdx.x), r = at / kSmallPacks, feature = at % kSmallPacks * 8;
    const bool there = row + r < o.rows && feature < o.features;
    if (at < kRows * kSmallPacks)
      request_16(tile.small + r * S::kSmallPitch + feature, o.small[feature / 8] + (there ? (row + r) * o.r : 0),
                 there);
  }
}

/// A warp's fragments of w: terms are columns of the large operand.
template <int kSixteens>
struct Weights {
  uint32_t of[Sizes<kSixteens>::kTiles / 2][2 * kSixteens][2];

  /// Loads all of them before it uses any: a block has no other work meanwhile.
  __device__ void load(const Operands& o, int64_t column, int group, int term) {
    if (o.by_feature)
      for_all([&](int eight, int at, uint32_t& to) {
        to = two(o.w[eight] + group * o.n + existing(o, column + at + term));
      });
    else
      for_all([&](int eight, int at, uint32_t& to) {
        const auto* const from =
            reinterpret_cast<const uint16_t*>(o.w[eight]) + existing(o, column + at + term) * o.r + group;
        to = from[0] | static_cast<uint32_t>(from[o.r]) << 16;
      });
    for_all([&](int eight, int at, uint32_t& to) {
      if (column + at + term >= o.n || eight * 8 >= o.features) to = 0;
    });
  }

 private:
  /// The number of columns is a multiple of 8.
  __device__ static int64_t existing(const Operands& o, int64_t column) { return column < o.n ? column : column % 8; }

  template <class Function>
  __device__ void for_all(Function function) {
#pragma unroll
    for (int step = 0; step < Sizes<kSixteens>::kTiles / 2; ++step) {
#pragma unroll
      for (int eight = 0; eight < 2 * kSixteens; ++eight) {
#pragma unroll
        for (int half = 0; half < 2; ++half) function(eight, step * 16 + half * 8, of[step][eight][half]);
      }
    }
  }
};

/// Writes the sums over all warps of a tile's rows.
template <int kSixteens>
__device__ inline void write_rows(const Operands& o, const float (&sums)[kWarps][kRows * Sizes<kSixteens>::kFeatures],
                                  int64_t row) {
  constexpr int kFeatures = Sizes<kSixteens>::kFeatures, kAll = kRows * kFeatures;
  const int valid = static_cast<int>(min(o.rows - row, int64_t{kRows})) * kFeatures;
  float* const to = o.of_rows + (blockIdx.x * o.rows + row) * kFeatures;
#pragma unroll
  for (int first = 0; first < kAll; first += kThreads) {
    const int at = first + static_cast<int>(threadIdx.x);
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += sums[warp][at];
    if (at < valid) to[at] = sum;
  }
}

/// The products of a tile's rows with w, over a warp's columns.
template <int kSixteens>
__device__ inline void multiply_rows(const bf16* large, const Weights<kSixteens>& w, float* to) {
  using S = Sizes<kSixteens>;
  const int group = static_cast<int>(threadIdx.x) % 32 / 4, term = static_cast<int>(threadIdx.x) % 4 * 2;
  float sums[2 * kSixteens][4] = {};
#pragma unroll
  for (int step = 0; step < S::kTiles / 2; ++step) {
    const bf16* const at = large + group * S::kPitch + step * 16 + term;
    const uint32_t a[4] = {two(at), two(at + 8 * S::kPitch), two(at + 8), two(at + 8 * S::kPitch + 8)};
#pragma unroll
    for (int f = 0; f < 2 * kSixteens; ++f) multiply(sums[f], a, w.of[step][f][0], w.of[step][f][1]);
  }
#pragma unroll
  for (int f = 0; f < 2 * kSixteens; ++f) {
    float* const at = to + group * S::kFeatures + f * 8 + term;
    *reinterpret_cast<float2*>(at) = {sums[f][0], sums[f][1]};
    *reinterpret_cast<float2*>(at + 8 * S::kFeatures) = {sums[f][2], sums[f][3]};
  }
}

/// A warp's columns of the gradients of weights.
template <int kSixteens>
struct WeightSums {
  using S = Sizes<kSixteens>;
  float of[kSixteens][S::kTiles][4] = {};

  /// Adds the products of a tile's rows.
  __device__ void add(const bf16* large, const bf16* small) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    uint32_t x[kSixteens][4];
#pragma unroll
    for (int s = 0; s < kSixteens; ++s)
      load_transposed(x[s], small + (lane / 16 * 8 + lane % 8) * S::kSmallPitch + s * 16 + lane / 8 % 2 * 8);
#pragma unroll
    for (int pair = 0; pair < S::kTiles / 2; ++pair) {
      uint32_t b[4];
      load_transposed(b, large + (lane / 8 % 2 * 8 + lane % 8) * S::kPitch + pair * 16 + lane / 16 * 8);
#pragma unroll
      for (int s = 0; s < kSixteens; ++s) {
        multiply(of[s][2 * pair], x[s], b[0], b[1]);
        multiply(of[s][2 * pair + 1], x[s], b[2], b[3]);
      }
    }
  }

  __device__ void write(const Operands& o, int64_t column) const {
    const int group = static_cast<int>(threadIdx.x) % 32 / 4, term = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int s = 0; s < kSixteens; ++s) {
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int64_t c = column + tile * 8 + term + i % 2, feature = s * 16 + i / 2 * 8 + group;
          if (c >= o.n) continue;
          const int64_t at = o.by_feature ? (blockIdx.y * S::kFeatures + feature) * o.n + c
                                          : (blockIdx.y * o.n + c) * S::kFeatures + feature;
          o.of_weights[at] = of[s][tile][i];
        }
      }
    }
  }
};

/// Multiplies one range of columns and one range of rows of the large operand by the small ones, and writes partial
/// sums: with kOfRows the products of rows, with kOfWeights the gradients of weights. Tiles of rows are requested kRing
/// - 1 ahead.
template <int kSixteens, bool kOfRows, bool kOfWeights>
__global__ void __launch_bounds__(kThreads, 2) skinny_parts(__grid_constant__ const Operands o) {
  wait_for_kernel_before();
  let_next_kernel_start();
  using S = Sizes<kSixteens>;
  extern __shared__ uint4 bytes[];
  auto& memory = *reinterpret_cast<typename S::Memory*>(bytes);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * S::kColumns, of_warp = column + warp * S::kWarpColumns;
  const int64_t first = blockIdx.y * o.rows_of_part, end = min(o.rows, first + o.rows_of_part);
  const int tiles = static_cast<int>((end - first + kRows - 1) / kRows);
  for (int t = 0; t < kRing - 1; ++t) {
    if (t < tiles) copy_tile<kSixteens, kOfWeights>(o, memory.ring[t], column, first + t * kRows);
    end_group_of_requests();
  }
  Weights<kSixteens> w;
  if constexpr (kOfRows) w.load(o, of_warp, lane / 4, lane % 4 * 2);
  WeightSums<kSixteens> of_weights;
  for (int t = 0; t < tiles; ++t) {
    wait_for_requests<kRing - 2>();
    __syncthreads();
    const int ahead = t + kRing - 1;
    if (ahead < tiles) copy_tile<kSixteens, kOfWeights>(o, memory.ring[ahead % kRing], column, first + ahead * kRows);
    end_group_of_requests();
    const typename S::Tile& tile = memory.ring[t % kRing];
    const bf16* const large = tile.large + warp * S::kWarpColumns;
    if constexpr (kOfRows) {
      if (t > 0) write_rows<kSixteens>(o, memory.sums[(t - 1) % 2], first + (t - 1) * kRows);
      multiply_rows<kSixteens>(large, w, memory.sums[t % 2][warp]);
    }
    if constexpr (kOfWeights) of_weights.add(large, tile.small);
  }
  if constexpr (kOfRows) {
    __syncthreads();
    if (tiles > 0) write_rows<kSixteens>(o, memory.sums[(tiles - 1) % 2], first + (tiles - 1) * kRows);
  }
  if constexpr (kOfWeights) of_weights.write(o, of_warp);
}

/// Results as sums of their parts, [count, lines, features], or [count, features, lines] with `by_feature`.
struct Sum {
  const float* parts = nullptr;
  Ref<Mixed> to[kMostSkinny] = {};  ///< each [lines, r], or [r, lines]
  int64_t lines = 0;
  int count = 0, r = 1, features = 0, all_features = 0;  ///< all_features: with those that parts are padded by
  bool by_feature = false, accumulate = false;
  float factor = 1;

  __device__ int64_t size() const { return lines * features; }

  /// Adds one element: of a line, or with by_feature of a feature, after another.
  __device__ void add(int64_t at) const {
    const int64_t across = by_feature ? lines : features;
    const int64_t line = by_feature ? at % across : at / across;
    const int feature = static_cast<int>(by_feature ? at / across : at % across);
    const int64_t from = by_feature ? feature * lines + line : line * all_features + feature;
    float sum = 0;
#pragma unroll 16
    for (int part = 0; part < count; ++part) sum += parts[part * lines * all_features + from];
    const int which = feature / r, own = feature - which * r;
    const int64_t to_at = by_feature ? own * lines + line : line * r + own;
    set(to[which], to_at, sum * factor + (accumulate ? value(to[which], to_at) : 0.0f));
  }
};

__global__ void __launch_bounds__(kThreads)
    skinny_sums(__grid_constant__ const Sum rows, __grid_constant__ const Sum weights) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at < rows.size())
    rows.add(at);
  else if (at - rows.size() < weights.size())
    weights.add(at - rows.size());
}

// Launchers

/// Launches skinny_parts and skinny_sums, which adds the partial sums in a fixed order. `rows`, `weights`: where the
/// sums go.
template <int kSixteens, bool kOfRows, bool kOfWeights>
CudaKernel launch_skinny(CudaScratch* scratch, const Operands& o, const SkinnyParts& parts, Sum rows, Sum weights) {
  using Memory = typename Sizes<kSixteens>::Memory;
  static_assert(sizeof(Memory) <= 110 * 1024, "two blocks share a multiprocessor");
  const auto kernel = skinny_parts<kSixteens, kOfRows, kOfWeights>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int{sizeof(Memory)}),
             "cudaFuncSetAttribute");
  const int64_t row_floats = kOfRows ? parts.dx_floats(o.rows) : 0;
  scratch->need((row_floats + (kOfWeights ? parts.dw_floats(o.n) : 0)) * 4);
  const dim3 grid(static_cast<unsigned>(parts.column_parts), static_cast<unsigned>(parts.row_parts));
  const int64_t results = ((kOfRows ? o.rows : 0) + (kOfWeights ? o.n : 0)) * o.features;
  rows.lines = kOfRows ? o.rows : 0;
  rows.count = static_cast<int>(parts.column_parts);
  weights.lines = kOfWeights ? o.n : 0;
  weights.count = static_cast<int>(parts.row_parts);
  weights.by_feature = o.by_feature;
  for (Sum* const sum : {&rows, &weights}) {
    sum->r = o.r;
    sum->features = o.features;
    sum->all_features = static_cast<int>(parts.features);
  }
  return [=](CudaStream stream) {
    Operands with = o;
    with.of_rows = static_cast<float*>(scratch->memory());
    with.of_weights = with.of_rows + row_floats;
    launch(kernel, grid, kThreads, sizeof(Memory), stream, "skinny products", with);
    Sum first = rows, second = weights;
    first.parts = with.of_rows;
    second.parts = with.of_weights;
    launch(skinny_sums, static_cast<unsigned>(ceil_div(results, int64_t{kThreads})), kThreads, 0, stream,
           "skinny products", first, second);
  };
}

/// Selects the kernel for the number of features, in multiples of 16.
template <bool kOfRows, bool kOfWeights>
CudaKernel launch_skinny(CudaScratch* scratch, const Operands& o, const SkinnyParts& parts, const Sum& rows,
                         const Sum& weights) {
  if (parts.features == 16) return launch_skinny<1, kOfRows, kOfWeights>(scratch, o, parts, rows, weights);
  if (parts.features == 32) return launch_skinny<2, kOfRows, kOfWeights>(scratch, o, parts, rows, weights);
  return launch_skinny<4, kOfRows, kOfWeights>(scratch, o, parts, rows, weights);
}

float factor_of(const CudaKernelCall& call) { return static_cast<float>(call.attrs.number("factor", 1.0)); }

/// The large operand is input 0, and r is the number of columns of the others. False: no kernel here takes them.
bool set_sizes(const CudaKernelCall& call, int64_t r, Operands& o) {
  const TensorArg& large = call.in[0];
  o.n = large.shape.back();
  o.rows = large.size() / std::max<int64_t>(o.n, 1);
  o.r = static_cast<int>(r);
  for (const TensorArg& in : call.in)
    if (in.dtype != DType::bf16 || !packs_are_aligned({&in})) return false;
  return large.size() > 0 && o.n % 8 == 0 && r % 8 == 0 && o.features <= kMostFeatures && built_for_hopper();
}

/// A product for each result: call.in[first], call.in[second] -> result.
struct Separate {
  const OpDef& op;
  size_t first, second, out;
  Attrs attrs;
};

CudaKernel separate(const CudaKernelCall& call, const std::vector<Separate>& products) {
  std::vector<CudaKernel> kernels;
  for (const Separate& p : products) {
    CudaKernelCall one = call;
    one.attrs = p.attrs;
    kernels.push_back(
        cuda::separate_kernel(p.op.kernel, one, {call.in[p.first], call.in[p.second]}, {call.out[p.out]}));
    if (&p.op != &matmul_op || factor_of(call) == 1.0f) continue;
    kernels.push_back(cuda::separate_kernel(get_kernel("scale"), call, {call.out[p.out]}, {call.out[p.out]}));
  }
  return cuda::in_order(std::move(kernels));
}

}  // namespace
}  // namespace skinny

CudaKernel prepare_skinny_grads(const CudaKernelCall& call) {
  using namespace skinny;
  const int64_t r = call.in[2].shape.back();
  Operands o{.features = static_cast<int>(r)};
  if (!set_sizes(call, r, o)) return separate(call, {{matmul_op, 0, 1, 0, {}}, {matmul_weight_grad_op, 2, 0, 1, {}}});
  o.large = call.in[0].as<bf16>();
  o.set_w(0, call.in[1].as<bf16>());
  o.set_small(0, call.in[2].as<bf16>());
  const SkinnyParts parts(o.rows, o.n, o.features);
  o.rows_of_part = parts.rows_of_part;
  const Sum rows{.to = {ref<Mixed>(call.out[0])}, .factor = factor_of(call)};
  const Sum weights{.to = {ref<Mixed>(call.out[1])}, .accumulate = call.out[1].accumulate, .factor = 1};
  return launch_skinny<true, true>(call.scratch, o, parts, rows, weights);
}

/// y_i = x w_i^T for several narrow weights of the same x, in one pass over x; separate products if the sizes do not
/// permit it.
CudaKernel prepare_skinny_products(const CudaKernelCall& call) {
  using namespace skinny;
  const size_t count = call.out.size();
  const int64_t r = call.out[0].shape.back();
  Operands o{.features = static_cast<int>(r * static_cast<int64_t>(count)), .by_feature = true};
  if (!set_sizes(call, r, o)) {
    std::vector<Separate> products;
    for (size_t i = 0; i < count; ++i) products.push_back({matmul_op, 0, i + 1, i, {{"transpose_b", true}}});
    return separate(call, products);
  }
  o.large = call.in[0].as<bf16>();
  const SkinnyParts parts(o.rows, o.n, o.features);
  o.rows_of_part = parts.rows_of_part;
  Sum rows{.factor = factor_of(call)};
  for (size_t i = 0; i < count; ++i) {
    o.set_w(i, call.in[i + 1].as<bf16>());
    rows.to[i] = ref<Mixed>(call.out[i]);
  }
  return launch_skinny<true, false>(call.scratch, o, parts, rows, {});
}

/// dw_i = dy_i^T x for several narrow weights of the same x, in one pass over x; separate products if the sizes do not
/// permit it.
CudaKernel prepare_skinny_weight_grads(const CudaKernelCall& call) {
  using namespace skinny;
  const size_t count = call.out.size();
  const int64_t r = call.out[0].shape[0];
  Operands o{.features = static_cast<int>(r * static_cast<int64_t>(count)), .by_feature = true};
  const bool alike =
      std::ranges::all_of(call.out, [&](const TensorArg& out) { return out.accumulate == call.out[0].accumulate; });
  if (!alike || !set_sizes(call, r, o)) {
    std::vector<Separate> products;
    for (size_t i = 0; i < count; ++i) products.push_back({matmul_weight_grad_op, 0, i + 1, i, {}});
    return separate(call, products);
  }
  o.large = call.in[0].as<bf16>();
  const SkinnyParts parts(o.rows, o.n, o.features);
  o.rows_of_part = parts.rows_of_part;
  Sum weights{.accumulate = call.out[0].accumulate, .factor = 1};
  for (size_t i = 0; i < count; ++i) {
    o.set_small(i, call.in[i + 1].as<bf16>());
    weights.to[i] = ref<Mixed>(call.out[i]);
  }
  return launch_skinny<false, true>(call.scratch, o, parts, {}, weights);
}

}  // namespace trainctl
