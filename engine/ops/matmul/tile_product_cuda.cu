// Products from register tiles. A warp makes a tile of C, 32 x 32 or 64 x 32, a thread 8 x 4 or 8 x 8 of it. A block
// has kWide such tiles side by side and kGroups warps for each, which share k; and the blocks of a cluster, which
// make the same tile, share k once more. Sums of groups and of blocks are added up in a fixed order.
//
// What comes from global memory lies in shared memory as it lay, by cp.async a few stages ahead:
//   an operand that is contiguous along k as [rows][kStage + 4], read by four k at a time,
//   one that is contiguous along its rows as [kStage][rows], read by four rows at a time;
// either way a quarter of a warp reads from different banks, or the same words.
//
// What small products cost, seen on an H200: 1.5 us for a launch in a chain; L2 gives all multiprocessors together
// about 3 TB/s when they read the same matrices (so k is cut, which reads an operand fewer times, before tiles are
// made smaller); code that runs once is fetched at about 10 KiB a microsecond (so nothing is unrolled twice).
#include <algorithm>

#include "engine/ops/matmul/finish_cuda.h"
#include "engine/ops/matmul/tile_operands_cuda.cuh"

namespace trainctl::cuda {
namespace {

struct Arguments {
  Operand a, b;  ///< b's rows are the columns of C
  Finish finish;
  float *a_sums, *b_sums;
  bool sums_accumulate;
  int blocks = 1, share = 0;  ///< of a cluster, and how much of k each takes
};

constexpr int kMostBlocks = 8;  ///< of a cluster: more are not portable

/// Threads of a warp stand in kTall rows and 32 / kTall columns, each with 8 x kCols of the warp's tile.
template <bool kAAlongK, bool kBAlongK, int kTall_, int kCols_, int kWide_, int kGroups_, int kStage_, int kStages_,
          bool kVectors>
struct Tile {
  static constexpr int kTall = kTall_, kFlat = 32 / kTall_, kCols = kCols_, kWide = kWide_, kGroups = kGroups_;
  static constexpr int kWarpCols = kFlat * kCols;
  static constexpr int kM = 8 * kTall, kN = kWarpCols * kWide, kStage = kStage_, kStages = kStages_;
  static constexpr int kThreads = 32 * kWide * kGroups;
  using A = Part<kAAlongK, kM, kStage, kThreads, kVectors>;
  using B = Part<kBAlongK, kN, kStage, kThreads, kVectors>;
  static constexpr int kStageFloats = A::kFloats + B::kFloats;
  static constexpr bool kSumsRows = !kAAlongK && !kBAlongK;  ///< as a weight's gradient lies; code for no other
  static constexpr int kPitch = kN + 8;
  static constexpr int kSums = kGroups * kM * kPitch;
  /// What the blocks of a cluster hand each other lies behind everything else: another block may be ahead.
  static constexpr int kInbox = kSums > kStages* kStageFloats ? kSums : kStages* kStageFloats;
  static constexpr int kRowInbox = kInbox + kM * kN;
  static constexpr int kFloats = kRowInbox + (kSumsRows ? kMostBlocks * (kM + kN) : 0);
  static constexpr int kShared = 4 * kFloats;
  static constexpr int kFours = kM * kN / 4;                         ///< of four neighbours in the block's tile
  static constexpr int kItems = (kFours + kThreads - 1) / kThreads;  ///< of them that a thread stores
  static constexpr bool kInFours = kVectors;
};

/// Which four elements of C are item `four` of the block's tile.
template <class T>
struct Place {
  int row, col, local;
  __device__ Place(int four, int row0, int col0)
      : row(row0 + four / (T::kN / 4)),
        col(col0 + four % (T::kN / 4) * 4),
        local(four / (T::kN / 4) * T::kPitch + four % (T::kN / 4) * 4) {}
};

/// The sum over k of each row of the stage, for the block that is the first of its row of blocks.
template <class P, int kRows, int kStage>
__device__ void add_row_sums(const float* stage, float& sum) {
  if (threadIdx.x >= kRows) return;
#pragma unroll 4
  for (int k = 0; k < kStage; ++k) {
    sum += P::kPitch == kRows ? stage[k * P::kPitch + threadIdx.x] : stage[threadIdx.x * P::kPitch + k];
  }
}

/// Of the blocks of a cluster, in their order.
__device__ inline void store_row_sum(float* sums, const float* parts, int apart, int blocks, int row, int rows,
                                     bool accumulate, float scale) {
  if (row >= rows) return;
  float sum = 0;
#pragma unroll 1
  for (int block = 0; block < blocks; ++block) sum += parts[block * apart];
  sums[row] = sum * scale + (accumulate ? sums[row] : 0.0f);
}

template <class T>
__device__ void multiply(const float* stage, int wide, int group, float (&sums)[8][T::kCols]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, ty = lane / T::kFlat, tx = lane % T::kFlat;
#pragma unroll(T::kCols == 4 ? 2 : 1)  // one is read while the other is multiplied, where registers allow
  for (int k = 0; k < T::kStage / T::kGroups; k += 4) {
    float a[4][8], b[4][T::kCols];
    const int at = group * (T::kStage / T::kGroups) + k;
    T::A::template fragment<8, T::kTall>(stage, 0, ty, at, a);
    T::B::template fragment<T::kCols, T::kFlat>(stage + T::A::kFloats, wide * T::kWarpCols, tx, at, b);
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < T::kCols; ++j) sums[i][j] += a[kk][i] * b[kk][j];
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads) tile_product(const Arguments args) {
  extern __shared__ float4 shared4[];
  float* const shared = reinterpret_cast<float*>(shared4);
  const int blocks = args.blocks, block = static_cast<int>(blockIdx.x) % blocks;  // of the cluster
  const int row0 = blockIdx.y * T::kM, col0 = static_cast<int>(blockIdx.x) / blocks * T::kN;
  const int warp = static_cast<int>(threadIdx.x) / 32, group = warp / T::kWide, wide = warp % T::kWide;
  const float* const a = args.a.data + blockIdx.z * args.a.step;
  const float* const b = args.b.data + blockIdx.z * args.b.step;
  const Finish& f = args.finish;
  const int64_t c_step = static_cast<int64_t>(blockIdx.z) * f.m * f.n;
  const int k0 = block * args.share, end = min(k0 + args.share, args.a.k);
  const int stages = max((end - k0 + T::kStage - 1) / T::kStage, 0);
  const bool sums_a = T::kSumsRows && args.a_sums != nullptr && col0 == 0;
  const bool sums_b = T::kSumsRows && args.b_sums != nullptr && row0 == 0;
  const int share = T::kFours / blocks;  // items that this block stores
  let_next_kernel_start();
  if (blocks > 1) wait_for_cluster();  // none writes to a block that has not started
  wait_for_kernel_before();

  float4 old[T::kItems];
#pragma unroll
  for (int i = 0; i < T::kItems; ++i) {
    const int four = static_cast<int>(threadIdx.x) + i * T::kThreads;
    const Place<T> at(block * share + four, row0, col0);
    const bool there = f.accumulate && four < share && at.row < f.m;
    old[i] = there ? load4<T::kInFours>(f.c + c_step + static_cast<int64_t>(at.row) * f.n, at.col, f.n) : float4{};
  }

  float sums[8][T::kCols] = {};
  float row_sum = 0, col_sum = 0;
  int now = 0, next = 0;  // where in shared memory the stage that is worked on lies, and the one that is fetched
#pragma unroll 1
  for (int s = 1 - T::kStages; s < stages; ++s) {
    if (s >= 0) {
      wait_for_copies<T::kStages - 2>();
      __syncthreads();
    }
    if (const int fetched = s + T::kStages - 1; fetched < stages) {  // to where all warps are done
      T::A::load(shared + next, a, args.a, row0, k0 + fetched * T::kStage, end);
      T::B::load(shared + next + T::A::kFloats, b, args.b, col0, k0 + fetched * T::kStage, end);
      next = next + T::kStageFloats < T::kStages * T::kStageFloats ? next + T::kStageFloats : 0;
    }
    commit_copies();
    if (s < 0) continue;
    multiply<T>(shared + now, wide, group, sums);
    if (sums_a) add_row_sums<typename T::A, T::kM, T::kStage>(shared + now, row_sum);
    if (sums_b) add_row_sums<typename T::B, T::kN, T::kStage>(shared + now + T::A::kFloats, col_sum);
    now = now + T::kStageFloats < T::kStages * T::kStageFloats ? now + T::kStageFloats : 0;
  }
  wait_for_copies<0>();
  __syncthreads();

  const int lane = static_cast<int>(threadIdx.x) % 32, ty = lane / T::kFlat, tx = lane % T::kFlat;
  float* const of_group = shared + group * T::kM * T::kPitch + wide * T::kWarpCols;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float* const row = of_group + T::A::template row_of<T::kTall>(ty, i) * T::kPitch;
#pragma unroll
    for (int j = 0; j < T::kCols; ++j) row[T::B::template row_of<T::kFlat>(tx, j)] = sums[i][j];
  }
  float* const rows_inbox = shared + T::kRowInbox + static_cast<int>(threadIdx.x);
  if (sums_a && threadIdx.x < T::kM) give_block(rows_inbox + block * (T::kM + T::kN), 0, row_sum);
  if (sums_b && threadIdx.x < T::kN) give_block(rows_inbox + block * (T::kM + T::kN) + T::kM, 0, col_sum);
  __syncthreads();

  // Each block finishes its share of the tile: the groups' sums go to the block that does.
  const auto of_groups = [&](int local) {
    float4 sum{};
#pragma unroll
    for (int g = 0; g < T::kGroups; ++g)
      add(sum, *reinterpret_cast<const float4*>(shared + g * T::kM * T::kPitch + local));
    return sum;
  };
  if (blocks > 1) {
#pragma unroll 1
    for (int four = threadIdx.x; four < T::kFours; four += T::kThreads) {
      give_block(shared + T::kInbox + (block * share + four % share) * 4, four / share,
                 of_groups(Place<T>(four, 0, 0).local));
    }
    wait_for_cluster();
  }

  const float scale = scale_of(f);
  if (T::kSumsRows && block == 0) {
    if (sums_a && threadIdx.x < T::kM)
      store_row_sum(args.a_sums, rows_inbox, T::kM + T::kN, blocks, row0 + threadIdx.x, f.m, args.sums_accumulate,
                    scale);
    if (sums_b && threadIdx.x < T::kN)
      store_row_sum(args.b_sums, rows_inbox + T::kM, T::kM + T::kN, blocks, col0 + threadIdx.x, f.n,
                    args.sums_accumulate, scale);
  }
#pragma unroll
  for (int i = 0; i < T::kItems; ++i) {
    const int four = static_cast<int>(threadIdx.x) + i * T::kThreads;  // of this block's share
    const Place<T> at(block * share + four, row0, col0);
    if (four >= share || at.row >= f.m) continue;
    float4 sum{};
    if (blocks > 1) {
#pragma unroll 1
      for (int other = 0; other < blocks; ++other)
        add(sum, *reinterpret_cast<const float4*>(shared + T::kInbox + (other * share + four) * 4));
    } else {
      sum = of_groups(at.local);
    }
    const int64_t row = c_step + static_cast<int64_t>(at.row) * f.n;
    sum = {sum.x * scale + old[i].x, sum.y * scale + old[i].y, sum.z * scale + old[i].z, sum.w * scale + old[i].w};
    if (f.bias != nullptr) add(sum, load4<T::kInFours>(f.bias, at.col, f.n));
    if (f.relu) sum = {relu(sum.x), relu(sum.y), relu(sum.z), relu(sum.w)};
    if (f.relu_result != nullptr) {
      const float4 y = load4<T::kInFours>(f.relu_result + row, at.col, f.n);
      sum = {y.x > 0 ? sum.x : 0.0f, y.y > 0 ? sum.y : 0.0f, y.z > 0 ? sum.z : 0.0f, y.w > 0 ? sum.w : 0.0f};
    }
    store4<T::kInFours>(f.c + row, at.col, f.n, sum);
  }
}

template <class T>
dim3 grid_of(const Arguments& args, int64_t batch, int blocks) {
  return {static_cast<unsigned>(ceil_div(args.finish.n, T::kN) * blocks),
          static_cast<unsigned>(ceil_div(args.finish.m, T::kM)), static_cast<unsigned>(batch)};
}

/// Shared memory to ask for. A grid of at most one block a multiprocessor asks for more than half of one's: else
/// blocks that are set up while the kernel before still runs go two to a multiprocessor that it left free, and take
/// twice as long there as all others.
template <class T>
int shared_bytes(dim3 grid) {
  int device = 0, of_multiprocessor = 0, most = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaDeviceGetAttribute(&of_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device),
             "cudaDeviceGetAttribute");
  cuda_check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  const int more_than_half = std::max(T::kShared, std::min(of_multiprocessor / 2 + 1024, most));
  cuda_check(cudaFuncSetAttribute(tile_product<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, more_than_half),
             "the shared memory of tile_product");
  return int64_t{grid.x} * grid.y * grid.z <= multiprocessors() ? more_than_half : T::kShared;
}

/// How many blocks share k: as long as all clusters run at once, and each block has `least` of k.
template <class T>
int blocks_for(const Arguments& args, int64_t batch, int64_t least) {
  const dim3 one = grid_of<T>(args, batch, 1);
  const int64_t tiles = int64_t{one.x} * one.y * one.z;
  int chosen = 1;
  if (!knows_clusters(tile_product<T>)) return 1;
  for (int blocks = 2; blocks <= kMostBlocks; blocks *= 2) {
    if (tiles * blocks > multiprocessors() || args.a.k / blocks < least) break;
    const dim3 grid = grid_of<T>(args, batch, blocks);
    const ClusterLaunch launch(grid, T::kThreads, static_cast<size_t>(shared_bytes<T>(grid)), blocks, nullptr);
    int at_once = 0;
    cuda_check(cudaOccupancyMaxActiveClusters(&at_once, tile_product<T>, &launch.config), "clusters of tile_product");
    if (tiles <= at_once) chosen = blocks;
  }
  return chosen;
}

/// `blocks` share k, by multiples of 4.
template <class T>
CudaKernel prepare(Arguments args, int64_t batch, int blocks) {
  args.blocks = blocks;
  args.share = static_cast<int>(ceil_div(ceil_div(args.a.k, blocks), 4) * 4);
  const dim3 grid = grid_of<T>(args, batch, blocks);
  const auto bytes = static_cast<size_t>(shared_bytes<T>(grid));
  return [=](CudaStream stream) {
    const ClusterLaunch launch(grid, T::kThreads, bytes, blocks, stream);
    cuda_check(cudaLaunchKernelEx(&launch.config, tile_product<T>, args), "tile_product");
  };
}

template <bool kAAlongK, bool kBAlongK, bool kVectors>
CudaKernel prepare_shape(const Arguments& args, int64_t batch) {
  using Short = Tile<kAAlongK, kBAlongK, 4, 4, 2, 4, 32, 2, kVectors>;
  using Small = Tile<kAAlongK, kBAlongK, 4, 4, 1, 8, 64, 2, kVectors>;
  using Large = Tile<kAAlongK, kBAlongK, 8, 8, 2, 4, 32, 3, kVectors>;
  if (args.a.k <= 64) return prepare<Short>(args, batch, 1);
  const int64_t large_tiles = ceil_div(args.finish.m, Large::kM) * ceil_div(args.finish.n, Large::kN) * batch;
  if (args.finish.m > 32 && args.finish.n > 32) {  // large tiles read less, if they leave few multiprocessors idle
    const int blocks = blocks_for<Large>(args, batch, 64);
    if (large_tiles * blocks >= multiprocessors() * 3 / 4) return prepare<Large>(args, batch, blocks);
  }
  return prepare<Small>(args, batch, blocks_for<Small>(args, batch, 32));
}

template <bool kVectors>
CudaKernel prepare_layout(const Product& p, const Arguments& args) {
  if (!p.transpose_a && p.transpose_b) return prepare_shape<true, true, kVectors>(args, p.batch);
  if (!p.transpose_a) return prepare_shape<true, false, kVectors>(args, p.batch);
  if (!p.transpose_b) return prepare_shape<false, false, kVectors>(args, p.batch);
  return prepare_shape<false, true, kVectors>(args, p.batch);
}

}  // namespace

std::optional<CudaKernel> prepare_tile(const Product& p) {
  constexpr int64_t kMost = int64_t{1} << 30;  // of what is counted in int
  const bool sums = p.a_sums != nullptr || p.b_sums != nullptr;
  const bool fits = can_finish(p) && p.m < 32 * 65535 && p.n < kMost && p.k < kMost && p.batch < 65536;
  if (!fits || (sums && (p.batch != 1 || !p.transpose_a || p.transpose_b))) return std::nullopt;
  const auto number = [](int64_t v) { return static_cast<int>(v); };
  const Arguments args{{static_cast<const float*>(p.a), p.a_step, number(p.m), number(p.k)},
                       {static_cast<const float*>(p.b), p.b_step, number(p.n), number(p.k)},
                       finish_of(p),
                       p.a_sums,
                       p.b_sums,
                       p.sums_accumulate};
  const auto in_fours = [](int64_t contiguous, const void* data, int64_t step) {
    return contiguous % 4 == 0 && step % 4 == 0 && is_aligned(data);
  };
  const bool vectors = in_fours(p.transpose_a ? p.m : p.k, p.a, p.a_step) &&
                       in_fours(p.transpose_b ? p.k : p.n, p.b, p.b_step) && args.finish.vectors;
  return vectors ? prepare_layout<true>(p, args) : prepare_layout<false>(p, args);
}

}  // namespace trainctl::cuda
