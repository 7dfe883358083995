// The products of a chain. Whichever way a layer's sums are made, in the end each thread has one result of a tile: the
// warp's row, the lane's column. So a thread takes slopes from what it kept itself, and a warp has kept whole rows.
#pragma once

#include "engine/ops/small_step/row_chain_weights_cuda.cuh"
#include "engine/ops/small_step/three_tf32_cuda.cuh"

namespace trainctl::cuda {

// Deep layers: the warps share k

/// How the lanes of a warp share a tile, as fragments of mma have it: weights are A, of which 16 columns are a
/// fragment's rows, and rows are B. Which column, row and k of a tile is which of mma's is free, as long as A and B, or
/// A and the sums, agree. Here k (in_group, in_group + 4) of step i is number i of the packs (k, k + 4), columns
/// (group, group + 8) of a fragment are (4 out, 4 out + 1), of the other fragment the two behind them, and rows stand
/// so that 8 lanes read packs of 8 places without bank conflicts.
struct Lane {
  int weights[4], rows;  ///< packs of a tile that it reads of the first half of k: a line each; of its row
  int sums;              ///< where it leaves its sums: of a row, and of the one 4 further on

  __device__ __forceinline__ Lane(int lane, bool along) : sums((lane & 3) * kSumsPitch + lane / 4 * 4) {
    const int row = lane / 8 + (lane & 4), out = lane / 4, k = lane & 3;
    const int line = 4 * (along ? out : k), pack = along ? k : out;
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[i] = (line + i) * kPacks + (pack ^ (line + i) % 8);
    rows = row * kPacks + (k ^ row);
  }
};

/// Of a tile's columns, 16 a fragment.
using ChainSums = TileSums[2][1];

__device__ __forceinline__ void read_pack(const float* from, int pack, float (&to)[4]) {
  const float4 v = reinterpret_cast<const float4*>(from)[pack];
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

/// Adds a tile of rows times one of weights.
template <bool kAlong>
__device__ __forceinline__ void multiply(const Lane& lane, const float* x, const float* w, ChainSums& sums) {
  float rows[2][4], weights[2][4][4];  // [half of k][step]; of each half [column][step], or the other way round
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      read_pack(w, kAlong ? lane.weights[i] ^ 4 * half : lane.weights[i] + 16 * half * kPacks, weights[half][i]);
    read_pack(x, lane.rows ^ 4 * half, rows[half]);
  }
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    Fragment<4> a[2];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int half = j % 4 / 2, out = j / 4 * 2 + j % 2;
      a[j / 4].set(j % 4, kAlong ? weights[half][out][step] : weights[half][step][out]);
    }
    const float b[1][2] = {{rows[0][step], rows[1][step]}};
    add_products(a, b, sums);
  }
#pragma unroll
  for (TileSums(&fragment)[1] : sums) fragment[0].keep();
}

/// In a tree, so that little waits for what is before it.
__device__ __forceinline__ float sum_of_four(const float* first, int apart) {
  return (first[0] + first[apart]) + (first[2 * apart] + first[3 * apart]);
}
__device__ __forceinline__ float sum_of_eight(const float* first, int apart) {
  return sum_of_four(first, apart) + sum_of_four(first + 4 * apart, apart);
}

/// Of the warp's row and the lane's column of a tile; zeros fill it beyond the end.
__device__ __forceinline__ float sum_of_tile(const Link& l, const Place& on, const float* x, const float* w,
                                             int depth) {
  float sums[4] = {};
  const auto add = [&](int k, const float4& weights) {
    const float4 rows = *reinterpret_cast<const float4*>(x + place_in_rows(on.row, k));
    sums[0] += rows.x * weights.x;
    sums[1] += rows.y * weights.y;
    sums[2] += rows.z * weights.z;
    sums[3] += rows.w * weights.w;
  };
  if (l.along) {
#pragma unroll
    for (int k = 0; k < kCols; k += 4) add(k, *reinterpret_cast<const float4*>(w + place_in_tile(on.lane, k)));
  } else {
#pragma unroll 2
    for (int k = 0; k < depth; k += 4)
      add(k, {w[place_in_tile(k, on.lane)], w[place_in_tile(k + 1, on.lane)], w[place_in_tile(k + 2, on.lane)],
              w[place_in_tile(k + 3, on.lane)]});
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// The warps' tiles by tensor cores, a tile a warp; what is left behind them, if that is little, as all threads' own
/// sums: else some warps would multiply, and the others wait.
__device__ __forceinline__ float deep_sum(const Link& l, const Place& on, Ring& ring) {
  const Lane lane(on.lane, l.along);
  ChainSums sums{};
  const int left = l.depth % kWarps <= kMostLeft ? l.depth % kWarps : 0;
  const float* x = on.shared + l.rows + on.row * kRowTile;
#pragma unroll 1
  for (int depth = on.row; depth - on.row < l.depth - left; depth += kWarps, x += kWarps * kRowTile) {
    wait_for_bytes(ring.came(on.row), ring.parity());
    if (depth < l.depth) {
      if (l.along)
        multiply<true>(lane, x, ring.tile(on.row), sums);
      else
        multiply<false>(lane, x, ring.tile(on.row), sums);
    }
    ring.give_back(on);
  }
  float v = 0;
#pragma unroll 1
  for (int i = 0; i < left; ++i) {
    wait_for_bytes(ring.came(i), ring.parity());
    v += sum_of_tile(l, on, x + (i - on.row) * kRowTile, ring.tile(i), kCols);
  }
  if (left > 0) ring.give_back(on);
  meet_workers();  // all have read the sums of the layer before
  float* const of_warps = on.shared + kSums;
  float* const to = of_warps + on.row * kSumsOfWarp + lane.sums;
  const TileSums &first = sums[0][0], &second = sums[1][0];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    *reinterpret_cast<float4*>(to + i * 4 * kSumsPitch) = {first.sum(i), first.sum(i + 2), second.sum(i),
                                                           second.sum(i + 2)};
  meet_workers();
  return v + sum_of_eight(of_warps + on.row * kSumsPitch + on.lane, kSumsOfWarp);
}

// Layers with no more than 32 of k for the block

/// The own'th tile of a shallow layer, or the block's part of the sums of one that is made in parts.
__device__ __forceinline__ float direct_sum(const Link& l, const Place& on, int own) {
  const bool in_parts = l.form == Form::in_parts;
  const float* x = on.shared + l.rows;
  const float* w = on.shared + l.slabs + own * kWeightTile;
  int depth = in_parts ? on.block : 0;
  if (in_parts && l.whole_rows) x += depth * kRowTile;
  wait_for_bytes(on.shared + kSlabsCame);
  float sum = 0;
#pragma unroll 1
  for (; depth < l.depth; depth += on.blocks) {
    sum += sum_of_tile(l, on, x, w, min(l.k - depth * kCols, kCols));
    x += (l.whole_rows ? on.blocks : 1) * kRowTile;
    w += kWeightTile;
  }
  return sum;
}

// Few columns, and back from them: of whole rows, a warp its row

/// Lane c gets column c's sum.
__device__ __forceinline__ float few_sums(const Link& l, const Place& on) {
  const int lane = on.lane, packs = l.k / 4;
  const float* const x = on.shared + l.rows + lane / 8 * kRowTile + place_in_rows(on.row, lane % 8 * 4);
  const float* w = on.shared + l.slabs + lane * 4;
  wait_for_bytes(on.shared + kSlabsCame);
  float v = 0;
#pragma unroll 1
  for (int col = 0; col < l.n; ++col, w += l.k) {
    float sums[4] = {};
#pragma unroll 4
    for (int i = 0; lane + 32 * i < packs; ++i) {
      const float4 rows = *reinterpret_cast<const float4*>(x + i * 4 * kRowTile);
      const float4 weights = *reinterpret_cast<const float4*>(w + i * 4 * kCols);
      sums[0] += rows.x * weights.x;
      sums[1] += rows.y * weights.y;
      sums[2] += rows.z * weights.z;
      sums[3] += rows.w * weights.w;
    }
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
    if (lane == col) v = sum;
  }
  return v;
}

/// All tiles of its rows; the block's own ones go to memory too.
__device__ __forceinline__ void make_everywhere(const Link& l, const Place& on) {
  const int in_tile = place_in_rows(on.row, on.lane);
  const float4 rows = *reinterpret_cast<const float4*>(on.shared + l.rows + place_in_rows(on.row, 0));
  const float* const w = on.shared + l.slabs;
  const float* const slopes = on.shared + max(l.slope, 0) + in_tile;
  float* const kept = on.shared + l.kept + in_tile;
#pragma unroll 4
  for (int tile = 0; tile < l.tiles; ++tile) {
    const int col = tile * kCols + on.lane;
    float v = 0;
    if (col < l.n) {
      v = rows.x * w[col];
      if (l.k > 1) v += rows.y * w[l.n + col];
      if (l.k > 2) v += rows.z * w[2 * l.n + col];
      if (l.k > 3) v += rows.w * w[3 * l.n + col];
      if (l.slope >= 0 && !(slopes[tile * kRowTile] > 0.0f)) v = 0;
    }
    kept[tile * kRowTile] = v;
  }
  meet_workers();  // the next layer's warps take parts of all rows
#pragma unroll 1
  for (int tile = on.block; tile < l.tiles; tile += on.blocks) {
    const int col = tile * kCols + on.lane;
    if (on.row < on.rows && col < l.n) l.y[(on.row0 + on.row) * l.n + col] = kept[tile * kRowTile];
  }
}

// What is done with sums

/// Four lanes' neighbours to all blocks of the cluster, which `counter` counts there. Each block begins with itself, so
/// that not all send to the same one.
__device__ __forceinline__ void send_to_all(const Place& on, float v, float* to, bool there, float* counter) {
  const int lane = on.lane, first = lane & ~3;
  const float4 four{__shfl_sync(~0u, v, first), __shfl_sync(~0u, v, first + 1), __shfl_sync(~0u, v, first + 2),
                    __shfl_sync(~0u, v, first + 3)};
  if (!there) return;
  const int block = on.block + lane % 4, last = on.blocks - 1;
#pragma unroll
  for (int i = 0; i < kMostBlocks; i += 4) {
    if (i == kMostBlocks / 2 && last < kMostBlocks / 2) break;  // it is the one or the other
    send((block + i) & last, to, four, counter);
  }
}

/// All blocks' parts of each sum, in their order.
__device__ __forceinline__ float sum_of_parts(const Link& l, const Place& on, float part, float* counter) {
  const int lane = on.lane, first = lane & ~3, pitch = l.sent_pitch;
  float* const parts = on.shared + l.sent + on.row * pitch;
  send_to_all(on, part, parts + on.block * kRows * pitch + first, first < pitch, counter);
  wait_for_bytes(counter);
  float sum = 0;
  if (lane < pitch) {
#pragma unroll 1
    for (int block = 0; block < on.blocks; block += 8)
      sum += sum_of_eight(parts + block * kRows * pitch + lane, kRows * pitch);
  }
  return sum;
}

/// The block's tiles of a layer's results.
__device__ __forceinline__ void make_tiles(const Link& l, const Place& on, Ring& ring, float* came, float* counter) {
  const int row = on.row, lane = on.lane;
  for (int tile = l.wide ? on.block : 0, own = 0; tile < l.tiles; tile += on.blocks, ++own) {
    const int col = tile * kCols + lane, in_rows = own * kRowTile + place_in_rows(row, lane);
    const int in_memory = (on.row0 + row) * l.n + col;
    const bool there = row < on.rows && col < l.n;
    // What the result is finished with is asked for before its sum is there.
    float bias = 0, relu_result = 1;
    if (l.bias != nullptr && col < l.n) bias = l.bias[col];
    if (l.slope >= 0)
      relu_result = on.shared[l.slope + in_rows];
    else if (l.relu_result != nullptr && there)
      relu_result = __ldcg(l.relu_result + in_memory);

    if (own > 0)
      meet_workers();  // the warps' sums of the tile before have been read
    else if (came != nullptr)
      wait_for_bytes(came);
    float v = l.form == Form::deep  ? deep_sum(l, on, ring)
              : l.form == Form::few ? few_sums(l, on)
                                    : direct_sum(l, on, own);
    if (l.form == Form::in_parts) v = sum_of_parts(l, on, v, counter);
    v += bias;
    if (l.relu) v = v < 0.0f ? 0.0f : v;  // a NaN stays one
    if (!(relu_result > 0.0f) || col >= l.n) v = 0.0f;  // whoever takes whole tiles needs no bounds
    if (l.wide && l.sent >= 0)
      send_to_all(on, v, on.shared + l.sent + tile * kRowTile + place_in_rows(row, lane & ~3), true, counter);
    if (l.kept >= 0) on.shared[l.kept + in_rows] = v;
    if (there && (l.wide || on.block == 0)) l.y[in_memory] = v;
  }
}

__device__ __forceinline__ void make_product(const Link& l, const Place& on, Ring& ring, float* came, float* counter) {
  if (l.form == Form::everywhere) return make_everywhere(l, on);
  if (!l.wide || on.block < l.tiles) return make_tiles(l, on, ring, came, counter);
  // It has nothing to make, and says when it has come so far.
  if (came != nullptr) wait_for_bytes(came);
  meet_workers();
  if (l.sent >= 0 && static_cast<int>(threadIdx.x) < on.blocks) send_note(static_cast<int>(threadIdx.x), counter);
}

}  // namespace trainctl::cuda
