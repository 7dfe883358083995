// Products of tiles on tensor cores: streamed_tile_cuda.cuh if the copy engine can load the operands' layout, else
// tensor_tile_cuda.cuh. Chooses the tile size, and how many blocks split k.
//
// Costs of small products, measured on an H200: 1.5 us for a launch in a chain; instructions that run once are fetched
// at about 10 KiB a microsecond (so nothing is unrolled twice).
#include <bit>

#include "engine/ops/small_step/streamed_tile_cuda.cuh"
#include "engine/ops/small_step/tile_choice_cuda.cuh"

namespace trainctl::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(T::kThreads) tile_product(const __grid_constant__ TileProduct product, int blocks) {
  extern __shared__ __align__(1024) float4 shared4[];
  let_next_kernel_start();
  const int x = static_cast<int>(blockIdx.x);
  make_tile<T>(product, blockIdx.z, blockIdx.y * T::kM, x / blocks * T::kN, x % blocks, blocks,
               reinterpret_cast<float*>(shared4));
}

template <class T>
__global__ void __launch_bounds__(T::kThreads)
    streamed_product(const __grid_constant__ StreamedProduct product, int blocks_log2) {
  extern __shared__ __align__(1024) float4 shared4[];
  let_next_kernel_start();
  const int x = static_cast<int>(blockIdx.x), tile = x >> blocks_log2;
  if constexpr (kCodeForHopper) {
    make_streamed_tile<T>(product, static_cast<int>(blockIdx.y) * T::kM, tile * T::kN, x - (tile << blocks_log2),
                          blocks_log2, reinterpret_cast<float*>(shared4));
  }
}

template <class T>
dim3 grid_of(const TileProduct& p, int64_t batch, int blocks) {
  return {static_cast<unsigned>(ceil_div(p.finish.n, T::kN) * blocks),
          static_cast<unsigned>(ceil_div(p.finish.m, T::kM)), static_cast<unsigned>(batch)};
}

template <class T, class Kernel>
TileChoice choose(Kernel* kernel, const TileProduct& p, int64_t batch) {
  const dim3 grid = grid_of<T>(p, batch, 1);
  return choose_blocks<T>(kernel, T::kShared, int64_t{grid.x} * grid.y * grid.z, 0, p.a.k);
}

/// A launch of `kernel` with its product `what`, and `how` many blocks (or their log2) split k.
template <class T, class What>
CudaKernel prepare(void (*kernel)(What, int), const What& what, int how, dim3 grid, int blocks) {
  const auto bytes = static_cast<size_t>(shared_bytes(kernel, T::kShared, int64_t{grid.x} * grid.y * grid.z));
  require_clusters(kernel, ClusterLaunch(grid, T::kThreads, bytes, blocks, nullptr), blocks);
  return [=](CudaStream stream) {
    const ClusterLaunch launch(grid, T::kThreads, bytes, blocks, stream);
    cuda_check(cudaLaunchKernelEx(&launch.config, kernel, what, how), "tile_product");
  };
}

/// Threads copy the operands of a tile.
template <bool kAAlongK, bool kBAlongK, bool kVectors>
struct Copied {
  template <class Size>
  using Made = Tile<Size, kAAlongK, kBAlongK, kVectors>;

  template <class Size>
  static TileChoice choice(const TileProduct& p, int64_t batch) {
    return choose<Made<Size>>(tile_product<Made<Size>>, p, batch);
  }
  template <class Size>
  static std::optional<CudaKernel> make(TileProduct p, int64_t batch, int blocks) {
    p.share = share_of(p.a.k, blocks);
    return prepare<Made<Size>>(tile_product<Made<Size>>, p, blocks, grid_of<Size>(p, batch, blocks), blocks);
  }
};

/// The copy engine loads them; make() returns null if the driver does not support it.
template <bool kBAlongK>
struct Streamed {
  template <class Size>
  using Made = StreamedTile<Size, kBAlongK>;

  template <class Size>
  static TileChoice choice(const TileProduct& p, int64_t batch) {
    return choose<Made<Size>>(streamed_product<Made<Size>>, p, batch);
  }
  template <class Size>
  static std::optional<CudaKernel> make(const TileProduct& p, int64_t batch, int blocks) {
    StreamedProduct streamed;
    streamed.product = p;
    if (!Made<Size>::A::set_map(streamed.a, p.a) || !Made<Size>::B::set_map(streamed.b, p.b)) return std::nullopt;
    const int log2 = std::countr_zero(static_cast<unsigned>(blocks));
    return prepare<Made<Size>>(streamed_product<Made<Size>>, streamed, log2, grid_of<Size>(p, batch, blocks), blocks);
  }
};

/// The kernel of the tile size that is expected to be the fastest.
template <class Way, class... Sizes>
std::optional<CudaKernel> make_fastest(const TileProduct& p, int64_t batch) {
  const TileChoice choices[] = {Way::template choice<Sizes>(p, batch)...};
  const auto* const best =
      std::ranges::min_element(choices, {}, [](const TileChoice& choice) { return choice.cycles; });
  std::optional<CudaKernel> made;
  const TileChoice* at = choices;
  ((at++ == best ? void(made = Way::template make<Sizes>(p, batch, best->blocks)) : void()), ...);
  return made;
}

using Small = TileSize<1, 1, 8, 32, 32, 64, 4>;
using Square = TileSize<2, 2, 2, 32, 32, 32, 8>;
using Wide = TileSize<2, 2, 2, 32, 40, 32, 8>;
using Flat = TileSize<1, 2, 4, 32, 32, 32, 8>;

template <bool kAAlongK, bool kBAlongK, bool kVectors>
std::optional<CudaKernel> prepare_shape(const TileProduct& p, int64_t batch) {
  using Copies = Copied<kAAlongK, kBAlongK, kVectors>;
  if (p.a.k <= kShortK) return Copies::template make<ShortTile>(p, batch, 1);
  if constexpr (kAAlongK && kVectors) {
    if (batch == 1 && built_for_hopper()) {
      if (std::optional<CudaKernel> made = make_fastest<Streamed<kBAlongK>, Small, Flat, Square, Wide>(p, batch))
        return made;
    }
  }
  return make_fastest<Copies, Small, Square, Wide>(p, batch);
}

template <bool kVectors>
std::optional<CudaKernel> prepare_layout(const Product& p, const TileProduct& tiles) {
  if (!p.transpose_a && p.transpose_b) return prepare_shape<true, true, kVectors>(tiles, p.batch);
  if (!p.transpose_a) return prepare_shape<true, false, kVectors>(tiles, p.batch);
  if (!p.transpose_b) return prepare_shape<false, false, kVectors>(tiles, p.batch);
  return prepare_shape<false, true, kVectors>(tiles, p.batch);
}

}  // namespace

std::optional<CudaKernel> prepare_tile(const Product& p) {
  constexpr int64_t kMost = int64_t{1} << 30;  // counted in int
  const bool sums = p.a_sums != nullptr || p.b_sums != nullptr;
  const bool fits = can_finish(p) && p.m < 32 * 65535 && p.n < kMost && p.k < kMost && p.batch < 65536;
  if (!fits || (sums && (p.batch != 1 || !p.transpose_a || p.transpose_b))) return std::nullopt;
  const TileProduct tiles = tile_product_of(p);
  return tiles.vectors ? prepare_layout<true>(p, tiles) : prepare_layout<false>(p, tiles);
}

}  // namespace trainctl::cuda
