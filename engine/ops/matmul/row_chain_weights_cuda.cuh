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
/// every eighth tile. They come in the order in which they are taken, as many ahead as the warp has places, whichever
/// layers they are of; with the first layer's come its rows. Lanes work together.
class WeightStream {
 public:
  __device__ WeightStream(const Chain& chain, const Place& on)
      : chain_(chain), on_(on), places_(on.shared + chain.weights + on.row * chain.places * kWeightTile),
        tile_(on.block), depth_(on.row) {}

  /// Brings tiles as long as there is a place.
  __device__ __forceinline__ void fill() {
    __syncwarp();  // all lanes have read what lay there
    while (on_way_ < chain_.places && find()) {
      bring();
      depth_ += kWarps;
      free_ = after(free_);
      ++on_way_;
    }
  }
  /// The oldest one, once it has come.
  __device__ __forceinline__ const float* first() const {
    wait_for_copies_but<kMostPlaces - 1>(on_way_ - 1);
    __syncwarp();
    return places_ + first_ * kWeightTile;
  }
  __device__ __forceinline__ void give_back() {
    first_ = after(first_);
    --on_way_;
  }

 private:
  __device__ __forceinline__ int after(int place) const { return place + 1 == chain_.places ? 0 : place + 1; }

  /// Moves on to the next tile that is this warp's, if there is one.
  __device__ __forceinline__ bool find() {
    for (; link_ < chain_.count; ++link_) {
      const Link& l = chain_.links[link_];
      if (l.form == Form::deep && on_.row < l.depth) {
        if (depth_ >= l.depth) {
          depth_ = on_.row;
          tile_ += on_.blocks;
        }
        if (tile_ < l.tiles) return true;
      }
      tile_ = on_.block;
      depth_ = on_.row;
    }
    return false;
  }

  /// Line by line; packs of a line change places, so that both ways to read them are free of bank conflicts.
  __device__ __forceinline__ void bring() const {
    const Link& l = chain_.links[link_];
    const WeightTile tile(l, tile_, depth_);
    const int line = on_.lane / 8, pack = on_.lane % 8;
    const int from = tile.first + line * tile.pitch + pack * 4;
    float* const to = places_ + free_ * kWeightTile + line * kCols;
    const int lines = pack * 4 < tile.width ? tile.lines - line : 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool there = 4 * i < lines;
      copy_async<16>(to + 4 * i * kCols + (pack ^ i) * 4, l.w + (there ? from + 4 * i * tile.pitch : 0), there);
    }
    if (link_ == 0 && tile_ == on_.block) {
      if (chain_.x_in_packs)
        bring_rows<4>(l);
      else
        bring_rows<1>(l);
    }
    commit_copies();
  }

  /// Zeros beyond the batch, and beyond k.
  template <int kFloats>
  __device__ __forceinline__ void bring_rows(const Link& l) const {
    constexpr int kAcross = kCols / kFloats;
    float* const to = on_.shared + l.rows + depth_ * kRowTile;
    const int col = on_.lane % kAcross * kFloats, k = depth_ * kCols + col;
#pragma unroll
    for (int row0 = 0; row0 < kRows; row0 += 32 / kAcross) {
      const int row = row0 + on_.lane / kAcross;
      const bool there = row < on_.rows && k < l.k;
      copy_async<4 * kFloats>(to + place_in_rows(row, col),
                              l.x + (there ? (on_.row0 + row) * l.k + k : 0), there);
    }
  }

  const Chain& chain_;
  const Place& on_;
  float* const places_;
  int link_ = 0, tile_, depth_;            ///< what comes next
  int free_ = 0, first_ = 0, on_way_ = 0;  ///< places: the next one to fill, the oldest, and how many are filled
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
