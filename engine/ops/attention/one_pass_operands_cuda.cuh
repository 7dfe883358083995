// Definitions shared by the kernels of attention's one-pass gradient (attention_grad_one_pass_cuda.cu): the sizes of
// tiles and blocks, and the operands, with the layout of the sums and of the order of pairs in memory.
#pragma once

#include <cuda.h>

#include "engine/ops/attention/grad_workspace.h"
#include "engine/ops/attention/one_pass_schedule_cuda.cuh"
#include "engine/ops/attention/score_tiles_cuda.cuh"

namespace trainctl::attention::one_pass {
namespace {

using namespace cuda;

constexpr int kRows = kOnePassRows;  ///< queries of a tile
constexpr int kKeys = kOnePassKeys;  ///< keys of a block

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

/// A tile in memory with a mask has this bit.
constexpr int kMasked = 1 << 30;
__device__ int tile_of(const Step& step) { return step.tile & (kMasked - 1); }
__device__ bool is_masked(const Step& step) { return step.tile >= kMasked; }

}  // namespace
}  // namespace trainctl::attention::one_pass
