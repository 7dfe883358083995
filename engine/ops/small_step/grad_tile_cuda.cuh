// A tile of a weight's gradient by one block: dW = A^T B in true f32 on tensor cores (three_tf32_cuda.cuh). Both
// operands are read as stored, [k,m] and [k,n]. The copy engine loads slabs of 32 columns, one stage of 32 k at a time.
// All stages that fit into shared memory are requested at once, so threads only multiply, and synchronize only if k
// is longer than that. Two groups of warps split k; their sums are added in a fixed order.
//
// Tiles are 64 x 88: gradients of 512 x 784 and 512 x 512 take 120 blocks. For each 8 of k the products take 218 cycles
// and read 4.9 KiB from L2, about 20 bytes per cycle.
#pragma once

#include "engine/ops/small_step/tensor_tile_cuda.cuh"
#include "engine/ops/small_step/tile_copies_cuda.cuh"

namespace trainctl::cuda {
namespace {

/// Unrolled steps of 8 k: with 2, the fragments of a step are loaded during the products of the previous step; more
/// would only enlarge the code.
constexpr int kStepsAtOnce = 2;

using GradSize = TileSize<4, 1, 2, 16, 88, 32, 8>;

struct GradTile : Tile<GradSize, false, false, true> {
  static constexpr int kSlab = kStage * kTileFloats;
  static constexpr int kASlabs = kM / kTileFloats, kBSlabs = (kN + kTileFloats - 1) / kTileFloats;
  static constexpr int kSlabs = kASlabs + kBSlabs, kStageFloats = kSlabs * kSlab;
  static constexpr int kOld = kStages * kStageFloats;  ///< C's previous values; the groups' sums overwrite the stages
  static constexpr int kParts = kOld + kM * kN;        ///< partial sums of A's columns
  static constexpr int kRate = kParts + kGroups * kM;  ///< the learning rate
  static constexpr int kBarriers = kRate + 2;
  static constexpr int kShared = 4 * (kBarriers + 2 * kStages);
  static_assert(kM % kTileFloats == 0 && kRows == 2 && kCols == 11 && kWide == 1);
  static constexpr int kWarps = kThreads / 32, kRowsOfWarp = kM / kWarps;  ///< rows of C to finish: every kWarps-th
  static_assert(kWarps == 8 && kStages == kWarps && kN <= 128 && kGroups * kM * kPitch <= kOld && kBarriers % 2 == 0);
};

/// Locates a lane's fragments in a slab, for the 8 k of a step: 1, 2 or 4 adjacent columns from `col`, in
/// rows k = 2 * (lane % 4) and k + 1. The swizzle of tile_copies_cuda.cuh makes the reads free of bank conflicts.
class InSlab {
 public:
  __device__ explicit InSlab(int col) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int k = static_cast<int>(threadIdx.x) % 4 * 2 + e;
      bytes_[e] = 4 * (k * kTileFloats + ((col / 4) ^ k) * 4 + col % 4);
      asm("" : "+r"(bytes_[e]));  // stays in a register: the compiler would recompute it in each step
    }
  }
  template <class V>
  __device__ V read(const float* slab, int e) const {
    return *reinterpret_cast<const V*>(reinterpret_cast<const char*>(slab) + bytes_[e]);
  }

 private:
  int bytes_[2];
};

/// A warp's fragments, with rows and columns in the order of Part::fragment.
struct GradFragments {
  InSlab a, b_fours, b_pair, b_last;
  int a_slab;
  __device__ GradFragments(int group, int own_row)
      : a(own_row % kTileFloats + 2 * group),
        b_fours(4 * group),
        b_pair(2 * group),
        b_last(16 + group),
        a_slab(own_row / kTileFloats * GradTile::kSlab) {}

  __device__ void read(const float* step, float (&a_of)[2][2], float (&b_of)[11][2]) const {
    const float* const b_step = step + GradTile::kASlabs * GradTile::kSlab;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float2 rows = a.read<float2>(step + a_slab, e);
      a_of[0][e] = rows.x, a_of[1][e] = rows.y;
#pragma unroll
      for (int slab = 0; slab < 2; ++slab) {
        const float4 v = b_fours.read<float4>(b_step + slab * GradTile::kSlab, e);
        b_of[4 * slab][e] = v.x, b_of[4 * slab + 1][e] = v.y, b_of[4 * slab + 2][e] = v.z, b_of[4 * slab + 3][e] = v.w;
      }
      const float2 pair = b_pair.read<float2>(b_step + 2 * GradTile::kSlab, e);
      b_of[8][e] = pair.x, b_of[9][e] = pair.y;
      b_of[10][e] = b_last.read<float>(b_step + 2 * GradTile::kSlab, e);
    }
  }
};

/// The sum over k of a stage's column. Called only for weights stored as [in,out], by the first row of tiles.
__device__ inline float sum_of_column(const float* slabs, int col) {
  const float* const slab = slabs + col / kTileFloats * GradTile::kSlab;
  const int pack = col % kTileFloats / 4;
  float sum = 0;
#pragma unroll 8
  for (int k = 0; k < GradTile::kStage; ++k) sum += slab[k * kTileFloats + (pack ^ k % 8) * 4 + col % 4];
  return sum;
}

/// Sums v over the four lanes that share a fragment's rows and columns; all four get the result.
__device__ inline float sum_of_four(float v) {
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}

/// Writes rows `row`, `row` + kWarps, … of the tile to C at `c`, from the sums of both groups of warps in shared
/// memory; `old`: C's previous values.
__device__ __forceinline__ void finish_grad_rows(const Finish& f, float* c, int row, const float* shared,
                                                 const float* old, float scale) {
  using T = GradTile;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  // Sums are stored in the order of mma's rows: row 2 i + r of a warp's 16 is at i + 8 r.
  const float* const of_row = shared + (warp / 2 + warp % 2 * 8) * T::kPitch + 4 * lane;
#pragma unroll 2
  for (int i = 0; i < T::kRowsOfWarp; ++i, c += T::kWarps * static_cast<int64_t>(f.n)) {
    if (row + i * T::kWarps >= f.m) break;
    const float* const sums_of_row = of_row + (i / 2 * 16 + i % 2 * 4) * T::kPitch;
    float4 sum = *reinterpret_cast<const float4*>(sums_of_row);
    add(sum, *reinterpret_cast<const float4*>(sums_of_row + T::kM * T::kPitch));
    sum = {sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale};
    if (f.accumulate) add(sum, *reinterpret_cast<const float4*>(old + i * T::kWarps * T::kN));
    *reinterpret_cast<float4*>(c) = sum;
  }
}

/// One thread's view of its block's tile: what the block computes, and the thread's place in it.
struct GradBlock {
  using T = GradTile;

  const TileProduct& p;
  const TileMap &a_map, &b_map;
  int row0, col0;  ///< the tile's first row and column in C
  float* shared;
  const Finish& f = p.finish;
  int thread = static_cast<int>(threadIdx.x), lane = static_cast<int>(threadIdx.x % 32);
  int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);  ///< the compiler sees it is uniform
  int group = warp / T::kTall, own_row = warp % T::kTall * T::kWarpM;
  int stages = (p.a.k + T::kStage - 1) / T::kStage;

  __device__ float* barrier(int place) const { return shared + T::kBarriers + 2 * place; }

  /// Requests a slab of a stage from the copy engine.
  __device__ __forceinline__ void fetch(int stage, int slab) const {
    const int place = stage % T::kStages;
    const bool of_a = slab < T::kASlabs;
    copy_tile(shared + place * T::kStageFloats + slab * T::kSlab, of_a ? a_map : b_map,
              of_a ? row0 + slab * kTileFloats : col0 + (slab - T::kASlabs) * kTileFloats, stage * T::kStage,
              barrier(place));
  }

  /// Prepares the barriers of the stages, one per warp, and waits for the preceding kernel.
  __device__ __forceinline__ void start() const {
    if (lane == 0) {
      if (warp < 2) prefetch_map(warp == 0 ? a_map : b_map);
      prepare_announcements(barrier(warp));
      if (warp < stages) announce_bytes(barrier(warp), 4 * T::kStageFloats);
      publish_to_copies();
    }
    __syncthreads();
    wait_for_kernel_before();
  }

  /// Requests all stages that fit into shared memory. Warps take turns at requesting slabs, so that slabs arrive in the
  /// order of their use.
  __device__ __forceinline__ void fetch_first_stages() const {
    if (lane == 0) {
#pragma unroll 1
      for (int i = warp; i < min(stages, T::kStages) * T::kSlabs; i += T::kWarps) fetch(i / T::kSlabs, i % T::kSlabs);
    }
  }

  /// Requests the stage that takes the place of stage `s`, if there is one.
  __device__ __forceinline__ void replace_stage(int s) const {
    const int place = s % T::kStages;
    if (s + T::kStages < stages) {
      __syncthreads();  // all have read the stage that is overwritten
      if (lane == 0 && warp == place) {
        announce_bytes(barrier(place), 4 * T::kStageFloats);
#pragma unroll 1
        for (int slab = 0; slab < T::kSlabs; ++slab) fetch(s + T::kStages, slab);
      }
    }
  }

  /// Stores this warp's sums of A's columns, which are C's rows.
  __device__ __forceinline__ void store_row_sums(const float (&row_sums)[2], float* parts) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = sum_of_four(row_sums[r]);
      if (lane % 4 == 0) parts[group * T::kM + own_row + T::A::row_of<2>(lane / 4, r)] = sum;
    }
  }
};

/// C as one thread finishes it: four columns of rows `row`, `row` + kWarps, ….
struct GradRows {
  using T = GradTile;

  const GradBlock& block;
  int col = block.col0 + 4 * block.lane, row = block.row0 + block.warp;
  bool finishes = block.lane < T::kN / 4 && col < block.f.n;
  float* c = block.f.c + static_cast<int64_t>(row) * block.f.n + col;
  float* old = block.shared + T::kOld + block.warp * T::kN + 4 * block.lane;

  /// Requests C's previous values and the learning rate: a thread reads the values that it copied itself, and the rate
  /// after a barrier.
  __device__ __forceinline__ void fetch_old() const {
    const Finish& f = block.f;
    if (f.accumulate && finishes) {
      const float* from = c;
#pragma unroll 2
      for (int i = 0; i < T::kRowsOfWarp; ++i, from += T::kWarps * static_cast<int64_t>(f.n))
        if (row + i * T::kWarps < f.m) copy_async<16>(old + i * T::kWarps * T::kN, from, true);
    }
    if (block.thread == 0 && f.descend != nullptr) copy_async<4>(block.shared + T::kRate, f.descend, true);
    commit_copies();
  }
};

/// Called by all threads of a block. Waits for the preceding kernel.
__device__ inline void make_grad_tile(const TileProduct& p, const TileMap& a_map, const TileMap& b_map, int row0,
                                      int col0, float* shared) {
  using T = GradTile;
  const GradBlock block{p, a_map, b_map, row0, col0, shared};
  const Finish& f = p.finish;
  const int thread = block.thread, lane = block.lane, group = block.group, stages = block.stages;
  const bool sums_a = p.a_sums != nullptr && col0 == 0, sums_b = p.b_sums != nullptr && row0 == 0;
  block.start();
  block.fetch_first_stages();

  const GradRows rows{block};
  // The stage before which C's previous values are requested, so that they do not delay the slabs of the first stage.
  const int old_from = stages > 2 ? 1 : 0;
  const GradFragments fragments(lane / 4, block.own_row);
  TileSums sums[1][T::kCols];
  float row_sums[2] = {}, col_sum = 0;
#pragma unroll 1
  for (int s = 0; s < stages; ++s) {
    const int place = s % T::kStages;
    if (s == old_from) rows.fetch_old();
    wait_for_bytes(block.barrier(place), s / T::kStages % 2);
    const float* const stage = shared + place * T::kStageFloats;
#pragma unroll kStepsAtOnce
    for (int step = 0; step < T::kStage / 8; step += T::kGroups) {
      float a[2][2], b[T::kCols][2];
      fragments.read(stage + (group + step) * 8 * kTileFloats, a, b);
      Fragment<4> left[1];
#pragma unroll
      for (int e = 0; e < 4; ++e) left[0].set(e, a[e % 2][e / 2]);
      add_products(left, b, sums);
#pragma unroll
      for (int r = 0; r < 2; ++r) row_sums[r] += a[r][0] + a[r][1];
    }
    if (sums_b && thread < T::kN) col_sum += sum_of_column(stage + T::kASlabs * T::kSlab, thread);
    block.replace_stage(s);
    if (s % kKeep == kKeep - 1) keep(sums);
  }
  __syncthreads();

  float* const of_warp = shared + (group * T::kM + block.own_row + lane / 4) * T::kPitch;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float row[T::kCols][2];
#pragma unroll
    for (int j = 0; j < T::kCols; ++j) {
      row[j][0] = sums[0][j].sum(2 * r);
      row[j][1] = sums[0][j].sum(2 * r + 1);
    }
    T::B::store_columns(of_warp + 8 * r * T::kPitch, row);
  }
  float* const parts = shared + T::kParts;
  if (sums_a) block.store_row_sums(row_sums, parts);
  wait_for_copies<0>();
  __syncthreads();
  const float scale = f.descend != nullptr ? -shared[T::kRate] : 1.0f;
  if (sums_a && thread < T::kM)
    store_row_sum(p.a_sums, parts + thread, T::kM, T::kGroups, row0 + thread, f.m, p.sums_accumulate, scale);
  if (sums_b && thread < T::kN) store_row_sum(p.b_sums, &col_sum, 0, 1, col0 + thread, f.n, p.sums_accumulate, scale);
  if (rows.finishes) finish_grad_rows(f, rows.c, rows.row, shared, rows.old, scale);
}

}  // namespace
}  // namespace trainctl::cuda
