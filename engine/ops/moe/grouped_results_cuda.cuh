// The way of results from registers to memory, by which a group of warps writes a tile panel by panel: put the panel
// into a slot of shared memory, as f32 or bf16, as it is or transposed, and let the copy engine write the slot. With
// kSlots slots a panel is put while the previous one is on its way.
#pragma once

#include "engine/ops/moe/grouped_tiles_cuda.cuh"

namespace trainctl::grouped {

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
  /// Sums of 64 columns as bf16; `d`: the first of them.
  __device__ void round(unsigned char* slot, const float* d) const {
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      unsigned pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = pair_of(d[8 * block + 2 * i], d[8 * block + 2 * i + 1]);
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

}  // namespace trainctl::grouped
