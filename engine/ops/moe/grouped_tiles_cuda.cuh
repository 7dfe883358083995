// Tiles of grouped products by the tensor cores of Hopper (grouped_products_cuda.cu): memory, copies and products of
// one block of threads, which computes tiles of 128 x 256 results, 64 terms at a time. In these files
//
//   lines, columns, terms   are the M, N and K of a product: A is [lines, terms], B is [terms, columns]
//   pack                    is 8 bf16 numbers, 16 bytes
//   panel                   is 64 columns of results, or 64 lines of an operand that is stored by terms
//   stage                   is one of kStages buffers in shared memory, each with 64 terms of a tile of A and of B
//
// A block has three groups of four warps: one loads terms into the stages, two compute 64 x 256 results each. Two
// blocks form a cluster, a pair: their tiles are neighbours and usually need the same columns of B. Then each loads
// half of them, and the copy engine writes it to both.
//
// An operand is stored in shared memory in one of two ways (warp_group_products_cuda.cuh):
//   by lines   [lines][64 terms], which is K-major
//   by terms   panels of 64 lines, each [64 terms][64 lines], which is MN-major
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
  alignas(8) float full[kStages][2], empty[kStages][2];  ///< barriers: the stage has been loaded, or has been read
  int tiles[kMostExperts + 1];  ///< the first tile of rows of each expert; in sums_kernel its first row

  __device__ static Shared& get() {
    extern __shared__ unsigned char bytes[];
    const unsigned past = shared_address(bytes) % 1024;
    return *reinterpret_cast<Shared*>(bytes + (past == 0 ? 0 : 1024 - past));
  }
  static constexpr size_t bytes() { return sizeof(Shared) + 1024; }
};
static_assert(Shared::bytes() <= 227 * 1024);

/// This block's number in its pair: 0 or 1.
__device__ inline int cta_in_pair() {
  unsigned cta = 0;
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(cta));
#endif
  return static_cast<int>(cta);
}
/// Waits until all threads of both blocks have arrived here.
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
                                  bool both) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  if (both) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier)), "h"(static_cast<uint16_t>(3))
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
                                  bool both) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  if (both) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier)), "h"(static_cast<uint16_t>(3))
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
/// Copies a pack, or writes zeros if `exists` is false.
__device__ inline void copy_pack(unsigned char* to, const uint4* from, bool exists) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(exists ? 16 : 0)
               : "memory");
#endif
}
/// An arrival at the barrier when all copies of packs by this thread have arrived.
__device__ inline void arrive_after_packs(float* barrier) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}

// Copies to memory, of boxes without what is beyond the operand.

template <bool Adds>
__device__ void box_to_memory(const CUtensorMap& map, int x, int y, int z, const unsigned char* from) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  if constexpr (Adds) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
        "r"(x), "r"(y), "r"(z), "r"(shared_address(from))
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
/// Waits until all but the last N groups of this thread's boxes have been read from shared memory.
template <int N>
__device__ void boxes_read() {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
#endif
}
/// Waits until all of this thread's boxes have been written to memory.
__device__ inline void boxes_done() {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

/// Returns `number`, which must be the same for all threads of the warp, in a form that tells the compiler so.
__device__ inline int uniform(int number) { return __shfl_sync(~0u, number, 0); }
/// The group of this warp, 0 for the loading one.
__device__ inline int group_of_warp() { return uniform(static_cast<int>(threadIdx.x) / kGroupThreads); }

/// The stage that a group of computing warps reads next. Each warp releases the stages one after another.
struct ReadStage {
  int stage = 0, parity = 0;

  /// Waits until the stage is loaded. Gathered: A was copied pack by pack, which the tensor cores do not see without a
  /// fence.
  template <bool Gathered>
  __device__ void wait(Shared& shared) const {
    wait_for_bytes(shared.full[stage], parity);
    if constexpr (Gathered) publish_to_copies();
  }
  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  /// The stage `count` stages back.
  __device__ int back(int count) const { return (stage + kStages - count) % kStages; }
  /// Tells both blocks, which fill it, that this warp no longer reads the stage `count` stages back.
  __device__ void release(Shared& shared, int count) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < kPair) arrive_in_block(shared.empty[back(count)], lane);
  }
};

/// d += a b for 64 lines, 256 columns and 16 terms, or d = a b if `adds` is 0. BByTerms: 1 if B is stored by terms.
template <int BByTerms>
__device__ void add_all_columns(float (&d)[128], uint64_t a, uint64_t b, int adds) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile(TRAINCTL_PRODUCT("256", "%131", "{" TRAINCTL_PLACES_128 "}, %128, %129, adds, 1, 1, 0, %130")
               : TRAINCTL_SUMS_128(TRAINCTL_IS_CHANGED, d, 0)
               : "l"(a), "l"(b), "n"(BByTerms), "r"(adds));
#endif
}

/// Products of tiles of rows, as a group of computing warps. BByTerms: as in add_all_columns(); Gathered: as in
/// ReadStage.
template <int BByTerms, bool Gathered>
struct RowsReader {
  Shared& shared;
  int group = group_of_warp() - 1;
  ReadStage at = {};

  /// d = a b over the terms of `steps` stages, at least one. Calls meanwhile() while the tensor cores compute the last
  /// products.
  template <class Meanwhile>
  __device__ void multiply(float (&d)[128], int steps, const Meanwhile& meanwhile) {
    for (int i = 0; i < steps; ++i) {
      at.wait<Gathered>(shared);
      const unsigned a = shared_address(shared.a[at.stage]) + static_cast<unsigned>(group) * kSquareBytes,
                     b = shared_address(shared.b[at.stage]);
      const uint64_t of_a = square_at(a), of_b = BByTerms ? squares_at(b, kSquareBytes) : square_at(b);
      begin_products();
#pragma unroll
      for (int k = 0; k < kTerms / 16; ++k)
        add_all_columns<BByTerms>(d, of_a + k * kNextColumns, of_b + k * (BByTerms ? kNextLines : kNextColumns),
                                  k > 0 || i > 0);
      end_products();
      at.next();
      products_done<1>();
      if (i > 0) at.release(shared, 2);
    }
    meanwhile();
    products_done<0>();
    settle(d);
    at.release(shared, 1);
  }
  /// Skips the terms of `steps` stages, for a group without lines in the tile.
  __device__ void skip(int steps) {
    for (int i = 0; i < steps; ++i) {
      wait_for_bytes(shared.full[at.stage], at.parity);
      at.next();
      at.release(shared, 1);
    }
  }
};

/// The stage that the loading warps fill next.
struct LoadStage {
  int stage = 0, parity = 1;

  /// Waits until it is empty.
  __device__ void wait(Shared& shared) const { wait_for_bytes(shared.empty[stage], parity); }
  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

/// The offset of pack `pack` of line `line` in a tile whose lines have 128 bytes; packs are swizzled.
__device__ inline int pack_at(int line, int pack) { return line * 128 + ((pack ^ line % 8) * 16); }

/// Initializes the barriers of both blocks. `packs`: each loading thread also arrives at `full`, when it has copied its
/// packs.
__device__ inline void prepare_pair(Shared& shared, bool packs) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(shared.full[i], 1 + (packs ? kGroupThreads : 0));
      init_barrier(shared.empty[i], kPair * kComputingWarps);
    }
    publish_barriers();
    publish_to_copies();
  }
  sync_pair();
}

}  // namespace trainctl::grouped
