// The gradients of a small step's weights in one launch, or the steps of descent that they make: dW = A^T B with
// few rows in A and B. A block, or a cluster, makes a tile of one of them (tensor_tile_cuda.cuh); bias gradients are
// sums over the tile's operands on the way. A gradient that is a vector gets blocks of its own.
#include "engine/ops/matmul/groups_cuda.h"
#include "engine/ops/matmul/product_shape.h"
#include "engine/ops/matmul/tile_choice_cuda.cuh"

namespace trainctl::cuda {
namespace {

constexpr int kMostGrads = 16;
constexpr int64_t kMostRows = 1024;
constexpr int kLine = 64;  ///< elements of a vector that a block makes

/// Where rows are many: 128 x 88 makes two gradients of 512 x 784 and 512 x 512 by 60 clusters of two blocks.
using LongTile = TileSize<8, 1, 1, 16, 88, 32, 4>;

struct Grad {
  TileProduct product;  ///< A and B are [k,m] and [k,n]
  int first = 0;        ///< of all tiles, or of all lines
};

inline bool is_vector(const TileProduct& p) { return p.finish.m == 1 || p.finish.n == 1; }
inline int64_t lines_of(const TileProduct& p) { return ceil_div(int64_t{p.finish.m} * p.finish.n, kLine); }

/// Tiles come first, in clusters; then vectors.
struct Grads {
  Grad list[kMostGrads];
  int count = 0, vectors = 0;  ///< of them, which are the last
  int blocks = 1;              ///< of a cluster
  int tile_blocks = 0;
};

/// kLine elements of C = v^T M, or M^T v; and the sums of v, or of M's columns, on the way.
template <int kThreads>
__device__ void make_line(const TileProduct& p, int first, float* shared) {
  constexpr int kApart = kThreads / kLine;  // threads that share k
  const bool of_b = p.finish.m == 1;        // the matrix is B
  const Operand &matrix = of_b ? p.b : p.a, &vector = of_b ? p.a : p.b;
  float* const matrix_sums = of_b ? p.b_sums : p.a_sums;
  float* const vector_sum = of_b ? p.a_sums : p.b_sums;
  const int thread = static_cast<int>(threadIdx.x), own = thread % kLine, at = first + own;
  const Finish& f = p.finish;
  wait_for_kernel_before();
  float sum = 0, of_matrix = 0, of_vector = 0;
#pragma unroll 8
  for (int k = thread / kLine; k < matrix.k; k += kApart) {
    const float v = vector.data[k];
    const float m = at < matrix.rows ? matrix.data[static_cast<int64_t>(k) * matrix.rows + at] : 0.0f;
    sum += v * m;
    of_matrix += m;
    of_vector += v;
  }
  shared[thread] = sum;
  shared[thread + kThreads] = of_matrix;
  shared[thread + 2 * kThreads] = of_vector;
  __syncthreads();
  if (thread >= kLine || at >= matrix.rows) return;
  sum = of_matrix = of_vector = 0;
#pragma unroll
  for (int i = 0; i < kApart; ++i) {
    sum += shared[own + i * kLine];
    of_matrix += shared[own + i * kLine + kThreads];
    of_vector += shared[own + i * kLine + 2 * kThreads];
  }
  const float scale = scale_of(f);
  const auto store = [&](float* to, float v, bool accumulate) { *to = v * scale + (accumulate ? *to : 0.0f); };
  store(f.c + at, sum, f.accumulate);
  if (matrix_sums != nullptr) store(matrix_sums + at, of_matrix, p.sums_accumulate);
  if (vector_sum != nullptr && at == 0) store(vector_sum, of_vector, p.sums_accumulate);
}

template <class Size, bool kVectors>
using GradTile = Tile<Size, false, false, kVectors>;

template <class Size>
constexpr int kShared = std::max(GradTile<Size, true>::kShared, 12 * Size::kThreads);

template <class Size>
__global__ void __launch_bounds__(Size::kThreads) weight_grads(const __grid_constant__ Grads grads) {
  extern __shared__ float4 shared4[];
  float* const shared = reinterpret_cast<float*>(shared4);
  let_next_kernel_start();
  const int block = static_cast<int>(blockIdx.x);
  const bool of_vector = block >= grads.tile_blocks;
  const int own = of_vector ? block - grads.tile_blocks : block / grads.blocks;
  const int end = of_vector ? grads.count : grads.count - grads.vectors;
  int which = of_vector ? grads.count - grads.vectors : 0;
  while (which + 1 < end && own >= grads.list[which + 1].first) ++which;
  const TileProduct& p = grads.list[which].product;
  const int item = own - grads.list[which].first;
  if (of_vector) {
    make_line<Size::kThreads>(p, item * kLine, shared);
    return;
  }
  const int across = (p.finish.n + Size::kN - 1) / Size::kN;
  const int row0 = item / across * Size::kM, col0 = item % across * Size::kN;
  if (p.vectors)
    make_tile<GradTile<Size, true>>(p, 0, row0, col0, block % grads.blocks, grads.blocks, shared);
  else
    make_tile<GradTile<Size, false>>(p, 0, row0, col0, block % grads.blocks, grads.blocks, shared);
}

std::optional<TileProduct> grad_of(const GroupedKernel& kernel) {
  const CudaKernelCall& call = kernel.call;
  if (kernel.op != "matmul_weight_grad" || call.tf32 || call.attrs.flag("tf32") || call.attrs.has("first_row"))
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

template <class Size>
CudaKernel prepare(const std::vector<TileProduct>& matrices, const std::vector<TileProduct>& vectors, int blocks) {
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
  const int64_t grid = grads.tile_blocks + ceil_div(lines, blocks) * blocks;
  const auto bytes = static_cast<size_t>(shared_bytes(weight_grads<Size>, kShared<Size>, grid));
  return [=](CudaStream stream) {
    const ClusterLaunch launch(dim3(static_cast<unsigned>(grid)), Size::kThreads, bytes, blocks, stream);
    cuda_check(cudaLaunchKernelEx(&launch.config, weight_grads<Size>, grads), "weight_grads");
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
    for (const TileProduct& other : all)  // all are made at the same time
      if (other.finish.c == grad->a.data || other.finish.c == grad->b.data) return std::nullopt;
    all.push_back(*grad);
    (is_vector(*grad) ? vectors : matrices).push_back(*grad);
    if (is_vector(*grad)) lines += lines_of(*grad);
    k = std::max<int64_t>(k, grad->a.k);
  }
  const TileChoice short_tiles = choose<ShortTile>(matrices, lines);
  if (k <= kShortK) return prepare<ShortTile>(matrices, vectors, short_tiles.blocks);
  const TileChoice long_tiles = choose<LongTile>(matrices, lines);
  if (long_tiles.cycles < short_tiles.cycles) return prepare<LongTile>(matrices, vectors, long_tiles.blocks);
  return prepare<ShortTile>(matrices, vectors, short_tiles.blocks);
}

}  // namespace trainctl::cuda
