// The products of a chain. However a layer's sums are computed, in the end each thread has one result of a tile: the
// warp's row, the lane's column. So a thread reads slopes from its own kept results, and a warp keeps whole rows.
#pragma once

#include "engine/ops/small_step/row_chain_weights_cuda.cuh"
#include "engine/ops/small_step/three_tf32_cuda.cuh"

namespace trainctl::cuda {

// Deep layers: the warps split k

/// How the lanes of a warp map a tile to mma fragments: weights are A, 16 columns per fragment; rows are B. Any mapping
/// works in which A and B agree on k, and A and the sums on columns. This one:
///   mma                                tile
///   k in_group, in_group + 4; step i   element i of the packs k, k + 4
///   A group, group + 8; fragment f     columns 4 out + 2 f, 4 out + 2 f + 1
///   B group                            `row`: 8 lanes read packs of 8 lines without bank conflicts
struct Lane {
  int weights[4], rows;  ///< packs of the first half of k that it reads: of four lines of weights; of its row
  int sums;              ///< offset of its sums of a row; those of the row 4 further on follow

  __device__ __forceinline__ Lane(int lane, bool along) : sums((lane & 3) * kSumsPitch + lane / 4 * 4) {
    const int row = lane / 8 + (lane & 4), out = lane / 4, k = lane & 3;
    const int line = 4 * (along ? out : k), pack = along ? k : out;
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[i] = (line + i) * kPacks + (pack ^ (line + i) % 8);
    rows = row * kPacks + (k ^ row);
  }
};

/// Sums of a tile: 16 columns per fragment.
using ChainSums = TileSums[2][1];

__device__ __forceinline__ void read_pack(const float* from, int pack, float (&to)[4]) {
  const float4 v = reinterpret_cast<const float4*>(from)[pack];
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

/// Adds a tile of rows times a tile of weights to `sums`.
template <bool kAlong>
__device__ __forceinline__ void multiply(const Lane& lane, const float* x, const float* w, ChainSums& sums) {
  float rows[2][4], weights[2][4][4];  // [half of k][step]; [half][column][step], or [half][step][column]
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

/// Tree sums, for short dependency chains.
__device__ __forceinline__ float sum_of_four(const float* first, int apart) {
  return (first[0] + first[apart]) + (first[2 * apart] + first[3 * apart]);
}
__device__ __forceinline__ float sum_of_eight(const float* first, int apart) {
  return sum_of_four(first, apart) + sum_of_four(first + 4 * apart, apart);
}

/// The sum for the warp's row and the lane's column of a tile; elements beyond the end are zeros.
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

/// Tiles go to the warps' tensor cores, one tile per warp. Up to kMostLeft tiles that remain are summed by all threads
/// without tensor cores: else a few warps would multiply while the others wait.
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
  meet_workers();  // all warps have read the sums of the layer before
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

// Shallow layers and layers in parts

/// The sum of tile number `own` of a shallow layer, or the block's part of the sum of a layer in parts.
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

// Few columns, and back from them: from whole rows, one warp per row

/// Lane c gets the sum of column c.
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

/// Computes all tiles; the block's own tiles are also written to memory.
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

// From sums to results

/// Sends four lanes' adjacent values to all blocks of the cluster, whose `counter` counts them. Each block starts with
/// itself, to spread the traffic.
__device__ __forceinline__ void send_to_all(const Place& on, float v, float* to, bool there, float* counter) {
  const int lane = on.lane, first = lane & ~3;
  const float4 four{__shfl_sync(~0u, v, first), __shfl_sync(~0u, v, first + 1), __shfl_sync(~0u, v, first + 2),
                    __shfl_sync(~0u, v, first + 3)};
  if (!there) return;
  const int block = on.block + lane % 4, last = on.blocks - 1;
#pragma unroll
  for (int i = 0; i < kMostBlocks; i += 4) {
    if (i == kMostBlocks / 2 && last < kMostBlocks / 2) break;  // a cluster has 8 or 16
    send((block + i) & last, to, four, counter);
  }
}

/// Adds all blocks' parts of each sum, in the order of blocks.
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

/// Computes the block's tiles of a layer's results.
__device__ __forceinline__ void make_tiles(const Link& l, const Place& on, Ring& ring, float* came, float* counter) {
  const int row = on.row, lane = on.lane;
  for (int tile = l.wide ? on.block : 0, own = 0; tile < l.tiles; tile += on.blocks, ++own) {
    const int col = tile * kCols + lane, in_rows = own * kRowTile + place_in_rows(row, lane);
    const int in_memory = (on.row0 + row) * l.n + col;
    const bool there = row < on.rows && col < l.n;
    // The epilogue's operands are requested before the sum is computed.
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
    if (l.relu) v = v < 0.0f ? 0.0f : v;                // keeps NaN
    if (!(relu_result > 0.0f) || col >= l.n) v = 0.0f;  // the next layer reads whole tiles without bounds
    if (l.wide && l.sent >= 0)
      send_to_all(on, v, on.shared + l.sent + tile * kRowTile + place_in_rows(row, lane & ~3), true, counter);
    if (l.kept >= 0) on.shared[l.kept + in_rows] = v;
    if (there && (l.wide || on.block == 0)) l.y[in_memory] = v;
  }
}

__device__ __forceinline__ void make_product(const Link& l, const Place& on, Ring& ring, float* came, float* counter) {
  if (l.form == Form::everywhere) return make_everywhere(l, on);
  if (!l.wide || on.block < l.tiles) return make_tiles(l, on, ring, came, counter);
  // It has no tile; it notes that it has read its input.
  if (came != nullptr) wait_for_bytes(came);
  meet_workers();
  if (l.sent >= 0 && static_cast<int>(threadIdx.x) < on.blocks) send_note(static_cast<int>(threadIdx.x), counter);
}

}  // namespace trainctl::cuda
