// All weight gradients of a small step, or the SGD steps fused with them, in one launch: dW = A^T B with few rows in A
// and B. A block computes a tile of one of them (grad_tile_cuda.cuh); if there would be few such tiles, or rows are not
// whole 16-byte packs, a block or a cluster computes a tile of tensor_tile_cuda.cuh. Bias gradients are summed from the
// tile's operands on the way. A gradient that is a vector gets blocks of its own.
#include "engine/ops/matmul/product_shape.h"
#include "engine/ops/small_step/grad_tile_cuda.cuh"
#include "engine/ops/small_step/kernel_group_cuda.h"
#include "engine/ops/small_step/tile_choice_cuda.cuh"

namespace trainctl::cuda {
namespace {

constexpr int kMostGrads = 16;
constexpr int64_t kMostRows = 1024;
constexpr size_t kMostCopied = 8;          ///< matrices, if the copy engine loads them
constexpr int kLine = 64;                  ///< elements of a vector that a block computes
constexpr int kLineParts = 2 * kLine + 1;  ///< a warp's partial sums for them

/// For many rows, if the copy engine cannot load them or tiles are few.
using LongTile = TileSize<8, 1, 1, 16, 88, 32, 4>;

struct Grad {
  TileProduct product;  ///< A and B are [k,m] and [k,n]
  int first = 0;        ///< index of its first tile among all tiles, or line among all lines
};

inline bool is_vector(const TileProduct& p) { return p.finish.m == 1 || p.finish.n == 1; }
inline int64_t lines_of(const TileProduct& p) { return ceil_div(int64_t{p.finish.m} * p.finish.n, kLine); }

/// The grid: blocks of tiles, in clusters, then blocks of vectors.
struct Grads {
  Grad list[kMostGrads];
  int count = 0, vectors = 0;  ///< the vectors are the last ones of the list
  int blocks = 1;              ///< blocks per cluster
  int tile_blocks = 0, grid = 0;
};

/// Computes kLine elements of C = v^T M or M^T v and, on the way, the sums of v and of M's columns. Warps split k: a
/// lane loads the same two columns for several k at a time.
template <int kThreads>
__device__ void make_line(const TileProduct& p, int first, float* shared) {
  constexpr int kApart = kThreads / 32, kAtOnce = 8, kOfLane = kLine / 32;
  const bool of_b = p.finish.m == 1;  // the matrix is B
  const Operand &matrix = of_b ? p.b : p.a, &vector = of_b ? p.a : p.b;
  float* const matrix_sums = of_b ? p.b_sums : p.a_sums;
  float* const vector_sum = of_b ? p.a_sums : p.b_sums;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, own = thread % 32;
  const Finish& f = p.finish;
  wait_for_kernel_before();
  float sum[kOfLane] = {}, of_matrix[kOfLane] = {}, of_vector = 0;
#pragma unroll 1
  for (int from = warp; from < matrix.k; from += kApart * kAtOnce) {
    float v[kAtOnce], m[kAtOnce][kOfLane];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int k = from + i * kApart;
      v[i] = k < matrix.k ? vector.data[k] : 0.0f;
#pragma unroll
      for (int c = 0; c < kOfLane; ++c) {
        const int at = first + own + 32 * c;
        m[i][c] = k < matrix.k && at < matrix.rows ? matrix.data[static_cast<int64_t>(k) * matrix.rows + at] : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      of_vector += v[i];
#pragma unroll
      for (int c = 0; c < kOfLane; ++c) sum[c] += v[i] * m[i][c], of_matrix[c] += m[i][c];
    }
  }
  float* const parts = shared + warp * kLineParts;
#pragma unroll
  for (int c = 0; c < kOfLane; ++c) {
    parts[own + 32 * c] = sum[c];
    parts[own + 32 * c + kLine] = of_matrix[c];
  }
  if (own == 0) parts[2 * kLine] = of_vector;
  __syncthreads();
  if (thread >= kLine || first + thread >= matrix.rows) return;
  const float scale = scale_of(f);
  const auto store = [&](float* to, int part, bool accumulate) {
    float all = 0;
#pragma unroll
    for (int i = 0; i < kApart; ++i) all += shared[i * kLineParts + part];
    *to = all * scale + (accumulate ? *to : 0.0f);
  };
  store(f.c + first + thread, thread, f.accumulate);
  if (matrix_sums != nullptr) store(matrix_sums + first + thread, kLine + thread, p.sums_accumulate);
  if (vector_sum != nullptr && first + thread == 0) store(vector_sum, 2 * kLine, p.sums_accumulate);
}

/// A block's work: index of the gradient, and number of the tile or line in it.
struct Item {
  bool of_vector;
  int which, number;
  __device__ Item(const Grads& grads, int block, int blocks) : of_vector(block >= grads.tile_blocks) {
    const int own = of_vector ? block - grads.tile_blocks : block / blocks;
    const int end = of_vector ? grads.count : grads.count - grads.vectors;
    which = of_vector ? grads.count - grads.vectors : 0;
    while (which + 1 < end && own >= grads.list[which + 1].first) ++which;
    number = own - grads.list[which].first;
  }
};

template <class Size, bool kVectors>
using SplitTile = Tile<Size, false, false, kVectors>;

template <class Size>
constexpr int kShared = std::max(SplitTile<Size, true>::kShared, 4 * kLineParts * Size::kThreads / 32);

template <class Size>
__global__ void __launch_bounds__(Size::kThreads) weight_grads(const __grid_constant__ Grads grads) {
  extern __shared__ float4 shared4[];
  float* const shared = reinterpret_cast<float*>(shared4);
  let_next_kernel_start();
  const int block = static_cast<int>(blockIdx.x);
  const Item item(grads, block, grads.blocks);
  const TileProduct& p = grads.list[item.which].product;
  if (item.of_vector) {
    make_line<Size::kThreads>(p, item.number * kLine, shared);
    return;
  }
  const int across = (p.finish.n + Size::kN - 1) / Size::kN;
  const int row0 = item.number / across * Size::kM, col0 = item.number % across * Size::kN;
  if (p.vectors)
    make_tile<SplitTile<Size, true>>(p, 0, row0, col0, block % grads.blocks, grads.blocks, shared);
  else
    make_tile<SplitTile<Size, false>>(p, 0, row0, col0, block % grads.blocks, grads.blocks, shared);
}

/// The same if the copy engine loads the operands.
struct CopiedGrads {
  Grads grads;
  TileMap a[kMostCopied], b[kMostCopied];
};

__global__ void __launch_bounds__(GradTile::kThreads, 1) copied_weight_grads(const __grid_constant__ CopiedGrads all) {
  if constexpr (!kCodeForHopper) return;
  extern __shared__ __align__(1024) float4 shared4[];
  float* const shared = reinterpret_cast<float*>(shared4);
  let_next_kernel_start();
  const Item item(all.grads, static_cast<int>(blockIdx.x), 1);
  const TileProduct& p = all.grads.list[item.which].product;
  if (item.of_vector) {
    make_line<GradTile::kThreads>(p, item.number * kLine, shared);
    return;
  }
  const int across = (p.finish.n + GradTile::kN - 1) / GradTile::kN;
  make_grad_tile(p, all.a[item.which], all.b[item.which], item.number / across * GradTile::kM,
                 item.number % across * GradTile::kN, shared);
}

std::optional<TileProduct> grad_of(const GroupedKernel& kernel) {
  const CudaKernelCall& call = kernel.call;
  if (kernel.kernel->launch_role != LaunchRole::weight_grad || call.tf32 || call.attrs.flag("tf32") ||
      call.attrs.has("first_row"))
    return std::nullopt;
  for (const std::vector<TensorArg>* args : {&call.in, &call.out})
    for (const TensorArg& arg : *args)
      if (arg.dtype != DType::f32) return std::nullopt;
  const bool kn = call.attrs.flag("kn");
  const TensorArg &x = call.in[0], &dy = call.in[1], &left = kn ? x : dy, &right = kn ? dy : x;
  Product p{.a = left.data, .b = right.data, .c = call.out[0].data};
  set_weight_grad_shape(call, left, right, p);
  constexpr int64_t kMost = int64_t{1} << 24;
  if (p.k == 0 || p.k > kMostRows || p.m == 0 || p.n == 0 || p.m > kMost || p.n > kMost) return std::nullopt;
  if (call.out.size() > 1) {
    (kn ? p.b_sums : p.a_sums) = call.out[1].as<float>();
    p.sums_accumulate = call.out[1].accumulate;
  }
  return tile_product_of(p);
}

template <class Size>
int64_t tiles_of(const TileProduct& p) {
  return ceil_div(p.finish.m, Size::kM) * ceil_div(p.finish.n, Size::kN);
}

template <class Size>
TileChoice choose(const std::vector<TileProduct>& matrices, int64_t lines) {
  int64_t tiles = 0, k = 0;
  for (const TileProduct& p : matrices) {
    tiles += tiles_of<Size>(p);
    k = std::max<int64_t>(k, p.a.k);
  }
  return choose_blocks<Size>(weight_grads<Size>, kShared<Size>, tiles, lines, k);
}

/// The work of a grid of tiles of this size, in clusters of `blocks`.
template <class Size>
Grads list_grads(const std::vector<TileProduct>& matrices, const std::vector<TileProduct>& vectors, int blocks) {
  Grads grads;
  grads.blocks = blocks;
  int tiles = 0, lines = 0;
  for (const TileProduct& p : matrices) {
    Grad& grad = grads.list[grads.count++] = {p, tiles};
    grad.product.share = share_of(p.a.k, blocks);
    tiles += static_cast<int>(tiles_of<Size>(p));
  }
  for (const TileProduct& p : vectors) {
    grads.list[grads.count++] = {p, lines};
    ++grads.vectors;
    lines += static_cast<int>(lines_of(p));
  }
  grads.tile_blocks = tiles * blocks;
  grads.grid = grads.tile_blocks + static_cast<int>(ceil_div(lines, blocks)) * blocks;
  return grads;
}

template <class Size>
CudaKernel prepare(const std::vector<TileProduct>& matrices, const std::vector<TileProduct>& vectors, int blocks) {
  const Grads grads = list_grads<Size>(matrices, vectors, blocks);
  const auto bytes = static_cast<size_t>(shared_bytes(weight_grads<Size>, kShared<Size>, grads.grid));
  const dim3 grid(static_cast<unsigned>(grads.grid));
  require_clusters(weight_grads<Size>, ClusterLaunch(grid, Size::kThreads, bytes, blocks, nullptr), blocks);
  return [=](CudaStream stream) {
    const ClusterLaunch launch(grid, Size::kThreads, bytes, blocks, stream);
    cuda_check(cudaLaunchKernelEx(&launch.config, weight_grads<Size>, grads), "weight_grads");
  };
}

/// Null unless the copy engine can load the operands and these tiles keep more than half of the device busy. Null too
/// if k is short and blocks, one a multiprocessor, need a second wave: several smaller ones on each overlap.
std::optional<CudaKernel> prepare_copied(const std::vector<TileProduct>& matrices,
                                         const std::vector<TileProduct>& vectors, int64_t k) {
  const auto in_fours = [](const TileProduct& p) { return p.vectors; };
  if (!built_for_hopper() || matrices.size() > kMostCopied || !std::all_of(matrices.begin(), matrices.end(), in_fours))
    return std::nullopt;
  CopiedGrads all;
  all.grads = list_grads<GradSize>(matrices, vectors, 1);
  if (2 * all.grads.tile_blocks <= multiprocessors() || (k <= kShortK && all.grads.grid > multiprocessors()))
    return std::nullopt;
  const int bytes = shared_bytes(copied_weight_grads, GradTile::kShared, 1);
  if (bytes == 0) return std::nullopt;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const Operand &a = matrices[i].a, &b = matrices[i].b;
    if (!set_tile_map(all.a[i], a.data, a.k, a.rows, GradTile::kStage) ||
        !set_tile_map(all.b[i], b.data, b.k, b.rows, GradTile::kStage))
      return std::nullopt;
  }
  return [=](CudaStream stream) {
    launch(copied_weight_grads, dim3(static_cast<unsigned>(all.grads.grid)), dim3(GradTile::kThreads),
           static_cast<size_t>(bytes), stream, "copied_weight_grads", all);
  };
}

}  // namespace

std::optional<CudaKernel> prepare_weight_grads(std::span<const GroupedKernel> kernels) {
  if (kernels.size() < 2 || kernels.size() > kMostGrads) return std::nullopt;
  std::vector<TileProduct> all, matrices, vectors;
  int64_t lines = 0, k = 0;
  for (const GroupedKernel& kernel : kernels) {
    const std::optional<TileProduct> grad = grad_of(kernel);
    if (!grad) return std::nullopt;
    for (const TileProduct& other : all)  // all are computed at the same time
      if (other.finish.c == grad->a.data || other.finish.c == grad->b.data) return std::nullopt;
    all.push_back(*grad);
    (is_vector(*grad) ? vectors : matrices).push_back(*grad);
    if (is_vector(*grad)) lines += lines_of(*grad);
    k = std::max<int64_t>(k, grad->a.k);
  }
  if (std::optional<CudaKernel> copied = prepare_copied(matrices, vectors, k)) return copied;
  const TileChoice short_tiles = choose<ShortTile>(matrices, lines);
  if (k <= kShortK) return prepare<ShortTile>(matrices, vectors, short_tiles.blocks);
  const TileChoice long_tiles = choose<LongTile>(matrices, lines);
  if (long_tiles.cycles < short_tiles.cycles) return prepare<LongTile>(matrices, vectors, long_tiles.blocks);
  return prepare<ShortTile>(matrices, vectors, short_tiles.blocks);
}

}  // namespace trainctl::cuda
