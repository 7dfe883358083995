// The order of attention's gradient in one pass (attention_grad_one_pass_cuda.cu): which block of threads computes
// which pair of a tile of queries and a block of keys, and which turn each pair has at the sums of dq. It depends only
// on sizes.
#pragma once

#include <cstdint>

#include "engine/ops/attention/grad_workspace.h"
#include "engine/ops/host_device.h"

namespace trainctl::attention {

/// The order in which a block of keys visits the tiles of one head: up or down from `at`; after the last tile it
/// continues with the first.
struct Walk {
  int at, count, end;
  bool down;

  TRAINCTL_HOST_DEVICE int tile(int step) const {
    if (down) return at - step;
    return at + step < end ? at + step : at + step - count;
  }
  TRAINCTL_HOST_DEVICE int step(int tile) const {
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
  /// The number of queries that see a key, from its own query on; 0: all later ones. Requires that attention is causal
  /// and that each query has a key of its own.
  int window = 0;

  TRAINCTL_HOST_DEVICE int passes() const { return (blocks + columns - 1) / columns; }
  /// The block of keys of a pass; from `blocks` on, there is none.
  TRAINCTL_HOST_DEVICE int block(int column, int pass) const {
    return pass * columns + (pass % 2 == 0 ? column : columns - 1 - column);
  }
  TRAINCTL_HOST_DEVICE int column_of(int block) const {
    return block / columns % 2 == 0 ? block % columns : columns - 1 - block % columns;
  }
  TRAINCTL_HOST_DEVICE int first(int block) const {
    const int before = causal ? block * kOnePassKeys - first_row : 0;
    return before > 0 ? before / kOnePassRows : 0;
  }
  /// One past the last tile that sees the block.
  TRAINCTL_HOST_DEVICE int end(int block) const {
    if (window == 0) return tiles;
    const int last = (block + 1) * kOnePassKeys - 2 + window - first_row;
    return last < 0 ? 0 : last / kOnePassRows < tiles ? last / kOnePassRows + 1 : tiles;
  }
  TRAINCTL_HOST_DEVICE int count(int block) const {
    const int before = first(block), behind = end(block);
    return before < behind ? behind - before : 0;
  }
  /// The first tile in which some query does not see some key of the block any more.
  TRAINCTL_HOST_DEVICE int hides_from(int block) const {
    const int row = block * kOnePassKeys + window - first_row;
    return window == 0 ? tiles : row < 0 ? 0 : row / kOnePassRows;
  }
  /// Returns whether some query of the tile does not see some key of the block; `s`: number of keys.
  TRAINCTL_HOST_DEVICE bool hides(int block, int tile, int s) const {
    const int end = (block + 1) * kOnePassKeys;
    return end > s || (causal && (end - 1 > first_row + tile * kOnePassRows || tile >= hides_from(block)));
  }
  /// Number of steps over all heads.
  TRAINCTL_HOST_DEVICE int steps(int block) const { return heads * count(block); }
  /// Returns where the steps of a pass are in memory.
  TRAINCTL_HOST_DEVICE int64_t steps_at(int column, int pass) const {
    return (static_cast<int64_t>(column) * passes() + pass) * heads * tiles;
  }

  TRAINCTL_HOST_DEVICE Walk walk(int block, int head) const {
    const int from = first(block);
    const bool forwards = block / columns % 2 == 0;
    Walk walk{from, count(block), end(block), false};
    if (window > 0) return walk;
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
  TRAINCTL_HOST_DEVICE int time(int block, int head, int tile) const {
    int earlier = 0;
    for (int pass = block / columns - 1; pass >= 0; --pass) earlier += count(this->block(column_of(block), pass));
    return heads * earlier + head * count(block) + walk(block, head).step(tile);
  }
  /// The blocks of keys that see a tile: from first_seen() to before seen_end().
  TRAINCTL_HOST_DEVICE int first_seen(int tile) const {
    const int key = first_row + tile * kOnePassRows - window + 1;
    return window == 0 || key < 0 ? 0 : key / kOnePassKeys;
  }
  TRAINCTL_HOST_DEVICE int seen_end(int tile) const {
    const int keys = (tile + 1) * kOnePassRows + first_row, seen = (keys + kOnePassKeys - 1) / kOnePassKeys;
    return causal && seen < blocks ? seen : blocks;
  }
  /// Returns where the block's step for a tile of one of the heads is in memory.
  TRAINCTL_HOST_DEVICE int64_t step_at(int block, int head, int tile) const {
    return steps_at(column_of(block), block / columns) + head * count(block) + walk(block, head).step(tile);
  }
  /// The turn of one of `count` blocks at a tile, from the times at which they process it.
  TRAINCTL_HOST_DEVICE static int turn(const int* times, int count, int block) {
    const int mine = times[block];
    int turn = 0;
    for (int other = 0; other < count; ++other) turn += times[other] < mine || (times[other] == mine && other < block);
    return turn;
  }
};

}  // namespace trainctl::attention
