// Tiles of grouped products by the tensor cores of Hopper (grouped_products_cuda.cu): memory, copies and products of
// one block of threads, which computes tiles of 128 x 256 results, 64 terms at a time.
//
// A block has three groups of four warps: one loads terms into kStages places, two compute 64 x 256 results each. The
// blocks of a cluster compute tiles below one another, which usually need the same columns of B. Then each loads a part
// of them, and the copy engine writes it to all.
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
inline constexpr int kBlocks = 2;  ///< of a cluster
inline constexpr int kThreads = (kGroups + 1) * kGroupThreads, kComputingWarps = kGroups * 4;
inline constexpr int kABytes = 2 * kLines * kTerms, kBBytes = 2 * kColumns * kTerms;
inline constexpr int kPanels = kColumns / 64;  ///< panels of B, and of bf16 results
inline constexpr int kSlots = 2;               ///< panels of results on their way to memory
inline constexpr int kTilesAtOnce = 16;        ///< tiles below one another whose columns are shared in the L2 cache
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

/// This block's place in its cluster.
__device__ inline int place_in_cluster() {
  unsigned place = 0;
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(place));
#endif
  return static_cast<int>(place);
}
/// Waits until all threads of the cluster have come.
__device__ inline void sync_cluster() {
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

// Copies to shared memory, with zeros beyond the operand. `blocks`: a bit for each block of the cluster that receives
// them, whose barrier counts the bytes; 0: this block alone.

__device__ inline void copy_box_3(unsigned char* to, const CUtensorMap& map, int x, int y, int z, float* barrier,
                                  int blocks) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  if (blocks != 0) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier)), "h"(static_cast<uint16_t>(blocks))
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
                                  int blocks) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  if (blocks != 0) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier)), "h"(static_cast<uint16_t>(blocks))
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

/// A number that is the same for all threads of the warp, which the compiler then knows.
__device__ inline int uniform(int number) { return __shfl_sync(~0u, number, 0); }
/// The group of this warp, 0 for the loading one.
__device__ inline int group_of_warp() { return uniform(static_cast<int>(threadIdx.x) / kGroupThreads); }

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

/// Initializes the barriers of the cluster. `packs`: each loading thread arrives when it has copied its packs.
__device__ inline void prepare_cluster(Shared& shared, bool packs) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(shared.here[i], 1 + (packs ? kGroupThreads : 0));
      init_barrier(shared.left[i], kBlocks * kComputingWarps);
    }
    publish_barriers();
    publish_to_copies();
  }
  sync_cluster();
}

}  // namespace trainctl::grouped
