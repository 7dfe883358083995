// Tiles of grouped products by the tensor cores of Hopper (grouped_products_cuda.cu): memory, copies and products of
// one block of threads, which computes tiles of 128 x 256 results, 64 terms at a time.
//
// A block has three groups of four warps: one loads terms into kStages places, two compute 64 x 256 results each. Two
// blocks form a cluster, a pair: their tiles are neighbours and usually need the same columns of B. Then each loads
// half of them, and the copy engine writes it to both.
//
// An operand is stored in shared memory in one of two ways (warp_group_products_cuda.cuh):
//   by lines   [lines][64 terms]
//   by terms   panels of 64 lines, each [64 terms][64 lines]
#pragma once

#include <cuda.h>

#include "engine/ops/cuda/hopper_cuda.h"
#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/cuda/warp_group_products_cuda.cuh"
#include "engine/ops/small_step/tile_copies_cuda.cuh"

namespace trainctl::grouped {

using namespace cuda;

inline constexpr int kLines = 128, kColumns = 256, kTerms = 64, kStages = 4;
inline constexpr int kGroups = 2;  ///< groups of warps that compute
#ifndef CLUSTER
#define CLUSTER 2
#endif
inline constexpr int kPair = 2;    ///< blocks of a cluster
inline constexpr int kThreads = (kGroups + 1) * kGroupThreads, kComputingWarps = kGroups * 4;
inline constexpr int kABytes = 2 * kLines * kTerms, kBBytes = 2 * kColumns * kTerms;
inline constexpr int kPanels = kColumns / 64;  ///< panels of B, and of bf16 results
inline constexpr int kSlots = 2;               ///< panels of results on their way to memory
inline constexpr int kPairsAtOnce = 8;         ///< pairs of lines of tiles that share columns in the L2 cache
inline constexpr int kMostExperts = 384;

struct alignas(1024) Shared {
  unsigned char a[kStages][kABytes], b[kStages][kBBytes];
  unsigned char out[kGroups][kSlots][kSquareBytes];
  alignas(8) float here[kStages][2], left[kStages][2];
  int tiles[kMostExperts + 1];  ///< the first tile of rows of each expert

  __device__ static Shared& get() {
    extern __shared__ unsigned char bytes[];
    const unsigned past = shared_address(bytes) % 1024;
    return *reinterpret_cast<Shared*>(bytes + (past == 0 ? 0 : 1024 - past));
  }
  static constexpr size_t bytes() { return sizeof(Shared) + 1024; }
};
static_assert(Shared::bytes() <= 227 * 1024);

/// This block's place in its pair.
__device__ inline int place_in_pair() {
  unsigned place = 0;
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(place));
#endif
  return static_cast<int>(place);
}
/// Waits until all threads of both blocks have come.
__device__ inline void sync_pair() {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#endif
}
/// An arrival at the barrier of one of the blocks, after this thread's reads. A release for the cluster would wait for
/// all of its accesses, which takes as long as a product.
__device__ inline void arrive_in_block(float* barrier, int block) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile(
      "{.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(shared_address(barrier)),
      "r"(block)
      : "memory");
#endif
}

template <int Threads>
__device__ void sync_group(int barrier) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(Threads) : "memory");
#endif
}
template <int Count>
__device__ void take_registers() {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
#endif
}
template <int Count>
__device__ void give_registers() {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
#endif
}

// Copies to shared memory, with zeros beyond the operand. `both`: to both blocks of the pair, whose barriers count the
// bytes.

__device__ inline void copy_box_3(unsigned char* to, const CUtensorMap& map, int x, int y, int z, float* barrier,
                                  bool both, int mask) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  if (both) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier)), "h"(static_cast<uint16_t>(mask))
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
        : "memory");
  }
#endif
}
__device__ inline void copy_box_4(unsigned char* to, const CUtensorMap& map, int x, int y, int z, int w, float* barrier,
                                  bool both, int mask) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  if (both) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier)), "h"(static_cast<uint16_t>(mask))
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
        : "memory");
  }
#endif
}
/// 16 bytes; zeros if not `there`.
__device__ inline void copy_pack(unsigned char* to, const uint4* from, bool there) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0)
               : "memory");
#endif
}
/// An arrival at the barrier when all copies of packs by this thread have arrived.
__device__ inline void arrive_after_packs(float* barrier) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}

#ifndef EVICT
#define EVICT 0
#endif
#ifndef CLUSTER
#define CLUSTER 2
#endif
// Copies to memory, of boxes without what is beyond the operand.

template <bool Adds>
__device__ void box_to_memory(const CUtensorMap& map, int x, int y, int z, const unsigned char* from) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
#ifdef NOWRITE
  if (x != -1234567) return;
#endif
  if constexpr (Adds) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
        "r"(x), "r"(y), "r"(z), "r"(shared_address(from))
        : "memory");
  } else if constexpr (EVICT) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%1, %2, %3}], [%4], %5;" ::"l"(&map),
                 "r"(x), "r"(y), "r"(z), "r"(shared_address(from)), "l"(0x12F0000000000000ull)
                 : "memory");
  } else {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
                 "r"(x), "r"(y), "r"(z), "r"(shared_address(from))
                 : "memory");
  }
#endif
}
__device__ inline void end_boxes() {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
/// All but the last N groups of this thread's boxes have been read from shared memory.
template <int N>
__device__ void boxes_read() {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
#endif
}
/// They are in memory.
__device__ inline void boxes_done() {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

/// Columns of a tile whose sums a product adds to: all, or half of them, so that the sums of one half are written while
/// those of the other are computed.
enum class Columns : uint8_t { first, second, all };

/// d += a b for 64 lines, some columns and 16 terms, or d = a b if `adds` is 0. `b` begins at the first of the columns.
/// AByTerms, BByTerms: 1 if the operand is stored by terms.
template <Columns C, int AByTerms, int BByTerms>
__device__ void add_terms(float (&d)[128], uint64_t a, uint64_t b, int adds) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  if constexpr (C == Columns::all) {
    asm volatile(TRAINCTL_PRODUCT("256", "%132", "{" TRAINCTL_PLACES_128 "}, %128, %129, adds, 1, 1, %130, %131")
                 : TRAINCTL_SUMS_128(TRAINCTL_IS_CHANGED, d, 0)
                 : "l"(a), "l"(b), "n"(AByTerms), "n"(BByTerms), "r"(adds));
  } else if constexpr (C == Columns::first) {
    asm volatile(TRAINCTL_PRODUCT("128", "%68", "{" TRAINCTL_PLACES_64 "}, %64, %65, adds, 1, 1, %66, %67")
                 : TRAINCTL_SUMS_64(TRAINCTL_IS_CHANGED, d, 0)
                 : "l"(a), "l"(b), "n"(AByTerms), "n"(BByTerms), "r"(adds));
  } else {
    asm volatile(TRAINCTL_PRODUCT("128", "%68", "{" TRAINCTL_PLACES_64 "}, %64, %65, adds, 1, 1, %66, %67")
                 : TRAINCTL_SUMS_64(TRAINCTL_IS_CHANGED, d, 64)
                 : "l"(a), "l"(b), "n"(AByTerms), "n"(BByTerms), "r"(adds));
  }
#endif
}
/// After products_done(): the compiler must not read the sums of a half earlier.
template <Columns Half>
__device__ void settle_half(float (&d)[128]) {
  static_assert(Half != Columns::all);
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i + (Half == Columns::first ? 0 : 64)])::"memory");
}

/// The group of this warp, 0 for the loading one. The compiler knows that it is the same for all threads of a warp.
__device__ inline int group_of_warp() { return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroupThreads, 0); }

#ifndef ALL_AS_HALVES
#define ALL_AS_HALVES 1
#endif
#ifndef HEAD
#define HEAD 3
#endif
#ifndef TAIL
#define TAIL 3
#endif
/// Steps at the begin and at the end of a tile that compute one half of its columns after the other.
inline constexpr int kHead = HEAD, kTail = TAIL;
inline constexpr int kLeastSteps = kHead + kTail;  ///< of a tile; those behind its terms are zeros

/// A number that is the same for all threads of the warp, which the compiler then knows.
__device__ inline int uniform(int number) { return __shfl_sync(~0u, number, 0); }

/// Reads the places one after another, as a group of computing warps. AByTerms, BByTerms: as in add_terms();
/// Gathered: A consists of packs, which the tensor cores do not see before a fence.
template <int AByTerms, int BByTerms, bool Gathered, int Blocks = kPair>
struct TermsReader {
  Shared& shared;
  int group = group_of_warp() - 1, stage = 0, parity = 0;

  /// d = a b over the terms of `steps` places, at least kLeastSteps. The second half of the sums is complete when the
  /// next call writes it, or after finish(). While the tensor cores compute the first products of the first half,
  /// write_former(part, of) is called for the former sums of the second half, and while they compute the last products
  /// of the second half, write_first(part, of) for the sums of the first half.
  template <class Former, class First, class Meanwhile>
  __device__ __forceinline__ void multiply(float (&d)[128], int steps, const Former& write_former,
                                           const First& write_first, const Meanwhile& meanwhile) {
#pragma unroll
    for (int i = 0; i < kHead; ++i) {
      begin(d, i > 0);
      // The compiler would wait for all products before it reads any sums.
      if (i == 0) products_done<1>();
      if (i == 1) products_done<2>();
      if (i == 2) products_done<3>();
      settle_half<Columns::second>(d);
      write_former(i, kHead);
    }
#pragma unroll
    for (int i = 0; i < kHead; ++i) issue<Columns::second>(d, back(kHead - i), i > 0);
    leave_issued<kHead, ALL_AS_HALVES ? kHead - 1 : kHead>([](int) {});
    if (!ALL_AS_HALVES) {
      products_done<0>();
      settle(d);
    }
    for (int i = kHead; i < steps - kTail; ++i) {
      arrived();
      issue<Columns::all>(d, stage, true);
      next();
      products_done<1>();
      if (ALL_AS_HALVES || i > kHead) leave(2);
    }
    if (!ALL_AS_HALVES) {
      products_done<0>();
      settle(d);
      if (steps > kHead + kTail) leave(1);
    }
    begin(d, true);
    if (ALL_AS_HALVES) {
      products_done<1>();
      leave(2);
    }
#pragma unroll
    for (int i = 1; i < kTail; ++i) begin(d, true);
#pragma unroll
    for (int i = 0; i < kTail; ++i) issue<Columns::second>(d, back(kTail - i), true);
    meanwhile();
    products_done<kTail>();
    settle_half<Columns::first>(d);
    write_first(0, kTail);
    leave_issued<kTail, kTail>([&](int i) { write_first(i + 1, kTail); });
    settle_half<Columns::second>(d);
  }
  /// Lets the terms of `steps` places pass.
  __device__ void pass(int steps) {
    for (int i = 0; i < steps; ++i) {
      wait_for_bytes(shared.here[stage], parity);
      next();
      leave(1);
    }
  }

 private:
  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  __device__ int back(int count) const { return (stage + kStages - count) % kStages; }
  /// A warp no longer reads the place `count` places back, which both blocks fill.
  __device__ void leave(int count) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < Blocks) arrive_in_block(shared.left[back(count)], lane);
  }
  /// Waits for the terms of the next place.
  __device__ void arrived() {
    wait_for_bytes(shared.here[stage], parity);
    if constexpr (Gathered) publish_to_copies();
  }
  /// Products of a place.
  template <Columns C>
  __device__ void issue(float (&d)[128], int place, bool adds) {
    const unsigned a = shared_address(shared.a[place]) + static_cast<unsigned>(group) * kSquareBytes,
                   b = shared_address(shared.b[place]) + (C == Columns::second ? kBBytes / 2 : 0);
    const uint64_t of_a = square_at(a), of_b = BByTerms ? squares_at(b, kSquareBytes) : square_at(b);
    begin_products();
    if constexpr (C == Columns::all && ALL_AS_HALVES) {
#pragma unroll
      for (int k = 0; k < kTerms / 16; ++k) {
        add_terms<Columns::first, AByTerms, BByTerms>(d, of_a + k * (AByTerms ? kNextLines : kNextColumns), of_b + k * (BByTerms ? kNextLines : kNextColumns), adds || k > 0);
        add_terms<Columns::second, AByTerms, BByTerms>(d, of_a + k * (AByTerms ? kNextLines : kNextColumns), of_b + kBBytes / 2 / 16 + k * (BByTerms ? kNextLines : kNextColumns), adds || k > 0);
      }
    } else {
#pragma unroll
    for (int k = 0; k < kTerms / 16; ++k)
      add_terms<C, AByTerms, BByTerms>(d, of_a + k * (AByTerms ? kNextLines : kNextColumns),
                                       of_b + k * (BByTerms ? kNextLines : kNextColumns), adds || k > 0);
    }
    end_products();
  }
  /// The first half of the columns of the next place.
  __device__ void begin(float (&d)[128], bool adds) {
    arrived();
    issue<Columns::first>(d, stage, adds);
    next();
  }
  /// Leaves the first N of the last Count places, whose products have been issued one after another; calls between(i)
  /// behind all of them but the last.
  template <int Count, int N, int I = 0, class Between>
  __device__ __forceinline__ void leave_issued(const Between& between) {
    if constexpr (I < N) {
      products_done<Count - 1 - I>();
      leave(Count - I);
      if constexpr (I + 1 < Count) between(I);
      leave_issued<Count, N, I + 1>(between);
    }
  }
};

/// The place that the loading warps fill next.
struct TermsPlace {
  int stage = 0, parity = 1;

  /// Waits until it is empty.
  __device__ void wait(Shared& shared) const { wait_for_bytes(shared.left[stage], parity); }
  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

/// The address of pack `pack` of line `line` of a tile of lines of 128 bytes.
__device__ inline int pack_at(int line, int pack) { return line * 128 + ((pack ^ line % 8) * 16); }

/// Writes the results of a group of warps to memory through shared memory, panel by panel: 64 lines of 128 bytes each.
struct ResultsWriter {
  unsigned char (&slots)[kSlots][kSquareBytes];
  int group, warp, lane;
  bool first;  ///< the thread that asks the copy engine

  __device__ explicit ResultsWriter(Shared& shared)
      : slots(shared.out[group_of_warp() - 1]),
        group(group_of_warp() - 1),
        warp(static_cast<int>(threadIdx.x) / 32 % 4),
        lane(static_cast<int>(threadIdx.x) % 32),
        first(threadIdx.x % kGroupThreads == 0) {}
  /// The first of this thread's two lines; the other is 8 lines below.
  __device__ int line() const { return 16 * warp + lane / 4; }
  /// This thread's first column among each eight.
  __device__ int column() const { return 2 * (lane % 4); }

  /// Fills the slot of a panel by put() and writes it by write(slot), for panels one after another.
  template <class Put, class Write>
  __device__ void panel(int number, const Put& put, const Write& write) const {
    unsigned char* const slot = slots[number % kSlots];
    if (first) boxes_read<kSlots - 1>();
    sync_group<kGroupThreads>(1 + group);
    put(slot);
    publish_to_copies();
    sync_group<kGroupThreads>(1 + group);
    write(slot);
    if (first) end_boxes();
  }
  /// Sums of 64 columns as bf16, times a weight of each line; `d`: the first of them.
  __device__ void round(unsigned char* slot, const float* d, const float (&weights)[2]) const {
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      unsigned pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        pairs[i] = pair_of(weights[i % 2] * d[8 * block + 2 * i], weights[i % 2] * d[8 * block + 2 * i + 1]);
      put_matrices(slot, block, pairs);
    }
  }
  /// Sums of 64 columns as bf16, which become lines.
  __device__ void round_transposed(unsigned char* slot, const float* d) const {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      const int to_line = 16 * block + lane / 16 * 8 + lane % 8, pack = 2 * warp + lane / 8 % 2;
      const float* const v = d + 8 * block;
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       shared_address(slot + pack_at(to_line, pack))),
                   "r"(pair_of(v[0], v[1])), "r"(pair_of(v[2], v[3])), "r"(pair_of(v[4], v[5])),
                   "r"(pair_of(v[6], v[7]))
                   : "memory");
    }
#endif
  }
  /// Sums of 32 columns as f32, which become lines: two boxes of 32 lines by 32 columns.
  __device__ void put_transposed(unsigned char* slot, const float* d) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int to_line = i / 4 * 8 + column() + i % 2, to_column = line() % 32 + i / 2 % 2 * 8;
      *reinterpret_cast<float*>(slot + warp / 2 * kSquareBytes / 2 + pack_at(to_line, to_column / 4) +
                                to_column % 4 * 4) = d[i];
    }
  }
  /// Sums of 32 columns as f32.
  __device__ void put(unsigned char* slot, const float* d) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<float2*>(slot + pack_at(line() + 8 * h, 2 * j + lane % 4 / 2) + lane % 2 * 8) =
            make_float2(d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
    }
  }

 private:
  /// Four 8 x 8 matrices of columns 16 block .. 16 block + 15.
  __device__ void put_matrices(unsigned char* slot, int block, const unsigned* pairs) const {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
    const unsigned address = shared_address(slot) + (pack_at(16 * warp + lane % 16, lane / 16) ^ (32 * block));
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(pairs[0]),
                 "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
#endif
  }
};

/// The part `part` of `of` parts of `count` things: from begin() to end(). The first parts are the larger ones.
struct PartOf {
  int part, of, count;
  __device__ constexpr int begin() const { return (part * count + of - 1) / of; }
  __device__ constexpr int end() const { return ((part + 1) * count + of - 1) / of; }
};

/// Initializes the barriers of both blocks. `packs`: each loading thread arrives when it has copied its packs.
__device__ inline void prepare_pair(Shared& shared, bool packs, int blocks = kPair) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(shared.here[i], 1 + (packs ? kGroupThreads : 0));
      init_barrier(shared.left[i], blocks * kComputingWarps);
    }
    publish_barriers();
    publish_to_copies();
  }
  sync_pair();
}

}  // namespace trainctl::grouped
