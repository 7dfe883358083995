// Products from tiles on tensor cores (tensor_tile_cuda.cuh): which tiles make a product, and how many blocks share k.
//
// What small products cost, seen on an H200: 1.5 us for a launch in a chain; code that runs once is fetched at about
// 10 KiB a microsecond (so nothing is unrolled twice).
#include "engine/ops/matmul/tile_choice_cuda.cuh"

namespace trainctl::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(T::kThreads) tile_product(const __grid_constant__ TileProduct product, int blocks) {
  extern __shared__ float4 shared4[];
  let_next_kernel_start();
  const int x = static_cast<int>(blockIdx.x);
  make_tile<T>(product, blockIdx.z, blockIdx.y * T::kM, x / blocks * T::kN, x % blocks, blocks,
               reinterpret_cast<float*>(shared4));
}

template <class T>
dim3 grid_of(const TileProduct& p, int64_t batch, int blocks) {
  return {static_cast<unsigned>(ceil_div(p.finish.n, T::kN) * blocks),
          static_cast<unsigned>(ceil_div(p.finish.m, T::kM)), static_cast<unsigned>(batch)};
}

template <class T>
TileChoice choose(const TileProduct& p, int64_t batch) {
  const dim3 grid = grid_of<T>(p, batch, 1);
  return choose_blocks<T>(tile_product<T>, T::kShared, int64_t{grid.x} * grid.y * grid.z, 0, p.a.k);
}

template <class T>
CudaKernel prepare(TileProduct p, int64_t batch, int blocks) {
  p.share = share_of(p.a.k, blocks);
  const dim3 grid = grid_of<T>(p, batch, blocks);
  const auto bytes = static_cast<size_t>(shared_bytes(tile_product<T>, T::kShared, int64_t{grid.x} * grid.y * grid.z));
  return [=](CudaStream stream) {
    const ClusterLaunch launch(grid, T::kThreads, bytes, blocks, stream);
    cuda_check(cudaLaunchKernelEx(&launch.config, tile_product<T>, p, blocks), "tile_product");
  };
}

template <bool kAAlongK, bool kBAlongK, bool kVectors>
CudaKernel prepare_shape(const TileProduct& p, int64_t batch) {
  using Short = Tile<ShortTile, kAAlongK, kBAlongK, kVectors>;
  using Small = Tile<TileSize<1, 1, 8, 32, 32, 64, 4>, kAAlongK, kBAlongK, kVectors>;
  using Square = Tile<TileSize<2, 2, 2, 32, 32, 32, 8>, kAAlongK, kBAlongK, kVectors>;
  using Wide = Tile<TileSize<2, 2, 2, 32, 40, 32, 8>, kAAlongK, kBAlongK, kVectors>;
  if (p.a.k <= kShortK) return prepare<Short>(p, batch, 1);
  const TileChoice small = choose<Small>(p, batch), square = choose<Square>(p, batch), wide = choose<Wide>(p, batch);
  if (wide.cycles < std::min(square.cycles, small.cycles)) return prepare<Wide>(p, batch, wide.blocks);
  if (square.cycles < small.cycles) return prepare<Square>(p, batch, square.blocks);
  return prepare<Small>(p, batch, small.blocks);
}

template <bool kVectors>
CudaKernel prepare_layout(const Product& p, const TileProduct& tiles) {
  if (!p.transpose_a && p.transpose_b) return prepare_shape<true, true, kVectors>(tiles, p.batch);
  if (!p.transpose_a) return prepare_shape<true, false, kVectors>(tiles, p.batch);
  if (!p.transpose_b) return prepare_shape<false, false, kVectors>(tiles, p.batch);
  return prepare_shape<false, true, kVectors>(tiles, p.batch);
}

}  // namespace

std::optional<CudaKernel> prepare_tile(const Product& p) {
  constexpr int64_t kMost = int64_t{1} << 30;  // of what is counted in int
  const bool sums = p.a_sums != nullptr || p.b_sums != nullptr;
  const bool fits = can_finish(p) && p.m < 32 * 65535 && p.n < kMost && p.k < kMost && p.batch < 65536;
  if (!fits || (sums && (p.batch != 1 || !p.transpose_a || p.transpose_b))) return std::nullopt;
  const TileProduct tiles = tile_product_of(p);
  return tiles.vectors ? prepare_layout<true>(p, tiles) : prepare_layout<false>(p, tiles);
}

}  // namespace trainctl::cuda
