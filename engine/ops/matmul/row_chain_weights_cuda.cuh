// How weights, and the first rows, come into shared memory: in the background, ahead of the layer that takes them.
#pragma once

#include "engine/ops/cluster_messages_cuda.cuh"
#include "engine/ops/clusters_cuda.cuh"
#include "engine/ops/matmul/row_chain_links_cuda.cuh"

namespace trainctl::cuda {

/// A tile of a matrix as it lies in memory: of [n,k], a line is a column of the layer.
struct WeightTile {
  int first, pitch;  ///< floats from the matrix's begin; from line to line
  int lines, width;  ///< from there to its end
  __device__ __forceinline__ WeightTile(const Link& l, int tile, int depth) {
    const int line0 = kCols * (l.along ? tile : depth), at = kCols * (l.along ? depth : tile);
    pitch = l.along ? l.k : l.n;
    lines = (l.along ? l.n : l.k) - line0;
    width = pitch - at;
    first = line0 * pitch + at;
  }
};

/// The weights of deep layers, a tile at a time, each for the one warp that multiplies it: of a layer's k, a warp takes
/// every 8th tile. They come in the order in which they are taken, as many ahead as the warp has places, whichever layers
/// they are of; with the first layer's come its rows. All lanes know which tile comes first; one asks for copies.
class WeightStream {
 public:
  __device__ __forceinline__ WeightStream(const Chain& chain, const Place& on)
      : chain_(chain), on_(on), weights_(on.shared + chain.weights + on.row * chain.places * kWeightTile),
        barriers_(on.shared + kTilesCame + on.row * chain.places * 2), free_count_(chain.places) {
    if (on.lane == 0) {
      for (int place = 0; place < chain.places; ++place) prepare_announcements(barriers_ + 2 * place);
      publish_to_copies();
    }
    __syncwarp();
    open_layer();
  }

  /// Tiles for all places that are free.
  __device__ __forceinline__ void fill() {
    __syncwarp();  // all have read what lay there
#pragma unroll 1
    for (; free_count_ > 0; --free_count_) {
      bring(free_);
      free_ = after(free_);
    }
  }
  /// The oldest one, once it has come.
  __device__ __forceinline__ const float* first() const {
    wait_for_bytes(barriers_ + 2 * place_, parity_);
    return weights_ + place_ * kWeightTile;
  }
  __device__ __forceinline__ void give_back() {
    ++free_count_;
    place_ = after(place_);
    if (place_ == 0) parity_ ^= 1;
  }
  /// Whether a layer's tiles cannot all be here before its rows are.
  __device__ __forceinline__ bool exceeded_by(int depth) const { return depth > chain_.places * kWarps; }

 private:
  __device__ __forceinline__ int after(int place) const { return place + 1 == chain_.places ? 0 : place + 1; }

  __device__ __forceinline__ void bring(int place) {
    if (link_ < 0) return;
    if (on_.lane == 0) {
      float* const barrier = barriers_ + 2 * place;
      const bool rows = link_ == 0 && chain_.rows_in_tiles && tile_ == on_.block;
      const int line = along_ ? tile_ : depth_, col = along_ ? depth_ : tile_;
      announce_bytes(barrier, (kWeightTile + (rows ? kRowTile : 0)) * static_cast<int>(sizeof(float)));
      copy_tile(weights_ + place * kWeightTile, chain_.tiles[link_], col * kCols, line * kCols, barrier);
      if (rows)
        copy_tile(on_.shared + chain_.links[0].rows + depth_ * kRowTile, chain_.first_rows, depth_ * kCols, on_.row0,
                  barrier);
    }
    depth_ += kWarps;
    if (depth_ < depths_) return;
    depth_ = on_.row;
    tile_ += on_.blocks;
    if (tile_ >= tiles_) open_layer();
  }

  /// The next one of which this warp has tiles.
  __device__ __forceinline__ void open_layer() {
    tile_ = on_.block;
    depth_ = on_.row;
    for (; layer_ < chain_.deep_count; ++layer_) {
      const Link& l = chain_.links[link_ = chain_.deep[layer_]];
      tiles_ = l.tiles;
      depths_ = l.depth;
      along_ = l.along;
      if (tile_ >= tiles_ || depth_ >= depths_) continue;
      ++layer_;
      return;
    }
    link_ = -1;
  }

  const Chain& chain_;
  const Place& on_;
  float *const weights_, *const barriers_;
  int place_ = 0, parity_ = 0;                ///< the oldest tile's
  int free_ = 0, free_count_;                 ///< places to fill: the next one, and how many
  int layer_ = 0, link_ = -1, tile_, depth_;  ///< what comes next
  int tiles_ = 0, depths_ = 0;                ///< of its layer
  bool along_ = false;
};

/// The block's weights of the layers that are not deep: a tile after the other, zeros beyond the matrix. A line is 8
/// packs: a pack a thread.
__device__ __forceinline__ void fetch_slabs(const Chain& chain, const Place& on) {
  const int line = static_cast<int>(threadIdx.x / 8), col = static_cast<int>(threadIdx.x % 8) * 4;
#pragma unroll 1
  for (int i = 0; i < chain.count; ++i) {
    const Link& l = chain.links[i];
    if (l.slabs < 0) continue;
    const bool in_parts = l.form == Form::in_parts;
    float* to = on.shared + l.slabs + line * kPitch + col;
    const int tiles = in_parts ? l.depth : l.tiles;
#pragma unroll 1
    for (int at = l.wide || in_parts ? on.block : 0; at < tiles; at += on.blocks) {
      const WeightTile tile(l, in_parts ? 0 : at, in_parts ? at : 0);
      const bool there = line < tile.lines && col < tile.width;
      copy_async<16>(to, l.w + (there ? tile.first + line * tile.pitch + col : 0), there);
      to += kSlab;
    }
  }
  note_copies(on.shared + kSlabsCame);
}

}  // namespace trainctl::cuda
