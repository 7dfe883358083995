// narrow_grads in bf16 on tensor cores. A block of 8 warps passes over rows of dy, 16 at a time, through a ring of
// tiles in shared memory; a warp has 64 (32 where r is 64) columns of them:
//
//   dx   rows x r        += dy w      sums over the block's columns: over those of a warp in registers, then over warps
//   dw^T r x columns     += x^T dy    in registers until the last row
#include "engine/ops/cuda/kernels_in_order_cuda.h"
#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/matmul/narrow_grads.h"
#include "engine/ops/named_ops.h"

namespace trainctl {

extern const OpDef matmul_weight_grad_op;

namespace narrow_grads {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kRows = NarrowGradParts::kRows, kRing = 4;
constexpr int kPad = 8;  ///< elements after a row, so that 8 rows are in different banks

/// r / 16, rounded up.
template <int kSixteens>
struct Sizes {
  static constexpr int kFeatures = kSixteens * 16, kTiles = kSixteens < 4 ? 8 : 4;  ///< a tile has 8 columns
  static constexpr int kWarpColumns = kTiles * 8, kColumns = kWarps * kWarpColumns;
  static constexpr int kDyPitch = kColumns + kPad, kXPitch = kFeatures + kPad;
  struct Tile {
    bf16 dy[kRows * kDyPitch], x[kRows * kXPitch];
  };
  struct alignas(16) Memory {
    Tile ring[kRing];
    float sums[2][kWarps][kRows * kFeatures];  ///< parts of dx, for this tile and the one before
  };
};

struct Operands {
  const bf16 *dy, *w, *x;
  float *dx, *dw;  ///< partial sums, as in NarrowGradParts
  int64_t rows, n;
  int r;
  int64_t rows_of_part;
};

__device__ inline void copy_16(bf16* to, const bf16* from, bool there) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(there ? 16 : 0)
      : "memory");
#endif
}

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

/// Copies 16 rows of dy's columns and of x; zeros beyond their ends.
template <int kSixteens>
__device__ inline void copy_tile(const Operands& o, typename Sizes<kSixteens>::Tile& tile, int64_t column,
                                 int64_t row) {
  using S = Sizes<kSixteens>;
  constexpr int kPacks = S::kColumns / 8, kXPacks = S::kFeatures / 8;
#pragma unroll
  for (int i = 0; i < kRows * kPacks / kThreads; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x), r = at / kPacks, c = at % kPacks * 8;
    const bool there = row + r < o.rows && column + c < o.n;
    copy_16(tile.dy + r * S::kDyPitch + c, o.dy + (there ? (row + r) * o.n + column + c : 0), there);
  }
  for (int at = static_cast<int>(threadIdx.x); at < kRows * kXPacks; at += kThreads) {
    const int r = at / kXPacks, c = at % kXPacks * 8;
    const bool there = row + r < o.rows && c < o.r;
    copy_16(tile.x + r * S::kXPitch + c, o.x + (there ? (row + r) * o.r + c : 0), there);
  }
}

/// A warp's fragments of w: terms are columns of dy.
template <int kSixteens>
struct Weights {
  uint32_t of[Sizes<kSixteens>::kTiles / 2][2 * kSixteens][2];

  __device__ void load(const Operands& o, int64_t column, int group, int term) {
#pragma unroll
    for (int step = 0; step < Sizes<kSixteens>::kTiles / 2; ++step) {
#pragma unroll
      for (int f = 0; f < 2 * kSixteens; ++f) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t c = column + step * 16 + half * 8 + term;
          const int feature = f * 8 + group;
          const bool there = c < o.n && feature < o.r;
          const auto* const w = reinterpret_cast<const uint16_t*>(o.w) + (there ? c * o.r + feature : 0);
          of[step][f][half] = there ? w[0] | static_cast<uint32_t>(w[o.r]) << 16 : 0;
        }
      }
    }
  }
};

/// Writes the sums over all warps of a tile's part of dx.
template <int kSixteens>
__device__ inline void write_dx(const Operands& o, const float (&sums)[kWarps][kRows * Sizes<kSixteens>::kFeatures],
                                int64_t row) {
  constexpr int kFeatures = Sizes<kSixteens>::kFeatures;
  for (int at = static_cast<int>(threadIdx.x); at < kRows * kFeatures; at += kThreads) {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += sums[warp][at];
    if (row + at / kFeatures < o.rows) o.dx[(blockIdx.x * o.rows + row) * kFeatures + at] = sum;
  }
}

template <int kSixteens>
__global__ void __launch_bounds__(kThreads, 2) narrow_grads_parts(const Operands o) {
  wait_for_kernel_before();
  let_next_kernel_start();
  using S = Sizes<kSixteens>;
  constexpr int kTiles = S::kTiles, kFeatures = S::kFeatures;
  extern __shared__ uint4 bytes[];
  auto& memory = *reinterpret_cast<typename S::Memory*>(bytes);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4, term = lane % 4 * 2;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * S::kColumns;
  const int64_t first = blockIdx.y * o.rows_of_part, end = min(o.rows, first + o.rows_of_part);
  const int tiles = static_cast<int>((end - first + kRows - 1) / kRows);
  for (int t = 0; t < kRing - 1; ++t) {
    if (t < tiles) copy_tile<kSixteens>(o, memory.ring[t], column, first + t * kRows);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  Weights<kSixteens> w;
  w.load(o, column + warp * S::kWarpColumns, group, term);
  float dw[kSixteens][kTiles][4] = {};
  for (int t = 0; t < tiles; ++t) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kRing - 2) : "memory");
    __syncthreads();
    if (t + kRing - 1 < tiles)
      copy_tile<kSixteens>(o, memory.ring[(t + kRing - 1) % kRing], column, first + (t + kRing - 1) * kRows);
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (t > 0) write_dx<kSixteens>(o, memory.sums[(t - 1) % 2], first + (t - 1) * kRows);
    const typename S::Tile& tile = memory.ring[t % kRing];
    const bf16* const dy = tile.dy + warp * S::kWarpColumns;
    float dx[2 * kSixteens][4] = {};
#pragma unroll
    for (int step = 0; step < kTiles / 2; ++step) {
      const bf16* const at = dy + group * S::kDyPitch + step * 16 + term;
      const uint32_t a[4] = {two(at), two(at + 8 * S::kDyPitch), two(at + 8), two(at + 8 * S::kDyPitch + 8)};
#pragma unroll
      for (int f = 0; f < 2 * kSixteens; ++f) multiply(dx[f], a, w.of[step][f][0], w.of[step][f][1]);
    }
#pragma unroll
    for (int f = 0; f < 2 * kSixteens; ++f) {
      float* const to = memory.sums[t % 2][warp] + f * 8 + term;
      *reinterpret_cast<float2*>(to + group * kFeatures) = {dx[f][0], dx[f][1]};
      *reinterpret_cast<float2*>(to + (group + 8) * kFeatures) = {dx[f][2], dx[f][3]};
    }
    uint32_t x[kSixteens][4];
#pragma unroll
    for (int s = 0; s < kSixteens; ++s)
      load_transposed(x[s], tile.x + (lane / 16 * 8 + lane % 8) * S::kXPitch + s * 16 + lane / 8 % 2 * 8);
#pragma unroll
    for (int pair = 0; pair < kTiles / 2; ++pair) {
      uint32_t b[4];
      load_transposed(b, dy + (lane / 8 % 2 * 8 + lane % 8) * S::kDyPitch + pair * 16 + lane / 16 * 8);
#pragma unroll
      for (int s = 0; s < kSixteens; ++s) {
        multiply(dw[s][2 * pair], x[s], b[0], b[1]);
        multiply(dw[s][2 * pair + 1], x[s], b[2], b[3]);
      }
    }
  }
  __syncthreads();
  if (tiles > 0) write_dx<kSixteens>(o, memory.sums[(tiles - 1) % 2], first + (tiles - 1) * kRows);
#pragma unroll
  for (int s = 0; s < kSixteens; ++s) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t c = column + warp * S::kWarpColumns + tile * 8 + term + i % 2;
        if (c < o.n) o.dw[(blockIdx.y * o.n + c) * kFeatures + s * 16 + i / 2 * 8 + group] = dw[s][tile][i];
      }
    }
  }
}

/// A result as the sum of its parts.
struct Sum {
  const float* parts;  ///< [count, lines, features]
  Ref<Mixed> to;       ///< [lines, r]
  int64_t lines;
  int count;
  bool accumulate;
  float factor;
};

__device__ inline void add_parts(const Sum& s, int64_t at, int features, int r) {
  const int64_t line = at * 4 / features;
  const int feature = static_cast<int>(at * 4 % features);
  if (feature >= r) return;
  float4 sum = {0, 0, 0, 0};
  for (int part = 0; part < s.count; ++part) {
    const float4 more = reinterpret_cast<const float4*>(s.parts)[part * (s.lines * features / 4) + at];
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
  }
  const float four_sums[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {  // r is a multiple of 8
    const int64_t to = line * r + feature + j;
    set(s.to, to, four_sums[j] * s.factor + (s.accumulate ? value(s.to, to) : 0.0f));
  }
}

__global__ void __launch_bounds__(kThreads) narrow_grads_sums(const Sum dx, const Sum dw, int features, int r) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t of_dx = dx.lines * features / 4, of_dw = dw.lines * features / 4;
  if (at < of_dx)
    add_parts(dx, at, features, r);
  else if (at < of_dx + of_dw)
    add_parts(dw, at - of_dx, features, r);
}

// Launchers

template <int kSixteens>
CudaKernel launch_narrow_grads(const CudaKernelCall& call, const NarrowGradParts& parts, int64_t rows, int64_t n,
                               int r) {
  using Memory = typename Sizes<kSixteens>::Memory;
  static_assert(sizeof(Memory) <= 110 * 1024, "two blocks share a multiprocessor");
  const auto kernel = narrow_grads_parts<kSixteens>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int{sizeof(Memory)}),
             "cudaFuncSetAttribute");
  const TensorArg &dx = call.out[0], &dw = call.out[1];
  call.scratch->need((parts.dx_floats(rows) + parts.dw_floats(n)) * 4);
  Operands o{call.in[0].as<bf16>(), call.in[1].as<bf16>(), call.in[2].as<bf16>(), nullptr, nullptr, rows, n, r,
             parts.rows_of_part};
  const auto factor = static_cast<float>(call.attrs.number("factor", 1.0));
  const Sum of_dx{nullptr, ref<Mixed>(dx), rows, static_cast<int>(parts.column_parts), false, factor};
  const Sum of_dw{nullptr, ref<Mixed>(dw), n, static_cast<int>(parts.row_parts), dw.accumulate, 1.0f};
  const dim3 grid(static_cast<unsigned>(parts.column_parts), static_cast<unsigned>(parts.row_parts));
  const auto sum_blocks = static_cast<unsigned>(ceil_div((rows + n) * parts.features / 4, int64_t{kThreads}));
  return [=, scratch = call.scratch](CudaStream stream) {
    Operands with = o;
    with.dx = static_cast<float*>(scratch->memory());
    with.dw = with.dx + parts.dx_floats(rows);
    launch(kernel, grid, kThreads, sizeof(Memory), stream, "narrow_grads", with);
    Sum first = of_dx, second = of_dw;
    first.parts = with.dx;
    second.parts = with.dw;
    launch(narrow_grads_sums, sum_blocks, kThreads, 0, stream, "narrow_grads", first, second,
           static_cast<int>(parts.features), r);
  };
}

/// A product for each gradient.
CudaKernel separate(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &w = call.in[1], &x = call.in[2];
  std::vector<CudaKernel> kernels = {cuda::separate_kernel(matmul_op.kernel, call, {dy, w}, {call.out[0]}),
                                     cuda::separate_kernel(matmul_weight_grad_op.kernel, call, {x, dy}, {call.out[1]})};
  if (call.attrs.number("factor", 1.0) != 1.0)
    kernels.push_back(cuda::separate_kernel(get_kernel("scale"), call, {call.out[0]}, {call.out[0]}));
  return cuda::in_order(std::move(kernels));
}

}  // namespace
}  // namespace narrow_grads

CudaKernel prepare_narrow_grads(const CudaKernelCall& call) {
  using namespace narrow_grads;
  const TensorArg &dy = call.in[0], &w = call.in[1], &x = call.in[2];
  const int64_t n = dy.shape.back(), r = x.shape.back(), rows = dy.size() / std::max<int64_t>(n, 1);
  const bool bf = dy.dtype == DType::bf16 && w.dtype == DType::bf16 && x.dtype == DType::bf16;
  if (dy.size() == 0 || !bf || n % 8 != 0 || r % 8 != 0 || r > 64 || !packs_are_aligned({&dy, &x}) ||
      !built_for_hopper())
    return separate(call);
  const NarrowGradParts parts(rows, n, r);
  if (parts.features == 16) return launch_narrow_grads<1>(call, parts, rows, n, static_cast<int>(r));
  if (parts.features == 32) return launch_narrow_grads<2>(call, parts, rows, n, static_cast<int>(r));
  return launch_narrow_grads<4>(call, parts, rows, n, static_cast<int>(r));
}

}  // namespace trainctl
