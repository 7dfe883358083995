// Computes tiles of C = A op(B) as tensor_tile_cuda.cuh does, but the copy engine loads the operands
// (tile_copies_cuda.cuh). One thread requests as much of k as shared memory holds, and warps start as soon as the
// first stage arrives. If all of a block's k fits, no thread waits for another before the sums are exchanged.
//
//   step    8 elements of k, which a warp multiplies at a time
//   round   one step of each group of warps; the groups of a block share its k
//   item    128 sums of a warp, four per lane: adjacent in a row of C, or two in a row and two 8 rows below. Sums of
//           groups, then of blocks, are added item by item, in a fixed order; each block finishes the same number.
#pragma once

#include "engine/ops/small_step/tensor_tile_cuda.cuh"
#include "engine/ops/small_step/tile_copies_cuda.cuh"

namespace trainctl::cuda {
namespace {

/// Forces `v` to be computed here, once: the compiler would recompute it in each iteration, or delay it.
__device__ inline void make_now(unsigned& v) { asm volatile("" : "+r"(v)); }

/// The parameters of a kernel. The tensor maps are for its tile size.
struct StreamedProduct {
  TileMap a, b;
  TileProduct product;
};

/// A stage of an operand that is contiguous along k: for each 32 of k, kLines lines of 32 floats.
template <int kLines, int kStage>
struct AlongK {
  static constexpr int kFloats = kLines * kStage;

  static bool set_map(TileMap& to, const Operand& o) { return set_tile_map(to, o.data, o.rows, o.k, kLines); }
  __device__ static void copy(float* to, const TileMap& map, int line, int k, float* barrier) {
#pragma unroll
    for (int at = 0; at < kStage; at += kTileFloats) copy_tile(to + at * kLines, map, k + at, line, barrier);
  }

  /// Byte offset of k = 2 in_group in a line. In step s of 8 k it is at k ^ 8 s: packs are swizzled by the line.
  static constexpr unsigned kLine = 4 * kTileFloats;
  __device__ static unsigned place(unsigned line, unsigned in_group) {
    return line * kLine + (in_group / 2 ^ line % 8) * 16 + in_group % 2 * 8;
  }
  __device__ static unsigned in_stage(unsigned place, unsigned slot, unsigned s) {
    return (place ^ s % 4 * 32) + slot * (4 * kFloats) + s / 4 * (kLines * kLine);
  }
  /// By shared address: from a pointer the compiler would recompute the base of shared memory in every step.
  __device__ static void take(unsigned address, float (&f)[2]) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(f[0]), "=f"(f[1]) : "r"(address) : "memory");
  }

  /// Lines of A: fragment r has line 8 r + line_of(group), so that half a warp reads all banks.
  __device__ static unsigned line_of(unsigned group) { return group % 4 * 2 + group / 4; }
  struct Rows {
    unsigned at;
    __device__ Rows(const float* stages, unsigned row0, unsigned lane)
        : at(shared_address(stages) + place(row0 + line_of(lane / 4), lane % 4)) {
      make_now(at);
    }
    template <int kCount>
    __device__ void read(unsigned slot, unsigned s, float (&f)[kCount][2]) const {
      const unsigned from = in_stage(at, slot, s);
#pragma unroll
      for (int r = 0; r < kCount; ++r) take(from + 8 * r * kLine, f[r]);
    }
  };
  /// Lines of B: fragments 2 i and 2 i + 1 share 16 columns, one has the even ones, so that half a warp reads all banks
  /// and a lane's sums are adjacent. If the number of fragments is odd, the last one has 8 columns.
  template <int kCount>
  struct Columns {
    unsigned even, last;
    __device__ Columns(const float* stages, unsigned col0, unsigned lane)
        : even(shared_address(stages) + place(col0 + lane / 4 * 2, lane % 4)),
          last(shared_address(stages) + place(col0 + 8 * (kCount - 1) + lane / 4, lane % 4)) {
      make_now(even);
      make_now(last);
    }
    __device__ void read(unsigned slot, unsigned s, float (&f)[kCount][2]) const {
      const unsigned from = in_stage(even, slot, s), odd = (from ^ 16) + kLine;
#pragma unroll
      for (int j = 0; j < kCount / 2 * 2; ++j) take((j % 2 == 0 ? from : odd) + j / 2 * 16 * kLine, f[j]);
      if constexpr (kCount % 2 != 0) take(in_stage(last, slot, s), f[kCount - 1]);
    }
  };

  /// Group `which` of four sums of a row: element e's fragment, and which of its two columns; the group's first column.
  __device__ static constexpr int fragment_of(int which, int e) { return 2 * which + e % 2; }
  __device__ static constexpr int half_of(int, int e) { return e / 2; }
  __device__ static int column_of(int which, int in_group) { return 16 * which + 4 * in_group; }
};

/// A stage of B if it is contiguous along its columns, [k,n].
template <int kColumns, int kStage>
struct AlongColumns {
  using Lines = Part<false, kColumns, kStage, 32, true>;
  static constexpr int kFloats = Lines::kFloats;

  /// Lines are as wide as their pitch, so some columns beyond the tile are copied too.
  static bool set_map(TileMap& to, const Operand& o) {
    return set_plain_map(to, o.data, o.k, o.rows, kStage, Lines::kPitch);
  }
  __device__ static void copy(float* to, const TileMap& map, int column, int k, float* barrier) {
    copy_tile(to, map, column, k, barrier);
  }
  template <int kCount>
  struct Columns {
    static_assert(kCount % 4 < 2);
    const float* stages;
    unsigned col0;
    __device__ Columns(const float* from, unsigned first, unsigned) : stages(from), col0(first) {}
    __device__ void read(unsigned slot, unsigned s, float (&f)[kCount][2]) const {
      Lines::fragment(stages + slot * kFloats, static_cast<int>(col0), static_cast<int>(8 * s), f);
    }
  };
  __device__ static constexpr int fragment_of(int which, int e) { return which / 2 * 4 + e; }
  __device__ static constexpr int half_of(int which, int) { return which % 2; }
  __device__ static int column_of(int which, int in_group) { return which / 2 * 32 + 8 * in_group + which % 2 * 4; }
};

template <class Size, bool kBAlongK>
struct StreamedTile : Size {
  using A = AlongK<Size::kM, Size::kStage>;
  using B = std::conditional_t<kBAlongK, AlongK<Size::kN, Size::kStage>, AlongColumns<Size::kN, Size::kStage>>;
  static constexpr int kRows = Size::kWarpM / 8, kCols = Size::kWarpN / 8;  ///< rows and columns of fragments
  static constexpr int kSteps = Size::kStage / 8, kWarps = Size::kThreads / 32;
  static constexpr int kRounds = kSteps / Size::kGroups;     ///< rounds per stage, with one step of each group
  static constexpr int kPlaces = Size::kTall * Size::kWide;  ///< warps per group
  /// Items per row of fragments, per warp, and of each warp that a group adds up.
  static constexpr int kOfRow = kCols / 2, kOfWarp = kRows * kCols / 2, kOwned = kOfWarp / Size::kGroups;
  /// Items of the tile, and floats of an item.
  static constexpr int kItems = kPlaces * kOfWarp, kItem = 128;
  static_assert(kItems % kMostBlocks == 0 && kOfWarp % Size::kGroups == 0 && kSteps % Size::kGroups == 0);
  static constexpr int kStageBytes = static_cast<int>(sizeof(float)) * (A::kFloats + B::kFloats);
  // Offsets in shared memory: stages of A (aligned to 8 lines) | kOfB: stages of B | kHandOver: sums for other groups |
  // kInbox: sums from other blocks | kCame: the barrier of the inbox, then those of the stages
  static constexpr int kOfB = Size::kStages * A::kFloats, kHandOver = kOfB + Size::kStages * B::kFloats;
  static constexpr int kInbox = kHandOver + (Size::kGroups - 1) * kItems * kItem;
  static constexpr int kCame = kInbox + kItems * kItem, kShared = 4 * (kCame + 2 + 2 * Size::kStages);

  /// A lane's four sums of item `i` of its warp.
  __device__ static float4 four(const TileSums (&sums)[kRows / 2][kCols], int i) {
    float v[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (i < kRows * kOfRow) {
        const int r = i / kOfRow, which = i % kOfRow;
        v[e] = sums[r / 2][B::fragment_of(which, e)].sum(r % 2 * 2 + B::half_of(which, e));
      } else {
        v[e] = sums[i - kRows * kOfRow][kCols - 1].sum(e);
      }
    }
    return {v[0], v[1], v[2], v[3]};
  }
};

/// The position in C of a pair of a lane's sums, and the operands of its epilogue.
template <class T>
struct Pair {
  int64_t at = -1;  ///< -1: outside C
  float2 old{}, bias{}, result{};

  __device__ bool mine() const { return at >= 0; }
  /// Pair `half` of item `item` of the tile; does nothing unless `there`.
  __device__ void fetch(const Finish& f, unsigned item, unsigned half, unsigned row0, unsigned col0, bool there) {
    const unsigned lane = threadIdx.x % 32, place = item / T::kOfWarp, i = item % T::kOfWarp;
    const bool four = i < T::kRows * T::kOfRow;
    const unsigned row = row0 + place / T::kWide * T::kWarpM + T::A::line_of(lane / 4) +
                         (four ? i / T::kOfRow * 8 : (i - T::kRows * T::kOfRow) * 16 + half * 8);
    const unsigned col = col0 + place % T::kWide * T::kWarpN +
                         (four ? T::B::column_of(i % T::kOfRow, lane % 4) + half * 2 : T::kWarpN - 8 + lane % 4 * 2);
    if (!there || row >= static_cast<unsigned>(f.m) || col >= static_cast<unsigned>(f.n)) return;
    at = static_cast<int64_t>(row) * f.n + col;
    const auto pair = [](const float* from) { return *reinterpret_cast<const float2*>(from); };
    if (f.accumulate) old = pair(f.c + at);
    if (f.bias != nullptr) bias = pair(f.bias + col);
    if (f.relu_result != nullptr) result = pair(f.relu_result + at);
  }
  __device__ void store(const Finish& f, float scale, const float2& sum) const {
    if (!mine()) return;
    *reinterpret_cast<float2*>(f.c + at) = {finished(f, scale, sum.x, old.x, bias.x, result.x),
                                            finished(f, scale, sum.y, old.y, bias.y, result.y)};
  }
};

/// The first of `rounds` rounds over k that block `block` of a cluster takes: whole stages, except in the last block.
template <class T>
__device__ int first_round(int rounds, int block, int blocks_log2) {
  const int even = (block * rounds) >> blocks_log2;
  return block == 1 << blocks_log2 ? rounds : min((even + T::kRounds / 2) / T::kRounds * T::kRounds, rounds);
}

/// Adds up the sums of the groups, where each group does this for its share of the items, and sends the results to the
/// blocks that finish them.
template <class T>
__device__ void exchange(const TileSums (&sums)[T::kRows / 2][T::kCols], float* shared, unsigned block,
                         int blocks_log2) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned group = warp / T::kPlaces, place = warp % T::kPlaces, owned = T::kItems >> blocks_log2;
  float4* const handed_over =
      reinterpret_cast<float4*>(shared + T::kHandOver) + place * T::kOfWarp * T::kItem / 4 + lane;
  constexpr unsigned kApart = T::kItems * T::kItem / 4;  // from one group's sums to the next's
  float4 own[T::kOwned] = {};
#pragma unroll
  for (int i = 0; i < T::kOfWarp; ++i) {
    const unsigned owner = i / T::kOwned;
    const float4 v = T::four(sums, i);
    if (group != owner) handed_over[(group < owner ? group : group - 1) * kApart + i * T::kItem / 4] = v;
    float4& to = own[i % T::kOwned];
    to = {group == owner ? v.x : to.x, group == owner ? v.y : to.y, group == owner ? v.z : to.z,
          group == owner ? v.w : to.w};
  }
  if (T::kGroups > 1) __syncthreads();
  if (blocks_log2 > 0) wait_for_arrivals();  // no block sends to one that has not started
#pragma unroll
  for (int i = 0; i < T::kOwned; ++i) {
    const unsigned of_warp = group * T::kOwned + i, item = place * T::kOfWarp + of_warp;
#pragma unroll
    for (int from = 0; from < T::kGroups - 1; ++from) add(own[i], handed_over[from * kApart + of_warp * T::kItem / 4]);
    const unsigned to = (item << blocks_log2) / T::kItems;
    float* const at = shared + T::kInbox + (block * owned + item - to * owned) * T::kItem + 4 * lane;
    if (blocks_log2 > 0) {
      send(static_cast<int>(to), at, own[i], shared + T::kCame);
    } else {
      *reinterpret_cast<float4*>(at) = own[i];  // without a cluster a block cannot send, not even to itself
    }
  }
  if (blocks_log2 == 0) __syncthreads();
}

/// Finishes this block's items of the tile at (row0, col0): adds the sums that the blocks of the cluster sent, and
/// writes the results.
template <class T>
__device__ __forceinline__ void finish_items(const Finish& f, int row0, int col0, int block, int blocks_log2,
                                             float* shared) {
  constexpr unsigned kUnits = 3;  // pairs that a lane finishes at a time
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int blocks = 1 << blocks_log2;
  float* const came = shared + T::kCame;
  // Each block finishes the same number of items. The epilogue's operands are loaded while the sums are in flight.
  const unsigned owned = T::kItems >> blocks_log2;
  const float scale = scale_of(f);
  const float2* const inbox = reinterpret_cast<const float2*>(shared + T::kInbox) + 2 * lane;
#pragma unroll 1
  for (unsigned first = warp; first < 2 * owned; first += kUnits * T::kWarps) {
    Pair<T> pairs[kUnits];
#pragma unroll
    for (unsigned i = 0; i < kUnits; ++i) {
      const unsigned unit = first + i * T::kWarps;
      pairs[i].fetch(f, block * owned + unit / 2, unit % 2, row0, col0, unit < 2 * owned);
    }
    if (blocks > 1) wait_for_bytes(came);
    float2 sum[kUnits] = {};
#pragma unroll 1
    for (int from = 0; from < blocks; from += 2) {
#pragma unroll
      for (unsigned i = 0; i < kUnits; ++i) {
        if (!pairs[i].mine()) continue;
        const unsigned unit = first + i * T::kWarps;
        const float2* const sent = inbox + (from * owned + unit / 2) * (T::kItem / 2) + unit % 2;
        const float2 one = sent[0], other = blocks > 1 ? sent[owned * (T::kItem / 2)] : float2{};
        sum[i] = {sum[i].x + one.x + other.x, sum[i].y + one.y + other.y};
      }
    }
#pragma unroll
    for (unsigned i = 0; i < kUnits; ++i) pairs[i].store(f, scale, sum[i]);
  }
}

/// One thread's view of its block's part of a tile: which rounds over k the block takes, and how it gets their stages.
template <class T>
struct StreamedBlock {
  const StreamedProduct& streamed;
  int row0, col0;  ///< the tile's first row and column in C
  int block, blocks_log2;
  float* shared;
  unsigned thread = threadIdx.x;
  int all = (streamed.product.a.k + 8 * T::kGroups - 1) / (8 * T::kGroups);  ///< rounds of all blocks
  int round0 = first_round<T>(all, block, blocks_log2);
  unsigned rounds = first_round<T>(all, block + 1, blocks_log2) - round0;
  unsigned stages = (rounds + T::kRounds - 1) / T::kRounds;
  float* came = shared + T::kCame;

  __device__ float* barrier_of(unsigned stage) const { return came + 2 + stage % T::kStages * 2; }

  /// Requests the stages from `fetched` up to `end`, and advances `fetched`.
  __device__ __forceinline__ void fetch(unsigned& fetched, unsigned end) const {
#pragma unroll 1
    for (; fetched < end; ++fetched) {
      if (thread != 0) continue;
      const unsigned slot = fetched % T::kStages;
      const int k = 8 * T::kGroups * round0 + static_cast<int>(fetched) * T::kStage;
      float* const barrier = barrier_of(fetched);
      announce_bytes(barrier, T::kStageBytes);
      T::A::copy(shared + slot * T::A::kFloats, streamed.a, row0, k, barrier);
      T::B::copy(shared + T::kOfB + slot * T::B::kFloats, streamed.b, col0, k, barrier);
    }
    __syncwarp();
  }
};

/// Reads a warp's operands from shared memory, and splits those of A.
template <class T>
struct StreamedReader {
  unsigned group;
  typename T::A::Rows rows;
  typename T::B::template Columns<T::kCols> columns;

  __device__ __forceinline__ void take(unsigned stage, unsigned round, Fragment<4> (&left)[T::kRows / 2],
                                       float (&right)[T::kCols][2]) const {
    float a[T::kRows][2];
    const unsigned s = round * T::kGroups + group;
    rows.read(stage % T::kStages, s, a);
    columns.read(stage % T::kStages, s, right);
#pragma unroll
    for (int i = 0; i < 2 * T::kRows; ++i) {
      left[i / 4].set(i % 4, a[i / 4 * 2 + i % 2][i % 4 / 2]);
      make_now(left[i / 4].low[i % 4]);
    }
  }
};

/// Copies a round's operands, so that those of a later round can take their place.
template <int kLeft, int kCols>
__device__ __forceinline__ void copy_operands(const Fragment<4> (&left)[kLeft], const float (&right)[kCols][2],
                                              Fragment<4> (&to_left)[kLeft], float (&to_right)[kCols][2]) {
#pragma unroll
  for (int i = 0; i < kLeft; ++i) to_left[i] = left[i];
#pragma unroll
  for (int i = 0; i < 2 * kCols; ++i) to_right[i / 2][i % 2] = right[i / 2][i % 2];
}

/// Computes the tile at (row0, col0). Called by all threads of all 2^blocks_log2 blocks of a cluster. Waits for the
/// preceding kernel.
template <class T>
__device__ void make_streamed_tile(const StreamedProduct& streamed, int row0, int col0, int block, int blocks_log2,
                                   float* shared) {
  constexpr unsigned kSumsKept = 16;  // rounds between keep()s
  const unsigned thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const unsigned group = warp / T::kPlaces, place = warp % T::kPlaces;
  const unsigned own_row = place / T::kWide * T::kWarpM, own_col = place % T::kWide * T::kWarpN;  // in the tile
  const int blocks = 1 << blocks_log2;
  const Finish& f = streamed.product.finish;
  const StreamedBlock<T> own{streamed, row0, col0, block, blocks_log2, shared};
  const unsigned stages = own.stages;
  if (threadIdx.x == 0) {
    prefetch_map(streamed.a);
    prefetch_map(streamed.b);
#pragma unroll 1
    for (unsigned s = 0; s < T::kStages; ++s) prepare_announcements(own.barrier_of(s));
    expect_bytes(own.came, static_cast<int>(sizeof(float)) * T::kItems * T::kItem, 0);
    publish_barriers();
    publish_to_copies();
  }
  __syncthreads();
  if (blocks > 1) arrive_at_cluster();
  wait_for_kernel_before();

  // In a round each group takes a step of 8 k. The operands of the next step, if they have arrived, are read and split
  // while this one's products are computed.
  unsigned fetched = 0;
  TileSums sums[T::kRows / 2][T::kCols];
  Fragment<4> left[T::kRounds][T::kRows / 2];
  float right[T::kRounds][T::kCols][2];
  const StreamedReader<T> reader{group, typename T::A::Rows(shared, own_row, lane),
                                 typename T::B::template Columns<T::kCols>(shared + T::kOfB, own_col, lane)};
  const auto take = [&](unsigned stage, unsigned round) { reader.take(stage, round, left[round], right[round]); };
  own.fetch(fetched, min(stages, T::kStages));
  bool ahead = false;
#pragma unroll 1
  for (unsigned stage = 0; stage < stages; ++stage) {
    if (!ahead) {
      wait_for_bytes(own.barrier_of(stage), stage / T::kStages % 2);
      take(stage, 0);
    }
#pragma unroll
    for (unsigned round = 0; round < T::kRounds; ++round) {
      if (round > 0 && stage * T::kRounds + round >= own.rounds) break;
      Fragment<4> now[T::kRows / 2];
      float across[T::kCols][2];
      copy_operands(left[round], right[round], now, across);
      if (round + 1 < T::kRounds) {
        take(stage, round + 1);
      } else {
        const unsigned next = stage + 1;
        ahead = __ballot_sync(~0u, next < stages && is_complete(own.barrier_of(next), next / T::kStages % 2)) == ~0u;
        take(ahead ? next : stage, 0);
      }
      add_products(now, across, sums);
    }
    if ((stage + 1) % (kSumsKept / T::kRounds) == 0) keep(sums);
    if (fetched < stages) {
      __syncthreads();  // all warps have read the stage
      own.fetch(fetched, fetched + 1);
    }
  }

  exchange<T>(sums, shared, block, blocks_log2);
  finish_items<T>(f, row0, col0, block, blocks_log2, shared);
}

}  // namespace
}  // namespace trainctl::cuda
