// A tile of C in true f32 on tensor cores (three_tf32_cuda.cuh), computed by one block, or by the blocks of a cluster,
// which split k. A block has kGroups groups of kTall x kWide warps: a warp owns a part of the tile; groups split the
// block's k. Operands are loaded by cp.async, several stages ahead. Sums of groups, then of blocks, are added in a
// fixed order: each block finishes a share of the tile and receives the others' sums for it.
//
// Two rates bound a tile of M x N, in cycles for each k:                  64 x 80
//   3 M N products by mma.sync, some 620 a cycle                            25
//   4 (M + N) bytes from L2, some 14 a cycle if all multiprocessors read    41
// The rest is less in warps of 32 x 40: for each 8 of k, during 198 cycles of mma, a lane reads 18 words from shared
// memory, without bank conflicts, and splits them in 54 instructions.
#pragma once

#include "engine/base/round_up.h"
#include "engine/ops/small_step/cluster_messages_cuda.cuh"
#include "engine/ops/small_step/finish_cuda.h"
#include "engine/ops/small_step/three_tf32_cuda.cuh"
#include "engine/ops/small_step/tile_operands_cuda.cuh"

namespace trainctl::cuda {
namespace {

struct TileProduct {
  Operand a, b;  ///< b's rows are the columns of C
  Finish finish;
  float *a_sums = nullptr, *b_sums = nullptr;  ///< same as in Product
  bool sums_accumulate = false;
  bool vectors = false;  ///< all operands may be accessed as aligned float4
  int share = 0;         ///< k that each block of a cluster takes: share_of
};

inline TileProduct tile_product_of(const Product& p) {
  TileProduct t;
  t.a = {static_cast<const float*>(p.a), p.a_step, static_cast<int>(p.m), static_cast<int>(p.k)};
  t.b = {static_cast<const float*>(p.b), p.b_step, static_cast<int>(p.n), static_cast<int>(p.k)};
  t.finish = finish_of(p);
  t.a_sums = static_cast<float*>(p.a_sums);
  t.b_sums = static_cast<float*>(p.b_sums);
  t.sums_accumulate = p.sums_accumulate;
  const auto in_fours = [](int64_t contiguous, const void* data, int64_t step) {
    return contiguous % 4 == 0 && step % 4 == 0 && is_aligned(data);
  };
  t.vectors = in_fours(p.transpose_a ? p.m : p.k, p.a, p.a_step) &&
              in_fours(p.transpose_b ? p.k : p.n, p.b, p.b_step) && t.finish.vectors;
  return t;
}

inline int share_of(int64_t k, int blocks) { return static_cast<int>(round_up(ceil_div(k, blocks), 8)); }

constexpr int kMostBlocks = 8;  ///< a cluster: more are not portable

template <int kTall_, int kWide_, int kGroups_, int kWarpM_, int kWarpN_, int kStage_, int kStages_>
struct TileSize {
  static constexpr int kTall = kTall_, kWide = kWide_, kGroups = kGroups_, kWarpM = kWarpM_, kWarpN = kWarpN_;
  static constexpr int kStage = kStage_, kStages = kStages_;
  static constexpr int kM = kTall * kWarpM, kN = kWide * kWarpN, kThreads = 32 * kTall * kWide * kGroups;
  static constexpr int kFours = kM * kN / 4;  ///< float4 of the tile
  static_assert(kFours % kMostBlocks == 0 && kWarpM % 16 == 0 && kWarpN % 8 == 0);
};

/// If k is short, the latency of its few steps bounds a tile.
constexpr int kShortK = 64;
using ShortTile = TileSize<2, 2, 1, 32, 16, 32, 3>;

template <class Size, bool kAAlongK, bool kBAlongK, bool kVectors_>
struct Tile : Size {
  static constexpr bool kVectors = kVectors_;
  using A = Part<kAAlongK, Size::kM, Size::kStage, Size::kThreads, kVectors>;
  using B = Part<kBAlongK, Size::kN, Size::kStage, Size::kThreads, kVectors>;
  static constexpr int kRows = Size::kWarpM / 8, kCols = Size::kWarpN / 8;  ///< rows and columns of fragments
  static constexpr int kStageFloats = A::kFloats + B::kFloats;
  static constexpr bool kSumsRows = !kAAlongK && !kBAlongK;  ///< only in the layout of a weight's gradient
  static constexpr int kPitch = Size::kN + B::kColumnsPad;
  static constexpr int kSums = Size::kGroups * Size::kM * kPitch;
  /// Data from other blocks has separate memory, because they may be ahead.
  static constexpr int kInbox = kSums > Size::kStages* kStageFloats ? kSums : Size::kStages* kStageFloats;
  static constexpr int kExtras = kInbox + Size::kM * Size::kN;  ///< operands of a share's epilogue
  static constexpr int kRowInbox = kExtras + Size::kM * Size::kN;
  static constexpr int kCame = kRowInbox + (kSumsRows ? kMostBlocks * (Size::kM + Size::kN) : 0);
  static constexpr int kShared = 4 * (kCame + 2);

  /// Sums are in shared memory in the order of mma's rows.
  __device__ static int row_of(int local) {
    const int in_warp = local % Size::kWarpM;
    return local - in_warp + A::template row_of<kRows>(in_warp % 8, in_warp / 8);
  }
};

/// The position of float4 number `four` of the tile.
template <class T>
struct Place {
  int row, col, local;
  __device__ Place(int four, int row0, int col0)
      : row(row0 + T::row_of(four / (T::kN / 4))),
        col(col0 + four % (T::kN / 4) * 4),
        local(four / (T::kN / 4) * T::kPitch + four % (T::kN / 4) * 4) {}
};

/// The part of the tile that this thread's warp computes: its first row and column, and the group that sums it.
template <class T>
struct WarpPlace {
  int group, row, col;
  __device__ WarpPlace() {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    group = warp / (T::kTall * T::kWide);
    row = warp / T::kWide % T::kTall * T::kWarpM;
    col = warp % T::kWide * T::kWarpN;
  }
};

/// Adds the sum over k of a row of the stage. Called for the first tile of a row of tiles.
template <class P, int kRows, int kStage>
__device__ void add_row_sums(const float* stage, float& sum) {
  if (threadIdx.x >= kRows) return;
#pragma unroll 8
  for (int k = 0; k < kStage; ++k) sum += stage[k * P::kPitch + threadIdx.x];
}

/// Adds the parts of a cluster's blocks, in the order of blocks, and stores the sum.
__device__ inline void store_row_sum(float* sums, const float* parts, int apart, int blocks, int row, int rows,
                                     bool accumulate, float scale) {
  if (row >= rows) return;
  float sum = 0;
#pragma unroll 1
  for (int block = 0; block < blocks; ++block) sum += parts[block * apart];
  sums[row] = sum * scale + (accumulate ? sums[row] : 0.0f);
}

/// Multiplies the warp group's share of the `steps` steps of 8 k in a stage.
template <class T>
__device__ void multiply(const float* stage, int steps, int group, int row0, int col0,
                         TileSums (&sums)[T::kRows / 2][T::kCols]) {
#pragma unroll 1
  for (int step = group; step < steps; step += T::kGroups) {
    float a[T::kRows][2], b[T::kCols][2];
    T::A::fragment(stage, row0, 8 * step, a);
    T::B::fragment(stage + T::A::kFloats, col0, 8 * step, b);
    Fragment<4> left[T::kRows / 2];
#pragma unroll
    for (int i = 0; i < T::kRows / 2; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) left[i].set(e, a[2 * i + e % 2][e / 2]);
    }
    add_products(left, b, sums);
  }
}

constexpr int kKeep = 8;  ///< stages between keep()s

template <int kTall, int kWide>
__device__ void keep(TileSums (&sums)[kTall][kWide]) {
#pragma unroll
  for (int i = 0; i < kTall; ++i) {
#pragma unroll
    for (int j = 0; j < kWide; ++j) sums[i][j].keep();
  }
}

/// One block's share of the work on a tile of C, whose first element is C[row0, col0]. Block number `block` of the
/// `blocks` of a cluster sums the products of k in [k0, end) over the whole tile, and finishes float4s [block * share,
/// (block + 1) * share) of it.
template <class T>
struct TileShare {
  const TileProduct& p;
  int row0, col0, block, blocks;
  float* shared;
  int64_t c_step;  ///< elements before this matrix of a batch
  int k0, end, share;
  bool sums_a, sums_b;  ///< whether the block also sums the rows of the operands

  __device__ TileShare(const TileProduct& product, int64_t z, int row, int col, int number, int count, float* memory)
      : p(product), row0(row), col0(col), block(number), blocks(count), shared(memory) {
    c_step = z * p.finish.m * p.finish.n;
    k0 = block * p.share;
    end = min(k0 + p.share, p.a.k);
    share = T::kFours / blocks;
    sums_a = T::kSumsRows && p.a_sums != nullptr && col0 == 0;
    sums_b = T::kSumsRows && p.b_sums != nullptr && row0 == 0;
  }

  __device__ int stages() const { return max((end - k0 + T::kStage - 1) / T::kStage, 1); }
  __device__ float* came() const { return shared + T::kCame; }
  __device__ float* rows_inbox() const { return shared + T::kRowInbox + threadIdx.x; }
  /// C's previous values or the bias, and relu's results, are in shared memory in the order of the share: a thread
  /// reads the values that it copied itself.
  __device__ const float* added() const { return p.finish.accumulate ? p.finish.c + c_step : p.finish.bias; }
  __device__ float* old() const { return shared + T::kExtras; }
  __device__ float* results() const { return shared + (blocks > 1 ? T::kExtras + 4 * share : T::kInbox); }

  __device__ void announce() const;
  __device__ void fetch_extras() const;
  template <class Sums>
  __device__ void sum_products(typename T::A::Source& from_a, typename T::B::Source& from_b, Sums& sums, float& row_sum,
                               float& col_sum) const;
  template <class Sums>
  __device__ void store_sums(const Sums& sums) const;
  __device__ float4 sum_of_groups(int local) const;
  __device__ float4 sum_of_blocks(int four) const;
  __device__ void exchange_sums(float row_sum, float col_sum) const;
  __device__ void store_row_sums(float scale) const;
  __device__ void finish(float scale) const;
};

/// Tells the other blocks of the cluster that this one can receive their sums.
template <class T>
__device__ void TileShare<T>::announce() const {
  if (threadIdx.x == 0) {
    const int rows = block > 0 ? 0 : (sums_a ? T::kM : 0) + (sums_b ? T::kN : 0);
    expect_bytes(came(), static_cast<int>(sizeof(float)) * (4 * T::kFours + rows * blocks), 0);
    publish_barriers();
  }
  arrive_at_cluster();
}

template <class T>
__device__ void TileShare<T>::fetch_extras() const {
  const Finish& f = p.finish;
#pragma unroll 1
  for (int four = static_cast<int>(threadIdx.x); four < share; four += T::kThreads) {
    const Place<T> at(block * share + four, row0, col0);
    const int64_t row = static_cast<int64_t>(at.row) * f.n;
    if (added() != nullptr)
      copy4<T::kVectors>(old() + 4 * four, added() + (f.accumulate ? row : 0), at.col, f.n, at.row < f.m);
    if (f.relu_result != nullptr)
      copy4<T::kVectors>(results() + 4 * four, f.relu_result + c_step + row, at.col, f.n, at.row < f.m);
  }
}

/// Sums the products of a warp's part of the tile, and optionally the rows of both operands, over this block's k.
template <class T>
template <class Sums>
__device__ void TileShare<T>::sum_products(typename T::A::Source& from_a, typename T::B::Source& from_b, Sums& sums,
                                           float& row_sum, float& col_sum) const {
  const WarpPlace<T> warp;
  int now = 0, next = 0;  // offsets in shared memory: of the stage in use, and of the next one to fetch
  const auto fetch = [&](int stage) {
    if (stage < stages()) {
      from_a.load(shared + next, p.a, end);
      from_b.load(shared + next + T::A::kFloats, p.b, end);
      next = next + T::kStageFloats < T::kStages * T::kStageFloats ? next + T::kStageFloats : 0;
    }
    commit_copies();
  };
#pragma unroll 1
  for (int s = 0; s < T::kStages - 1; ++s) {
    if (s == T::kStages - 2) fetch_extras();
    fetch(s);
  }
#pragma unroll 1
  for (int s = 0; s < stages(); ++s) {
    wait_for_copies<T::kStages - 2>();
    __syncthreads();
    fetch(s + T::kStages - 1);  // overwrites a stage that all warps have read
    multiply<T>(shared + now, (min(end - k0 - s * T::kStage, T::kStage) + 7) / 8, warp.group, warp.row, warp.col, sums);
    if (sums_a) add_row_sums<typename T::A, T::kM, T::kStage>(shared + now, row_sum);
    if (sums_b) add_row_sums<typename T::B, T::kN, T::kStage>(shared + now + T::A::kFloats, col_sum);
    now = now + T::kStageFloats < T::kStages * T::kStageFloats ? now + T::kStageFloats : 0;
    if (s % kKeep == kKeep - 1) keep(sums);
  }
  wait_for_copies<0>();
  __syncthreads();
}

/// Writes a warp's sums to shared memory.
template <class T>
template <class Sums>
__device__ void TileShare<T>::store_sums(const Sums& sums) const {
  const WarpPlace<T> warp;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* const of_warp = shared + (warp.group * T::kM + warp.row + lane / 4) * T::kPitch + warp.col;
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    float row[T::kCols][2];
#pragma unroll
    for (int j = 0; j < T::kCols; ++j) {
      row[j][0] = sums[r / 2][j].sum(r % 2 * 2);
      row[j][1] = sums[r / 2][j].sum(r % 2 * 2 + 1);
    }
    T::B::store_columns(of_warp + 8 * r * T::kPitch, row);
  }
  __syncthreads();
}

template <class T>
__device__ float4 TileShare<T>::sum_of_groups(int local) const {
  float4 sum{};
#pragma unroll
  for (int g = 0; g < T::kGroups; ++g)
    add(sum, *reinterpret_cast<const float4*>(shared + g * T::kM * T::kPitch + local));
  return sum;
}

/// The sum of what all blocks have sent for float4 number `four` of this block's share.
template <class T>
__device__ float4 TileShare<T>::sum_of_blocks(int four) const {
  float4 sum{};
#pragma unroll 1
  for (int other = 0; other < blocks; other += 2) {
    const float4* const sent = reinterpret_cast<const float4*>(shared + T::kInbox) + other * share + four;
    const float4 first = sent[0], second = sent[share];
    add(sum, first);
    add(sum, second);
  }
  return sum;
}

/// Sends each block the groups' sums of its share of the tile, and waits for those of this block's.
template <class T>
__device__ void TileShare<T>::exchange_sums(float row_sum, float col_sum) const {
  const int thread = static_cast<int>(threadIdx.x);
  if (blocks > 1) {
    wait_for_arrivals();  // no block sends to one that has not started
#pragma unroll 2
    for (int four = thread; four < T::kFours; four += T::kThreads) {
      const int to = four * blocks / T::kFours;  // the block that finishes it
      send(to, shared + T::kInbox + (block * share + four - to * share) * 4, sum_of_groups(Place<T>(four, 0, 0).local),
           came());
    }
    if (sums_a && thread < T::kM) send(0, rows_inbox() + block * (T::kM + T::kN), row_sum, came());
    if (sums_b && thread < T::kN) send(0, rows_inbox() + block * (T::kM + T::kN) + T::kM, col_sum, came());
    wait_for_bytes(came());
  } else if (T::kSumsRows) {  // read by the thread that writes it
    if (sums_a && thread < T::kM) rows_inbox()[0] = row_sum;
    if (sums_b && thread < T::kN) rows_inbox()[T::kM] = col_sum;
  }
}

/// Called by the first block of a cluster.
template <class T>
__device__ void TileShare<T>::store_row_sums(float scale) const {
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int kApart = T::kM + T::kN;
  if (sums_a && thread < T::kM)
    store_row_sum(p.a_sums, rows_inbox(), kApart, blocks, row0 + thread, p.finish.m, p.sums_accumulate, scale);
  if (sums_b && thread < T::kN)
    store_row_sum(p.b_sums, rows_inbox() + T::kM, kApart, blocks, col0 + thread, p.finish.n, p.sums_accumulate, scale);
}

/// Applies the epilogue to this block's share of the tile, and writes it to C.
template <class T>
__device__ void TileShare<T>::finish(float scale) const {
  const Finish& f = p.finish;
#pragma unroll 1
  for (int four = static_cast<int>(threadIdx.x); four < share; four += T::kThreads) {
    const Place<T> at(block * share + four, row0, col0);
    if (at.row >= f.m) continue;
    float4 sum = blocks > 1 ? sum_of_blocks(four) : sum_of_groups(at.local);
    sum = {sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale};
    if (added() != nullptr) add(sum, *reinterpret_cast<const float4*>(old() + 4 * four));
    if (f.accumulate && f.bias != nullptr) add(sum, load4<T::kVectors>(f.bias, at.col, f.n));
    if (f.relu) sum = {relu(sum.x), relu(sum.y), relu(sum.z), relu(sum.w)};
    if (f.relu_result != nullptr) {
      const float4 y = *reinterpret_cast<const float4*>(results() + 4 * four);
      sum = {y.x > 0 ? sum.x : 0.0f, y.y > 0 ? sum.y : 0.0f, y.z > 0 ? sum.z : 0.0f, y.w > 0 ? sum.w : 0.0f};
    }
    store4<T::kVectors>(f.c + c_step + static_cast<int64_t>(at.row) * f.n, at.col, f.n, sum);
  }
}

/// Computes tile [row0, col0] of matrix z of C. Called by all threads of the `blocks` blocks of a cluster with
/// T::kShared bytes of `shared` memory. `block`: this block's number. Waits for the preceding kernel.
template <class T>
__device__ void make_tile(const TileProduct& p, int64_t z, int row0, int col0, int block, int blocks, float* shared) {
  const TileShare<T> own(p, z, row0, col0, block, blocks, shared);
  typename T::A::Source from_a(p.a, z, row0, own.k0);
  typename T::B::Source from_b(p.b, z, col0, own.k0);
  if (blocks > 1) own.announce();
  wait_for_kernel_before();
  const float scale = scale_of(p.finish);
  TileSums sums[T::kRows / 2][T::kCols];
  float row_sum = 0, col_sum = 0;
  own.sum_products(from_a, from_b, sums, row_sum, col_sum);
  own.store_sums(sums);
  own.exchange_sums(row_sum, col_sum);
  if (T::kSumsRows && block == 0) own.store_row_sums(scale);
  own.finish(scale);
}

}  // namespace
}  // namespace trainctl::cuda
