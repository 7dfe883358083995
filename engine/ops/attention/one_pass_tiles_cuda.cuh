// The main kernel of attention's gradient in one pass (attention_grad_one_pass_cuda.cu): the five products of each pair
// of a tile of queries and a block of keys. It reads q, k, v, dy, and the numbers and the order that rows_kernel wrote;
// it writes dk and dv, or the sums of a part of them, and adds dq to f32 sums in memory.
//
// Two groups of four warps compute, each for 64 of the keys. They take turns in the product for dq, so one computes
// exponentials while the other one multiplies. In the third group, one warp loads tiles, and three add dq to the sums;
// both let the copy engine work. Products with 64 columns read shared memory as fast as it can be read, so dk, dv and
// dq have 128.
//
//   warps 0      load_tiles()   keys and values of each block, queries and dy of each tile, into a ring of stages
//   warps 1-3    add_sums()     every third tile's dq, from shared memory to the sums, when it is the block's turn
//   warps 4-11   KeysGroup      products and exponentials
#pragma once

#include "engine/ops/attention/one_pass_operands_cuda.cuh"
#include "engine/ops/small_step/tile_copies_cuda.cuh"

namespace trainctl::attention::one_pass {
namespace {

constexpr int kGroups = kKeys / kSquare;             ///< groups of warps that compute
constexpr int kAdders = 3;                           ///< warps that add dq to the sums
constexpr int kComputing = kGroups * kGroupThreads;  ///< threads that compute
constexpr int kThreads = kComputing + kGroupThreads;
constexpr int kBlockBytes = kKeys * 128;  ///< 64 features of a block of keys
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

}  // namespace
}  // namespace trainctl::attention::one_pass
