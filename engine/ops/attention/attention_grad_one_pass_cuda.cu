// The gradient of attention by the tensor cores of Hopper, for bf16 and heads of 64 to 128 features: one pass over the
// pairs of queries and keys. Each pair of a tile of 64 queries and a block of 128 keys takes five products:
//
//     p' = k q',  g' from v dy',  dv += p' dy,  dk += g' q,  dq = g k
//     where p = e^(score - log) and g = p (dy v' - mean)
//
//   rows_kernel        of each query: log, in powers of two, and mean = sum dy * out; and the order of the pairs
//   tiles_kernel       a block of threads for a few blocks of keys of a kv head, one after another: dk and dv stay in
//                      registers over all tiles of queries; dq of each tile is added to f32 sums in memory
//   finish_kernel      dq in bf16 from those sums
//   add_parts_kernel   dk and dv, if the query heads of a kv head are divided among blocks of threads
//
// In tiles_kernel two groups of four warps compute, each for 64 of the keys. They take turns in the product for dq, so
// one computes exponentials while the other one multiplies. In the third group, one warp loads tiles, and three add dq
// to the sums; both let the copy engine work. Products with 64 columns read shared memory as fast as it can be read, so
// dk, dv and dq have 128.
//
// Results do not depend on timing: the blocks of keys add to the dq of a tile one after another, each when the tile's
// counter shows its turn. The turns follow the times at which the blocks would come by if each tile took equally long.
// OnePassSchedule makes those times differ by a few tiles, so that blocks seldom wait and find tiles in the L2 cache:
//
//   full     each block of keys starts at a tile of its own and wraps around
//   causal   blocks n and N - 1 - n of N, one after the other, make all blocks of threads equally long; a block of keys
//            starts at the diagonal, or goes backwards from the last tile
//   window   a block of keys goes from the diagonal to the last tile that sees it
//
// A block of threads waits only for those of the same query heads. It takes its number when it starts, so all blocks
// with smaller numbers run or have ended; as those of the same heads fit on the GPU together, each gets its turn.
#include "engine/ops/attention/attention_grad_one_pass_cuda.h"
#include "engine/ops/attention/grad_workspace.h"
#include "engine/ops/attention/one_pass_schedule_cuda.cuh"
#include "engine/ops/attention/score_tiles_cuda.cuh"
#include "engine/ops/small_step/tile_copies_cuda.cuh"

namespace trainctl {
namespace {

using namespace attention;
using namespace cuda;

constexpr int kRows = kOnePassRows;                  ///< queries of a tile
constexpr int kKeys = kOnePassKeys;                  ///< keys of a block
constexpr int kGroups = kKeys / kSquare;             ///< groups of warps that compute
constexpr int kAdders = 3;                           ///< warps that add dq to the sums
constexpr int kComputing = kGroups * kGroupThreads;  ///< threads that compute
constexpr int kThreads = kComputing + kGroupThreads;
constexpr int kBlockBytes = kKeys * 128;  ///< 64 features of a block of keys
constexpr int kLeastKeys = 4096;          ///< least keys of heads of 64 features
constexpr int kRowsBytes = 2 * kRows * static_cast<int>(sizeof(float));
constexpr uint64_t kNextSquare = kSquareBytes / 16;  ///< 64 lines on, in a matrix descriptor

/// The sizes of tiles_kernel for heads of up to `Features` features, 64 or 128.
template <int Features>
struct Sizes {
  static constexpr int kFeatures = Features;     ///< features of a head in shared memory: its own, then zeros
  static constexpr int kHalves = Features / 64;  ///< tiles of 64 features side by side
  static constexpr int kTileSums = kRows * Features;
  static constexpr int kStages = Features == 64 ? 3 : 2;  ///< tiles loaded ahead
  using Sums = float[Features / 2];                       ///< a thread's part of 64 lines of features
};

/// The operands of all kernels but the first, for some kv heads of all samples.
struct Gradient {
  CUtensorMap q, k, v, dy;  ///< [b, g, r, rows, features]
  OnePassSchedule schedule;
  int g, r, t, s, d;
  int parts;          ///< groups of the query heads of a kv head
  int first_group;    ///< the first kv head of this launch
  float scale, unit;  ///< unit: factor of the scores that makes them exponents of 2
  /// [b, g, r, tiles, 2, 64]: logs, then means, in the order of row_at(); beyond t: infinite, then 0
  const float* rows;
  float* sums;      ///< dq of each tile of [groups, r]: [packs of 8 columns, 128 threads, 4]
  float* key_sums;  ///< [groups, parts, dk and dv, rows of whole blocks, features], if there are several parts
  Step* steps;      ///< [columns, passes, heads * tiles]
  int* turns;       ///< [groups, r, tiles]: how many blocks have added to the tile
  int* numbers;     ///< the number of the next block of threads
  bf16 *dq, *dk, *dv;
  Heads to_q, to_k, to_v;

  __device__ Sight sight() const { return {s, schedule.first_row, schedule.causal, schedule.window}; }
  /// Index of a tile of a head in memory.
  __device__ int64_t tile_at(int64_t head, int tile) const { return head * schedule.tiles + tile; }
  /// dk (which = 0) or dv of one part, from `row` on.
  template <int Features>
  __device__ float* part_at(int group, int part, int which, int row) const {
    return key_sums +
           (((static_cast<int64_t>(group) * parts + part) * 2 + which) * schedule.blocks * kKeys + row) * Features;
  }
};

template <class S>
struct alignas(1024) Shared {
  unsigned char keys[S::kHalves][kBlockBytes], values[S::kHalves][kBlockBytes];
  unsigned char queries[S::kStages][S::kHalves][kSquareBytes], dys[S::kStages][S::kHalves][kSquareBytes];
  unsigned char slopes[kGroups][kBlockBytes];  ///< g', of this tile and the preceding ones
  float sums[kGroups][S::kTileSums];
  float rows[S::kStages][2][kRows];
  alignas(8) float keys_here[2], keys_left[2], here[S::kStages][2], left[S::kStages][2];
  alignas(8) float sums_full[kAdders][2], sums_empty[kGroups][2];
  int number;

  __device__ static Shared& get() {
    extern __shared__ unsigned char bytes[];
    const unsigned past = shared_address(bytes) % 1024;
    return *reinterpret_cast<Shared*>(bytes + (past == 0 ? 0 : 1024 - past));
  }
  static constexpr size_t bytes() {
    static_assert(sizeof(Shared) + 1024 <= 227 * 1024);
    return sizeof(Shared) + 1024;
  }
};

/// A tile in memory with a mask has this bit.
constexpr int kMasked = 1 << 30;
__device__ int tile_of(const Step& step) { return step.tile & (kMasked - 1); }
__device__ bool is_masked(const Step& step) { return step.tile >= kMasked; }

/// Barriers of some of the threads, each for the tiles of one of the groups of warps that compute.
enum Barrier { kAll, kGroup, kSlopesFull = kGroup + kGroups, kSlopesEmpty = kSlopesFull + kGroups };

/// Sums of a group of warps to memory: the first stores them, later ones add theirs.
template <int Sums>
__device__ void copy_sums(float* to, const float* from, bool first) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  constexpr int kBytes = Sums * sizeof(float);
  if (first) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
                 "n"(kBytes)
                 : "memory");
  } else {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(from)), "n"(kBytes)
                 : "memory");
  }
#endif
}
/// Orders this thread's own accesses and those of its copies.
__device__ void order_copies() {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}
__device__ int counted(const int* counter) {
  int count = 0;
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
#endif
  return count;
}
__device__ void count_one(int* counter) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
#endif
}

/// d = a b' over the features, for 64 lines of both: keys or values, and queries or their gradients.
template <class S>
__device__ void multiply_heads(float (&d)[32], uint64_t a, uint64_t b) {
  multiply_lines(d, a, b);
  if constexpr (S::kHalves == 2) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      add_product(d, a + kBlockBytes / 16 + k * kNextColumns, b + kSquareBytes / 16 + k * kNextColumns);
  }
}
/// The descriptor of lines with all features; `apart`: bytes from one half of the features to the other.
template <class S>
__device__ uint64_t lines_at(unsigned address, unsigned apart) {
  return S::kHalves == 2 ? squares_at(address, apart) : square_at(address);
}

/// The same as they are, in rows of floats.
template <int Sums>
__device__ void write_part(const float (&d)[Sums], const Lane& lane, float* to) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float* const line = to + (lane.row + 8 * h) * 2 * Sums + lane.column;
#pragma unroll
    for (int j = 0; j < Sums / 4; ++j)
      *reinterpret_cast<float2*>(line + 8 * j) = make_float2(d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
  }
}

/// Identifies the tiles that a block of threads works on.
struct Column {
  int group, part;  ///< index of the kv head among those of this launch, and of the part of its query heads
  int b, g, column;

  __device__ Column(const Gradient& x, int number) {
    const int columns = x.schedule.columns;
    column = number % columns, part = number / columns % x.parts, group = number / columns / x.parts;
    b = (x.first_group + group) / x.g, g = (x.first_group + group) % x.g;
  }
};

/// Run by one warp. One of its threads loads the blocks of keys and the tiles of queries.
template <class S>
__device__ void load_tiles(const Gradient& x, Shared<S>& shared, const Column& at) {
  constexpr int kStages = S::kStages, kHalves = S::kHalves;
  if (threadIdx.x % 32 != 0) return;
  const OnePassSchedule& schedule = x.schedule;
  int loaded = 0;
  for (int pass = 0; pass < schedule.passes(); ++pass) {
    const int block = schedule.block(at.column, pass), key0 = block * kKeys;
    if (block >= schedule.blocks) break;
    if (pass > 0) wait_for_bytes(shared.keys_left, (pass - 1) % 2);
    announce_bytes(shared.keys_here, 2 * kHalves * kBlockBytes);
    for (int half = 0; half < kHalves; ++half) {
      copy_box(shared.keys[half], x.k, half * 64, key0, 0, at.g, at.b, shared.keys_here);
      copy_box(shared.values[half], x.v, half * 64, key0, 0, at.g, at.b, shared.keys_here);
    }
    const Step* step = x.steps + schedule.steps_at(at.column, pass);
    for (int head = at.part * schedule.heads; head < (at.part + 1) * schedule.heads; ++head) {
      const int64_t whole_head = static_cast<int64_t>(x.first_group + at.group) * x.r + head;
      for (int i = schedule.count(block); i > 0; --i, ++step, ++loaded) {
        const int stage = loaded % kStages, tile = tile_of(*step);
        float* const here = shared.here[stage];
        if (loaded >= kStages) wait_for_bytes(shared.left[stage], (loaded / kStages - 1) % 2);
        announce_bytes(here, 2 * kHalves * kSquareBytes + kRowsBytes);
        copy_bytes<kRowsBytes>(shared.rows[stage][0], x.rows + x.tile_at(whole_head, tile) * 2 * kRows, here);
        for (int half = 0; half < kHalves; ++half)
          copy_box(shared.queries[stage][half], x.q, half * 64, tile * kRows, head, at.g, at.b, here);
        for (int half = 0; half < kHalves; ++half)
          copy_box(shared.dys[stage][half], x.dy, half * 64, tile * kRows, head, at.g, at.b, here);
      }
    }
  }
}

/// Run by one warp. One of its threads adds dq of every third tile to the sums in memory when it is the block's turn.
template <class S>
__device__ void add_sums(const Gradient& x, Shared<S>& shared, const Column& at, int adder) {
  if (threadIdx.x % 32 != 0) return;
  const OnePassSchedule& schedule = x.schedule;
  int added = 0;
  for (int pass = 0; pass < schedule.passes(); ++pass) {
    const int block = schedule.block(at.column, pass);
    if (block >= schedule.blocks) break;
    const Step* step = x.steps + schedule.steps_at(at.column, pass);
    for (int head = at.part * schedule.heads; head < (at.part + 1) * schedule.heads; ++head) {
      for (int i = schedule.count(block); i > 0; --i, ++step, ++added) {
        if (added % kAdders != adder) continue;
        const int group = added % kGroups, turn = step->turn;
        const int64_t tile = x.tile_at(static_cast<int64_t>(at.group) * x.r + head, tile_of(*step));
        int* const counter = x.turns + tile;
        while (counted(counter) != turn) __nanosleep(20);
        order_copies();
        wait_for_bytes(shared.sums_full[adder], added / kAdders % 2);
        copy_sums<S::kTileSums>(x.sums + tile * S::kTileSums, shared.sums[group], turn == 0);
        end_copies();
        copies_read();
        arrive(shared.sums_empty[group]);
        copies_done();
        count_one(counter);
      }
    }
  }
}

/// A group of warps that computes for 64 keys of each block.
template <class S>
struct KeysGroup {
  static constexpr int kStages = S::kStages;
  using Sums = typename S::Sums;

  const Gradient& x;
  Shared<S>& shared;
  const Column& at;
  unsigned group = threadIdx.x / kGroupThreads - 1;
  Lane lane;
  uint64_t keys = square_at(shared_address(shared.keys[0]) + group * kSquareBytes);
  uint64_t values = square_at(shared_address(shared.values[0]) + group * kSquareBytes);
  uint64_t key_lines = lines_at<S>(shared_address(shared.keys[0]), kBlockBytes);
  /// This thread stores lines of g' in line `line`, every second pack.
  int line = 64 * static_cast<int>(group) + 16 * lane.warp + lane.lane % 16;
  unsigned slope_line = shared_address(shared.slopes[0]) + line * 128 + (lane.lane / 16 ^ line % 8) * 16;
  float4* sums = reinterpret_cast<float4*>(shared.sums[group]) + threadIdx.x % kGroupThreads;

  __device__ KeysGroup(const Gradient& gradient, Shared<S>& memory, const Column& column)
      : x(gradient), shared(memory), at(column) {}

  __device__ __forceinline__ void run() const {
    const OnePassSchedule& schedule = x.schedule;
    unsigned done = 0;
    for (int pass = 0; pass < schedule.passes(); ++pass) {
      const int block = schedule.block(at.column, pass), key0 = block * kKeys + group * kSquare;
      if (block >= schedule.blocks) break;
      Sums dk, dv;
      clear(dk);
      clear(dv);
      wait_for_bytes(shared.keys_here, pass % 2);
      const Step* step = x.steps + schedule.steps_at(at.column, pass);
      for (const unsigned end = done + schedule.steps(block); done < end; ++done, ++step) {
        const unsigned stage = done % kStages, turn = done % kGroups;
        add_tile(*step, done, key0, dk, dv);
        if (turn == group) {
          find_queries(done, dk, dv);
          continue;
        }
        arrive_at<kComputing>(kSlopesFull + turn);
        products_done<0>();
        settle(dk);
        settle(dv);
        arrive(shared.left[stage]);
      }
      arrive(shared.keys_left);
      write_keys(key0, dk, dv);
    }
  }

  /// Adds a tile of queries to dv and dk, and stores its g' in shared memory. The products that add to dv and dk are
  /// still running when it returns.
  __device__ __forceinline__ void add_tile(const Step& step, unsigned done, int key0, Sums& dk, Sums& dv) const {
    const unsigned stage = done % kStages, turn = done % kGroups;
    const unsigned queries = shared_address(shared.queries[stage][0]), dys = shared_address(shared.dys[stage][0]);
    float p[32], g[32];
    unsigned p_pairs[16], g_pairs[16];
    wait_for_bytes(shared.here[stage], done / kStages % 2);
    begin_products();
    multiply_heads<S>(p, keys, square_at(queries));
    end_products();
    multiply_heads<S>(g, values, square_at(dys));
    end_products();
    products_done<1>();
    settle(p);
    weigh(x.unit, shared.rows[stage][0], lane, p);
    if (is_masked(step)) mask(x.sight(), lane, tile_of(step) * kRows, key0, p);
    round_sums(p, p_pairs);
    begin_products();
    add_over_lines(dv, p_pairs, lines_at<S>(dys, kSquareBytes));
    end_products();
    products_done<1>();
    settle(g);
    slope(shared.rows[stage][1], lane, p, g);
    round_sums(g, g_pairs);
    begin_products();
    add_over_lines(dk, g_pairs, lines_at<S>(queries, kSquareBytes));
    end_products();
    if (turn != group && done >= kGroups) wait_at<kComputing>(kSlopesEmpty + turn);
#pragma unroll
    for (int j = 0; j < 4; ++j) store_matrices((slope_line + turn * kBlockBytes) ^ (32 * j), g_pairs + 4 * j);
    publish_to_copies();
  }

  /// Computes dq of a tile from the g' of all groups, and stores it for the warps that add it to the sums in memory.
  /// Waits for the products of add_tile().
  __device__ __forceinline__ void find_queries(unsigned done, Sums& dk, Sums& dv) const {
    const unsigned stage = done % kStages, turn = done % kGroups;
    products_done<1>();
    settle(dv);
    Sums dq;
    const uint64_t slopes = square_at(shared_address(shared.slopes[turn]));
    wait_at<kGroupThreads>(kGroup + group);
    begin_products();
    multiply_over_lines<kSquare>(dq, slopes + group * kNextSquare, key_lines + group * kNextSquare);
    wait_at<kComputing>(kSlopesFull + turn);
    add_over_lines<kSquare>(dq, slopes + (1 - group) * kNextSquare, key_lines + (1 - group) * kNextSquare);
    end_products();
    products_done<1>();
    settle(dk);
    arrive(shared.left[stage]);
    products_done<0>();
    settle(dq);
    arrive_at<kComputing>(kSlopesEmpty + turn);
    if (done >= kGroups) wait_for_bytes(shared.sums_empty[group], (done / kGroups - 1) % 2);
#pragma unroll
    for (int j = 0; j < S::kFeatures / 8; ++j)
      sums[j * kGroupThreads] = make_float4(dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
    publish_to_copies();
    arrive(shared.sums_full[done % kAdders]);
  }

  /// Writes dk and dv of the keys from `key0` on, or this part's sums of them.
  __device__ __forceinline__ void write_keys(int key0, const Sums& dk, const Sums& dv) const {
    if (x.parts > 1) {
      write_part(dk, lane, x.part_at<S::kFeatures>(at.group, at.part, 0, key0));
      write_part(dv, lane, x.part_at<S::kFeatures>(at.group, at.part, 1, key0));
    } else {
      write_sums(dk, x.scale, lane, x.dk + offset_of(x.to_k, at.b, at.g, 0, key0), x.to_k.row, x.s - key0, x.d);
      write_sums(dv, 1.0f, lane, x.dv + offset_of(x.to_v, at.b, at.g, 0, key0), x.to_v.row, x.s - key0, x.d);
    }
  }
};

template <class S>
__global__ void __launch_bounds__(kThreads, 1) tiles_kernel(const __grid_constant__ Gradient x) {
  wait_for_kernel_before();
  let_next_kernel_start();
  Shared<S>& shared = Shared<S>::get();
  if (threadIdx.x == 0) {
    shared.number = atomicAdd(x.numbers, 1);
    prepare_announcements(shared.keys_here);
    init_barrier(shared.keys_left, kComputing);
    for (int i = 0; i < S::kStages; ++i) {
      prepare_announcements(shared.here[i]);
      init_barrier(shared.left[i], kComputing);
    }
    for (int i = 0; i < kAdders; ++i) init_barrier(shared.sums_full[i], kGroupThreads);
    for (int i = 0; i < kGroups; ++i) prepare_announcements(shared.sums_empty[i]);
    publish_to_copies();
  }
  __syncthreads();
  const Column at(x, shared.number);
  if (threadIdx.x < kGroupThreads) {
    give_registers<24>();
    if (threadIdx.x < 32) {
      load_tiles(x, shared, at);
    } else {
      add_sums(x, shared, at, static_cast<int>(threadIdx.x) / 32 - 1);
    }
  } else {
    take_registers<240>();
    KeysGroup<S>(x, shared, at).run();
  }
}

constexpr int kFinishThreads = 256;

/// A block of threads for 64 features of a tile.
template <int Features>
__global__ void __launch_bounds__(kFinishThreads) finish_kernel(const __grid_constant__ Gradient x) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const OnePassSchedule& schedule = x.schedule;
  // The last sums first: those are in the L2 cache.
  const int index = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  constexpr int kHalves = Features / 64, kTileSums = kRows * Features, kHalfSums = kTileSums / kHalves;
  const int half = index % kHalves, tile = index / kHalves % schedule.tiles, head = index / kHalves / schedule.tiles;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads,
            four = static_cast<int>(threadIdx.x) / kGroupThreads;
  const auto* from = reinterpret_cast<const float4*>(x.sums + x.tile_at(head, tile) * kTileSums + half * kHalfSums) +
                     four * 4 * kGroupThreads + thread;
  unsigned pairs[2][4];  // of rows 8 apart: columns 8 j + column + 0, 1
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float4 v = from[j * kGroupThreads];
    pairs[0][j] = pair_of(x.scale * v.x, x.scale * v.y), pairs[1][j] = pair_of(x.scale * v.z, x.scale * v.w);
  }
  // Among four threads: each takes the 8 columns of one j.
  const int j = thread % 4, row = thread / 32 * 16 + thread % 32 / 4, column = 64 * half + 32 * four + 8 * j;
  const int whole = x.first_group * x.r + head, g = whole / x.r % x.g, b = whole / x.r / x.g;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    unsigned got[4];
#pragma unroll
    for (int by = 0; by < 4; ++by) {
      const int to = j ^ by;  // sends it the pair of its columns, and gets its pair of mine
      unsigned mine = pairs[h][0];
#pragma unroll
      for (int i = 1; i < 4; ++i) mine = to == i ? pairs[h][i] : mine;
      const unsigned its = __shfl_xor_sync(~0u, mine, by);
#pragma unroll
      for (int i = 0; i < 4; ++i) got[i] = to == i ? its : (by == 0 ? 0 : got[i]);
    }
    const int at = tile * kRows + row + 8 * h;
    if (at < x.t && column < x.d)
      *reinterpret_cast<uint4*>(x.dq + offset_of(x.to_q, b, g, whole % x.r, at) + column) =
          make_uint4(got[0], got[1], got[2], got[3]);
  }
}

constexpr int kSumThreads = 256;

/// One thread per 8 features of a key, first for dk and then for dv.
template <int Features>
__global__ void __launch_bounds__(kSumThreads) add_parts_kernel(const __grid_constant__ Gradient x) {
  wait_for_kernel_before();
  let_next_kernel_start();
  constexpr int kPacks = Features / 8;
  const int keys = x.schedule.blocks * kKeys, pack = static_cast<int>(threadIdx.x) % kPacks;
  const int index = static_cast<int>(blockIdx.x) * (kSumThreads / kPacks) + static_cast<int>(threadIdx.x) / kPacks;
  const int key = index % keys, which = index / keys % 2, group = index / keys / 2;
  if (key >= x.s || 8 * pack >= x.d) return;
  float sum[8] = {};
  for (int part = 0; part < x.parts; ++part) {
    const auto* from = reinterpret_cast<const float4*>(x.part_at<Features>(group, part, which, key) + 8 * pack);
    const float4 a = from[0], b = from[1];
    const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] += v[i];
  }
  const float scale = which == 0 ? x.scale : 1.0f;
  const int b = (x.first_group + group) / x.g, g = (x.first_group + group) % x.g;
  bf16* const to = which == 0 ? x.dk + offset_of(x.to_k, b, g, 0, key) : x.dv + offset_of(x.to_v, b, g, 0, key);
  *reinterpret_cast<uint4*>(to + 8 * pack) =
      make_uint4(pair_of(scale * sum[0], scale * sum[1]), pair_of(scale * sum[2], scale * sum[3]),
                 pair_of(scale * sum[4], scale * sum[5]), pair_of(scale * sum[6], scale * sum[7]));
}

/// Orders the blocks of keys at one tile of one of the heads of a block of threads.
__device__ void order_blocks(const OnePassSchedule& schedule, int head, int tile, int s, Step* steps) {
  __shared__ int times[kLongestOnePass / kKeys];
  const int first = schedule.first_seen(tile), count = schedule.seen_end(tile) - first;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kSumThreads)
    times[i] = schedule.time(first + i, head, tile);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kSumThreads)
    steps[schedule.step_at(first + i, head, tile)] = {tile | (schedule.hides(first + i, tile, s) ? kMasked : 0),
                                                      OnePassSchedule::turn(times, count, i)};
}

/// A thread per 8 features of a row, over whole tiles of each head. The first blocks make the steps, each those of a
/// tile of a head. Clears `counters`.
template <int Features>
__global__ void __launch_bounds__(kSumThreads)
    rows_kernel(const bf16* dy, const bf16* out, const float* logs, Heads heads, int g, int r, int t, int d, float* to,
                OnePassSchedule schedule, int s, Step* steps, int step_blocks, int* counters, int count) {
  wait_for_kernel_before();
  let_next_kernel_start();
  constexpr int kPacks = Features / 8, kBlockRows = kSumThreads / kPacks;
  const int64_t index = int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (index < count) counters[index] = 0;
  if (static_cast<int>(blockIdx.x) < step_blocks)
    return order_blocks(schedule, static_cast<int>(blockIdx.x) / schedule.tiles,
                        static_cast<int>(blockIdx.x) % schedule.tiles, s, steps);
  const int tiles = schedule.tiles, row_block = static_cast<int>(blockIdx.x) - step_blocks;
  const int blocks = tiles * kRows / kBlockRows, head = row_block / blocks;
  const int row = row_block % blocks * kBlockRows + static_cast<int>(threadIdx.x) / kPacks;
  const int pack = static_cast<int>(threadIdx.x) % kPacks;
  float sum = 0;
  if (row < t && 8 * pack < d) {
    const int64_t from = offset_of(heads, head / (g * r), head / r % g, head % r, row) + pack * 8;
    sum = dot_pack(dy + from, out + from);
  }
#pragma unroll
  for (int by = kPacks / 2; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (pack != 0) return;
  float* const tile = to + 2 * kRows * (static_cast<int64_t>(head) * tiles + row / kRows) + row_at(row % kRows);
  tile[0] = row < t ? logs[static_cast<int64_t>(head) * t + row] * kLog2e : INFINITY;
  tile[kRows] = sum;
}

/// Prepares the kernels of one size. Null: the copy engine cannot read the operands, or the GPU is too small.
template <class S>
CudaKernel prepare_one_pass(const CudaKernelCall& call, const AttentionCall& a) {
  constexpr int kFeatures = S::kFeatures, kPacks = kFeatures / 8;
  const AttentionSize& n = a.size;
  Gradient x{};
  if (!describe(x.q, call.in[a.q_at].data, a.q, n, n.t, n.r, kRows) ||
      !describe(x.k, call.in[a.k_at].data, a.k, n, n.s, 1, kKeys) ||
      !describe(x.v, call.in[a.v_at].data, a.v, n, n.s, 1, kKeys) ||
      !describe(x.dy, call.in[0].data, a.out, n, n.t, n.r, kRows))
    return nullptr;
  const OnePassMemory memory(n, a.causal);
  x.schedule = {static_cast<int>(memory.tiles),
                static_cast<int>(memory.blocks),
                static_cast<int>(memory.columns),
                static_cast<int>(a.first_row),
                a.causal,
                static_cast<int>(n.r / memory.parts),
                static_cast<int>(std::min<int64_t>(a.window, n.s))};
  // Blocks that wait for each other must run together, even while other kernels run.
  if (memory.columns > multiprocessors() / 2) return nullptr;
  x.g = static_cast<int>(n.g), x.r = static_cast<int>(n.r), x.t = static_cast<int>(n.t), x.s = static_cast<int>(n.s);
  x.d = static_cast<int>(n.d), x.parts = static_cast<int>(memory.parts);
  x.scale = a.scale, x.unit = a.scale * kLog2e;
  x.dq = call.out[0].as<bf16>(), x.dk = call.out[a.packed ? 0 : 1].as<bf16>(),
  x.dv = call.out[a.packed ? 0 : 2].as<bf16>();
  x.to_q = a.q, x.to_k = a.k, x.to_v = a.v;
  call.scratch->need(memory.bytes());
  ask_for_shared(tiles_kernel<S>, Shared<S>::bytes(), "attention_grad");
  return [x, memory, n, dy = call.in[0].as<bf16>(), out = call.in[call.in.size() - 2].as<bf16>(),
          logs = call.in.back().as<float>(), heads = a.out, scratch = call.scratch](CudaStream stream) mutable {
    auto* const start = static_cast<char*>(scratch->memory());
    auto* const rows = reinterpret_cast<float*>(start);
    auto* const counters = reinterpret_cast<int*>(start + memory.rows_bytes());
    x.rows = rows;
    x.steps = reinterpret_cast<Step*>(start + memory.rows_bytes() + memory.counters_bytes());
    x.sums = reinterpret_cast<float*>(x.steps + memory.steps());
    x.key_sums = x.sums + memory.sums_bytes() / sizeof(float);
    const auto run = [&](auto* kernel, int64_t blocks, int threads, size_t shared, const auto&... arguments) {
      launch(kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared, stream, "attention_grad",
             arguments...);
    };
    const int64_t step_blocks = memory.tiles * x.schedule.heads;
    run(rows_kernel<kFeatures>, step_blocks + n.b * n.heads() * memory.tiles * kRows * kPacks / kSumThreads,
        kSumThreads, 0, dy, out, logs, heads, x.g, x.r, x.t, x.d, rows, x.schedule, x.s, x.steps,
        static_cast<int>(step_blocks), counters, static_cast<int>(memory.counters()));
    for (int64_t i = 0; i < memory.launches(); ++i) {
      const int64_t first = i * memory.groups, count = std::min(memory.groups, n.b * n.g - first);
      x.first_group = static_cast<int>(first);
      x.numbers = counters + i;
      x.turns = counters + memory.launches() + first * n.r * memory.tiles;
      run(tiles_kernel<S>, count * memory.parts * memory.columns, kThreads, Shared<S>::bytes(), x);
      run(finish_kernel<kFeatures>, count * n.r * memory.tiles * S::kHalves, kFinishThreads, 0, x);
      if (memory.parts > 1)
        run(add_parts_kernel<kFeatures>, count * 2 * memory.blocks * kKeys * kPacks / kSumThreads, kSumThreads, 0, x);
    }
  };
}

}  // namespace

CudaKernel attention_grad_in_one_pass(const CudaKernelCall& call, const AttentionCall& a) {
  if (a.window > 0 && (!a.causal || a.first_row + a.size.t > a.size.s)) return nullptr;
  if (!one_pass_takes(a.size) || !is_plain_bf16(call, a, true) || !is_hopper()) return nullptr;
  // Few keys take less time in blocks for themselves (attention_grad_groups_cuda.h), which take no windows.
  if (a.size.d == 64 && a.size.s < kLeastKeys && a.window == 0) return nullptr;
  return a.size.d == 64 ? prepare_one_pass<Sizes<64>>(call, a) : prepare_one_pass<Sizes<128>>(call, a);
}

}  // namespace trainctl
