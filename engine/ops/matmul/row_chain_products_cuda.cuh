// The products of a chain. Whichever way a layer's sums are made, in the end each thread has one result of a tile: the
// warp's row, the lane's column. So a thread takes slopes from what it kept itself, and a warp has kept whole rows.
#pragma once

#include "engine/ops/matmul/row_chain_weights_cuda.cuh"
#include "engine/ops/matmul/three_tf32_cuda.cuh"

namespace trainctl::cuda {

// Deep layers: the warps share k

/// How the lanes of a warp share a tile, as fragments of mma have it: weights are A, of which 16 columns are a fragment's
/// rows, and rows are B. Which column, row and k of a tile is which of mma's is free, as long as A and B, or A and the
/// sums, agree. Here k (in_group, in_group + 4) of step i is number i of the packs (k, k + 4), columns (group, group + 8)
/// of a fragment are (out, out + 1), of the other fragment the two behind them, and rows stand so that 8 lanes read packs
/// of 8 places without bank conflicts.
struct Lane {
  int row, k, out, left;  ///< left: the first of the two rows whose sums it has; the other is 4 further on
  __device__ __forceinline__ explicit Lane(int lane)
      : row(lane / 8 + (lane & 4)), k(lane & 3), out(lane / 4 * 4), left(lane & 3) {}
};

/// Of a tile's columns, 16 a fragment.
using ChainSums = TileSums[2][1];

__device__ __forceinline__ void read_pack(const float* from, float (&to)[4]) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

/// Adds a tile of rows times one of weights.
template <bool kAlong>
__device__ __forceinline__ void multiply(const Lane& lane, const float* x, const float* w, ChainSums& sums) {
  float rows[2][4], weights[2][4][4];  // [half of k][step]; of each half [column][step], or the other way round
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int k = lane.k + 4 * half;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int line = i + (kAlong ? lane.out : 4 * k), pack = (kAlong ? k : lane.out / 4) ^ line % 8;
      read_pack(w + line * kCols + pack * 4, weights[half][i]);
    }
    read_pack(x + lane.row * kCols + (k ^ lane.row) * 4, rows[half]);
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

__device__ __forceinline__ float deep_sum(const Link& l, const Place& on, WeightStream& stream) {
  const Lane lane(on.lane);
  ChainSums sums{};
  const float* x = on.shared + l.rows + on.row * kRowTile;
  const bool long_layer = stream.exceeded_by(l.depth);
#pragma unroll 1
  for (int depth = on.row; depth < l.depth; depth += kWarps, x += kWarps * kRowTile) {
    const float* const w = stream.first();
    if (l.along)
      multiply<true>(lane, x, w, sums);
    else
      multiply<false>(lane, x, w, sums);
    stream.give_back();
    if (long_layer) stream.fill();
  }
  float* const of_warps = on.shared + kSums;
  float* const to = of_warps + on.row * kSumsOfWarp + lane.left * kSumsPitch + lane.out;
  const TileSums &first = sums[0][0], &second = sums[1][0];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    *reinterpret_cast<float4*>(to + i * 4 * kSumsPitch) = {first.sum(i), first.sum(i + 2), second.sum(i),
                                                           second.sum(i + 2)};
  __syncthreads();
  return sum_of_eight(of_warps + on.row * kSumsPitch + on.lane, kSumsOfWarp);
}

// Layers with no more than 32 of k for the block: a sum a thread

/// Of a row and a column of a tile; zeros fill it beyond the end.
__device__ __forceinline__ float sum_of_tile(const Link& l, const Place& on, const float* x, const float* w,
                                             int depth) {
  if (on.lane >= l.n) return 0;
  float sums[4] = {};
  const auto add = [&](int k, const float4& weights) {
    const float4 rows = *reinterpret_cast<const float4*>(x + place_in_rows(on.row, k));
    sums[0] += rows.x * weights.x;
    sums[1] += rows.y * weights.y;
    sums[2] += rows.z * weights.z;
    sums[3] += rows.w * weights.w;
  };
  if (l.along) {
    w += on.lane * kPitch;
#pragma unroll
    for (int k = 0; k < kCols; k += 4) add(k, *reinterpret_cast<const float4*>(w + k));
  } else {
    w += on.lane;
#pragma unroll 2
    for (int k = 0; k < depth; k += 4, w += 4 * kPitch) add(k, {w[0], w[kPitch], w[2 * kPitch], w[3 * kPitch]});
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// The own'th tile of a shallow layer, or the block's part of the sums of one that is made in parts.
__device__ __forceinline__ float direct_sum(const Link& l, const Place& on, int own) {
  const bool in_parts = l.form == Form::in_parts;
  const float* x = on.shared + l.rows;
  const float* w = on.shared + l.slabs + own * kSlab;
  int depth = in_parts ? on.block : 0;
  if (in_parts && l.whole_rows) x += depth * kRowTile;
  wait_for_bytes(on.shared + kSlabsCame);
  float sum = 0;
#pragma unroll 1
  for (; depth < l.depth; depth += on.blocks) {
    sum += sum_of_tile(l, on, x, w, min(l.k - depth * kCols, kCols));
    x += (l.whole_rows ? on.blocks : 1) * kRowTile;
    w += kSlab;
  }
  return sum;
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
__device__ __forceinline__ void make_tiles(const Link& l, const Place& on, WeightStream& stream, float* came,
                                           float* counter) {
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
      __syncthreads();  // the warps' sums of the tile before have been read
    else if (came != nullptr)
      wait_for_bytes(came);
    float v = l.form == Form::deep ? deep_sum(l, on, stream) : direct_sum(l, on, own);
    if (l.form == Form::in_parts) v = sum_of_parts(l, on, v, counter);
    v += bias;
    if (l.relu) v = v < 0.0f ? 0.0f : v;  // a NaN stays one
    if (!(relu_result > 0.0f) || col >= l.n) v = 0.0f;  // whoever takes whole tiles needs no bounds
    if (l.wide && l.sent >= 0)
      send_to_all(on, v, on.shared + l.sent + tile * kRowTile + place_in_rows(row, lane & ~3), true, counter);
    if (l.form == Form::deep) stream.fill();  // after what others wait for
    if (l.kept >= 0) on.shared[l.kept + in_rows] = v;
    if (there && (l.wide || on.block == 0)) l.y[in_memory] = v;
  }
}

__device__ __forceinline__ void make_product(const Link& l, const Place& on, WeightStream& stream, float* came,
                                             float* counter) {
  if (!l.wide || on.block < l.tiles) return make_tiles(l, on, stream, came, counter);
  // It has nothing to make, and says when it has come so far.
  if (came != nullptr) wait_for_bytes(came);
  __syncthreads();
  if (l.sent >= 0 && static_cast<int>(threadIdx.x) < on.blocks) send_note(static_cast<int>(threadIdx.x), counter);
}

}  // namespace trainctl::cuda
