// The order of attention's gradient in one pass (attention_grad_one_pass_cuda.cu): which block of threads computes
// which pair of a tile of queries and a block of keys, and which turn each pair has at the sums of dq. It depends only
// on sizes.
#pragma once

#include <cstdint>

#include "engine/ops/attention/grad_workspace.h"

namespace trainctl::attention {

/// The order in which a block of keys visits the tiles of one head: up or down from `at`; after the last tile it
/// continues with the first.
struct Walk {
  int at, count, end;
  bool down;

  __device__ int tile(int step) const {
    if (down) return at - step;
    return at + step < end ? at + step : at + step - count;
  }
  __device__ int step(int tile) const {
    if (down) return at - tile;
    return tile >= at ? tile - at : tile - at + count;
  }
};

/// A pair: the tile of queries, and how many blocks of keys add to its dq before.
struct Step {
  int tile, turn;
};

/// Assigns the pairs to blocks of threads and orders them. All query heads of a kv head have the same schedule.
struct OnePassSchedule {
  int tiles, blocks;  ///< numbers of tiles of queries, and of blocks of keys
  int columns;        ///< blocks of threads; the blocks of keys are dealt to them forwards, then backwards, and so on
  int first_row;
  bool causal;
  int heads;  ///< query heads of a block of threads, one after another

  __host__ __device__ int passes() const { return (blocks + columns - 1) / columns; }
  /// The block of keys of a pass; from `blocks` on, there is none.
  __device__ int block(int column, int pass) const {
    return pass * columns + (pass % 2 == 0 ? column : columns - 1 - column);
  }
  __device__ int column_of(int block) const {
    return block / columns % 2 == 0 ? block % columns : columns - 1 - block % columns;
  }
  __device__ int first(int block) const { return causal ? max(0, block * kOnePassKeys - first_row) / kOnePassRows : 0; }
  __device__ int count(int block) const { return max(0, tiles - first(block)); }
  /// Number of steps over all heads.
  __device__ int steps(int block) const { return heads * count(block); }
  /// Returns where the steps of a pass are in memory.
  __device__ int64_t steps_at(int column, int pass) const {
    return (static_cast<int64_t>(column) * passes() + pass) * heads * tiles;
  }

  __device__ Walk walk(int block, int head) const {
    const int from = first(block);
    const bool forwards = block / columns % 2 == 0;
    Walk walk{from, count(block), tiles, false};
    if (from > 0 && (forwards ? head > 0 : head == heads - 1)) {
      walk.down = true, walk.at = tiles - 1;
    } else if (!causal) {
      walk.at = static_cast<int>(static_cast<int64_t>(column_of(block)) * tiles / columns);
    } else if (from == 0) {
      const int diagonal = (block * kOnePassKeys - first_row) / kOnePassRows % tiles;
      walk.at = diagonal < 0 ? diagonal + tiles : diagonal;
    }
    return walk;
  }
  /// Returns when the block processes a tile of one of the heads that it sees.
  __device__ int time(int block, int head, int tile) const {
    int earlier = 0;
    for (int pass = block / columns - 1; pass >= 0; --pass) earlier += count(this->block(column_of(block), pass));
    return heads * earlier + head * count(block) + walk(block, head).step(tile);
  }
  __device__ Step step(int block, int index) const {
    const int head = index / count(block), tile = walk(block, head).tile(index % count(block));
    const int mine = time(block, head, tile);
    int turn = 0;
    for (int other = 0; other < blocks && first(other) <= tile; ++other) {
      const int its = time(other, head, tile);
      turn += its < mine || (its == mine && other < block);
    }
    return {tile, turn};
  }
};

}  // namespace trainctl::attention
