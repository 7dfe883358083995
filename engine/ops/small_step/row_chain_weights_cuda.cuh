// Asynchronous loads of weights and of the first rows into shared memory, ahead of the layer that reads them.
#pragma once

#include "engine/ops/small_step/cluster_messages_cuda.cuh"
#include "engine/ops/small_step/clusters_cuda.cuh"
#include "engine/ops/small_step/row_chain_links_cuda.cuh"

namespace trainctl::cuda {

/// A ring of stages for the weights of deep layers. A stage has one tile for each warp: a warp takes every 8th tile of
/// a layer's k. Tiles are loaded in the order of their use, as far ahead as there are stages, across layers.
class Ring {
 public:
  __device__ __forceinline__ Ring(const Chain& chain, const Place& on)
      : weights_(on.shared + chain.weights), barriers_(on.shared + kTilesCame), count_(chain.stages) {}

  __device__ __forceinline__ float* tile(int warp) const { return weights_ + stage_ * kStage + warp * kWeightTile; }
  __device__ __forceinline__ float* came(int warp) const { return barriers_ + 2 * (stage_ * kWarps + warp); }
  __device__ __forceinline__ float* taken() const { return barriers_ + kStagesTaken - kTilesCame + 2 * stage_; }
  __device__ __forceinline__ int parity() const { return parity_; }
  __device__ __forceinline__ void advance() {
    if (++stage_ < count_) return;
    stage_ = 0;
    parity_ ^= 1;
  }
  /// Frees the warp's tile. Called by all lanes of a warp that has read it, or that has none.
  __device__ __forceinline__ void give_back(const Place& on) {
    __syncwarp();
    if (on.lane == 0) note(taken());
    advance();
  }

 private:
  float *const weights_, *const barriers_;
  const int count_;
  int stage_ = 0, parity_ = 0;
};

/// Initialises all barriers of the block. Called by one warp, before others use them.
__device__ __forceinline__ void prepare_barriers(const Chain& chain, const Place& on) {
  const int i = on.lane;
  if (i == 0) {
    prepare_notes(on.shared + kRowsCame, kWorkers);
    prepare_notes(on.shared + kSlabsCame, 32 * kFetchers);
  }
  const bool sent = i < chain.count && chain.links[i].sent >= 0;
  const Link& l = chain.links[sent ? i : 0];
  float* const results_came = on.shared + kResultsCame + 2 * i;
  if (sent) prepare_notes(results_came, 1 + (l.wide ? max(0, on.blocks - l.tiles) : 0));
  for (int tile = i; tile < chain.stages * kWarps; tile += 32) prepare_announcements(on.shared + kTilesCame + 2 * tile);
  if (i < kMostStages) prepare_notes(on.shared + kStagesTaken + 2 * i, kWarps);
  if (i == 0) prepare_notes(on.shared + kLossesCame, kWorkers);
  __syncwarp();
  const int floats = l.wide ? l.tiles * kRowTile : on.blocks * kRows * l.sent_pitch;
  if (sent) announce_bytes(results_came, floats * static_cast<int>(sizeof(float)));
  publish_barriers();
  publish_to_copies();
  __syncwarp();
}

/// Prefetches the copy engine's tensor maps. Called by one warp.
__device__ __forceinline__ void prefetch_maps(const Chain& chain, const Place& on) {
  if (on.lane < chain.deep_count) prefetch_map(chain.tiles[chain.deep[on.lane]]);
}

/// Each of a warp's first lanes loads tiles for one of the warps that multiply. Waits for the preceding kernel as late
/// as possible.
__device__ __forceinline__ void bring_weights(const Chain& chain, const Place& on) {
  constexpr int kOfBringer = kWarps / kBringers;
  const int warp = (on.row - kWarps) * kOfBringer + on.lane;
  Ring ring(chain, on);
  bool waited = false;
#pragma unroll 1
  for (int i = 0; i < chain.deep_count; ++i) {
    const Link& l = chain.links[chain.deep[i]];
    const TileMap& map = chain.tiles[chain.deep[i]];
    const int tiles = l.tiles, depths = l.depth;
    const bool along = l.along;
#pragma unroll 1
    for (int tile = on.block; tile < tiles; tile += on.blocks) {
#pragma unroll 1
      for (int first = 0; first < depths; first += kWarps) {
        const int depth = first + warp;
        wait_for_bytes(ring.taken(), ring.parity() ^ 1);  // the previous phase; in the first round it is complete
        if (!waited) wait_for_kernel_before();
        waited = true;
        if (on.lane < kOfBringer) {  // a warp without a tile gets an empty announcement, so it never runs ahead
          float* const came = ring.came(warp);
          announce_bytes(came, depth < depths ? kWeightTile * static_cast<int>(sizeof(float)) : 0);
          if (depth < depths)
            copy_tile(ring.tile(warp), map, kCols * (along ? depth : tile), kCols * (along ? tile : depth), came);
        }
        ring.advance();
      }
    }
  }
  if (!waited) wait_for_kernel_before();
}

/// Loads the tiles of the first rows that the block reads, one warp per row, kPack floats per copy. Reads zeros beyond
/// the end.
template <int kPack>
__device__ __forceinline__ void fetch_rows(const Link& l, const Place& on) {
  const int first = l.whole_rows ? 0 : on.block, apart = (l.whole_rows ? 1 : on.blocks) * kCols;
  const int col = on.lane * kPack % kCols, tile = on.lane * kPack / kCols;  // kPack tiles at a time
  const float* const from = l.x + static_cast<int64_t>(on.row0 + on.row) * l.k;
  float* to = on.shared + l.rows + tile * kRowTile + place_in_rows(on.row, col);
#pragma unroll 2
  for (int k = first * kCols + tile * apart + col; k < l.depth * kCols; k += kPack * apart, to += kPack * kRowTile) {
    const bool there = on.row < on.rows && k < l.k;
    copy_async<kPack * 4>(to, there ? from + k : l.x, there);
  }
  note_copies(on.shared + kRowsCame);
}

/// Loads the block's weights of the layers that are not deep: all of them for `few` and `everywhere`, else the block's
/// tiles, with zeros beyond the matrix.
__device__ __forceinline__ void fetch_slabs(const Chain& chain, const Place& on) {
  constexpr int kThreadsHere = 32 * kFetchers;
  const int thread = static_cast<int>(threadIdx.x) - (kThreads - kThreadsHere), col = thread % kPacks * 4;
#pragma unroll 1
  for (int i = 0; i < chain.count; ++i) {
    const Link& l = chain.links[i];
    if (l.slabs < 0) continue;
    if (l.form == Form::few || l.form == Form::everywhere) {
#pragma unroll 1
      for (int at = thread * 4; at < l.k * l.n; at += kThreadsHere * 4)
        copy_async<16>(on.shared + l.slabs + at, l.w + at, true);
      continue;
    }
    const bool in_parts = l.form == Form::in_parts;
    float* to = on.shared + l.slabs;
    const int tiles = in_parts ? l.depth : l.tiles, pitch = l.along ? l.k : l.n, all = l.along ? l.n : l.k;
#pragma unroll 1
    for (int at = l.wide || in_parts ? on.block : 0; at < tiles; at += on.blocks, to += kWeightTile) {
      const bool down = in_parts != l.along;  // tiles follow one another along lines
#pragma unroll 1
      for (int line = thread / kPacks; line < kCols; line += kThreadsHere / kPacks) {
        const int in_line = col + (down ? 0 : at * kCols), in_all = line + (down ? at * kCols : 0);
        const bool there = in_line < pitch && in_all < all;
        copy_async<16>(to + place_in_tile(line, col), l.w + (there ? in_all * pitch + in_line : 0), there);
      }
    }
  }
  note_copies(on.shared + kSlabsCame);
}

}  // namespace trainctl::cuda
