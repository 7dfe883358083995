// The products of a chain. Whichever way a layer's sums are made, in the end each thread has one result of a tile: the
// warp's row, the lane's column. So a thread takes slopes from what it kept itself, and a warp has kept whole rows.
#pragma once

#include "engine/ops/matmul/lane_sums_cuda.cuh"
#include "engine/ops/matmul/row_chain_weights_cuda.cuh"

namespace trainctl::cuda {

// Deep layers: the warps share k

/// How the lanes of a warp share a tile: two take four rows each, of four each takes 8 columns, of four each every
/// fourth pack of k. Lanes that read the same are neighbours: a read of 16 bytes a lane then takes half the time.
/// Columns are shared so that 16 lanes read without bank conflicts from tiles as the copy engine brings them.
struct Lane {
  int odd, cols, k;
  __device__ __forceinline__ explicit Lane(int lane) : odd(lane & 1), cols(lane / 2 & 3), k(lane / 8) {}
};

/// Adds a tile of rows times one of weights: sums of rows 4 odd + i and of 8 columns.
template <bool kAlong>
__device__ __forceinline__ void multiply(const Lane& lane, const float* x, const float* w, float (&sums)[32]) {
  x += lane.odd * 4 * kCols;
  w += kCols * (kAlong ? lane.cols * 2 : lane.k * 4);
  const int row_pack = lane.k ^ (lane.odd * 4), pack = kAlong ? lane.k ^ (lane.cols * 2) : lane.cols ^ (lane.k & 1) * 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float weights[8][4];  // [columns][k], or [k, columns' halves][columns]
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int line = kAlong ? i / 2 * 8 + i % 2 : half * 16 + i / 2;
      const int other = kAlong ? half * 4 + i % 2 : i % 2 * 4 + i / 2;
      const float4 v = *reinterpret_cast<const float4*>(w + line * kCols + (pack ^ other) * 4);
      weights[i][0] = v.x, weights[i][1] = v.y, weights[i][2] = v.z, weights[i][3] = v.w;
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float4 v = *reinterpret_cast<const float4*>(x + r * kCols + (row_pack ^ (half * 4 + r)) * 4);
      const float rows[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int c = 0; c < 8; ++c)
          sums[r * 8 + c] += rows[k] * (kAlong ? weights[c][k] : weights[k * 2 + c / 4][c % 4]);
      }
    }
  }
}

/// Where the sum of a column lies in a row of a warp's sums: each lane writes two packs.
__device__ __forceinline__ int place_in_sums(bool along, int col) {
  return along ? (col & 17) + (col & 6) * 2 + (col & 8) / 4 : col;
}

/// In a tree, so that little waits for what is before it.
__device__ __forceinline__ float sum_of_eight(const float* first, int apart) {
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = first[i * apart];
  return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

__device__ __forceinline__ float deep_sum(const Link& l, const Place& on, WeightStream& stream) {
  const Lane lane(on.lane);
  float sums[32] = {};  // [4 rows][8 columns]
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
  // The lanes that share k: each is left with a row.
  exchange_half<16, 32>(sums);
  exchange_half<8, 16>(sums);
  float* const of_warps = on.shared + kSums;
  float* const to = of_warps + on.row * kSumsOfWarp + (lane.odd * 4 + lane.k) * kPitch + lane.cols * 4;
  *reinterpret_cast<float4*>(to) = {sums[0], sums[1], sums[2], sums[3]};
  *reinterpret_cast<float4*>(to + 16) = {sums[4], sums[5], sums[6], sums[7]};
  __syncthreads();
  return sum_of_eight(of_warps + on.row * kPitch + place_in_sums(l.along, on.lane), kSumsOfWarp);
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
