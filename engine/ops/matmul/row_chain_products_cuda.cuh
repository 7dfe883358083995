// The products of a chain. Whichever way a layer's sums are made, in the end each thread has one result of a tile: the
// warp's row, the lane's column. So what a thread kept is what it takes a slope from, and what a warp kept is whole rows.
#pragma once

#include "engine/ops/matmul/row_chain_weights_cuda.cuh"

namespace trainctl::cuda {

// What is done with results

/// What a result is finished with, asked for before its sum is there.
struct Extras {
  float bias = 0, relu_result = 1;
  __device__ __forceinline__ Extras(const Link& l, const Block& on, int tile, int own) {
    const int row = warp_index(), col = tile * kCols + lane_index();
    if (col >= l.n) return;
    if (l.bias != nullptr) bias = l.bias[col];
    if (l.slope >= 0)
      relu_result = on.shared[l.slope + own * kRowTile + place_in_rows(row, lane_index())];
    else if (l.relu_result != nullptr && row < on.rows)
      relu_result = __ldcg(l.relu_result + static_cast<int64_t>(on.row0 + row) * l.n + col);
  }
};

/// Four lanes' neighbours to all blocks of the cluster, which `counter` counts there. Each block begins with itself, so
/// that not all send to the same one.
__device__ __forceinline__ void send_to_all(const Block& on, float v, float* to, bool there, float* counter) {
  const int lane = lane_index(), first = lane & ~3;
  const float4 four{__shfl_sync(~0u, v, first), __shfl_sync(~0u, v, first + 1), __shfl_sync(~0u, v, first + 2),
                    __shfl_sync(~0u, v, first + 3)};
  if (!there) return;
#pragma unroll 4
  for (int i = lane % 4; i < on.of_cluster; i += 4) send((on.index + i) & (on.of_cluster - 1), to, four, counter);
}

/// The block's own'th tile. Zeros beyond the last column: whoever takes them needs no bounds.
__device__ __forceinline__ void finish(const Link& l, const Block& on, int tile, int own, float sum,
                                       const Extras& extras, float* counter) {
  const int row = warp_index(), lane = lane_index(), col = tile * kCols + lane;
  float v = sum + extras.bias;
  if (l.relu) v = v < 0.0f ? 0.0f : v;  // a NaN stays one
  if (!(extras.relu_result > 0.0f) || col >= l.n) v = 0.0f;
  if (l.wide() && l.sent >= 0) {
    const int first = lane & ~3;
    send_to_all(on, v, on.shared + l.sent + tile * kRowTile + place_in_rows(row, first), true, counter);
  }
  if (l.kept >= 0) on.shared[l.kept + own * kRowTile + place_in_rows(row, lane)] = v;
  if (row < on.rows && col < l.n && (l.wide() || on.index == 0))
    l.y[static_cast<int64_t>(on.row0 + row) * l.n + col] = v;
}

// Deep layers: the warps share k

/// The lane whose number differs in bit kBit takes half of the sums, and this lane the other half of both.
template <int kBit, int kHalf>
__device__ __forceinline__ void exchange_half(float* sums) {
  const bool upper = (threadIdx.x & kBit) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float given = upper ? sums[i] : sums[i + kHalf], kept = upper ? sums[i + kHalf] : sums[i];
    sums[i] = kept + __shfl_xor_sync(~0u, given, kBit);
  }
}

/// How the lanes of a warp share a tile: two take every other row, of four each takes 8 columns, of four each every
/// fourth pack of k. Lanes that read the same are neighbours: a read of 16 bytes a lane then takes half the time.
struct Lane {
  int odd, cols, k;
  __device__ __forceinline__ Lane() : odd(lane_index() & 1), cols(lane_index() / 2 & 3), k(lane_index() / 8) {}
};

/// Adds a tile of rows times one of weights: sums of rows 2 i + odd and of 8 columns.
template <bool kAlong>
__device__ __forceinline__ void multiply(const Lane& lane, const float* x, const float* w, float (&sums)[32]) {
  x += lane.odd * kCols;
  w += kCols * (kAlong ? lane.cols * 8 : lane.k * 4);
  const int pack = lane.k ^ (lane.cols * 2);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float weights[8][4];  // [columns][k], or [k, columns' halves][columns]
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int line = kAlong ? i : half * 16 + i / 2, other = kAlong ? i / 4 : i % 2;
      const float4 v = *reinterpret_cast<const float4*>(w + line * kCols + (pack ^ (half * 4) ^ other) * 4);
      weights[i][0] = v.x, weights[i][1] = v.y, weights[i][2] = v.z, weights[i][3] = v.w;
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float4 v = *reinterpret_cast<const float4*>(
          x + 2 * r * kCols + ((half * 4 + lane.k) ^ (lane.odd * 4)) * 4);
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

/// `came` counts the rows that other blocks send; null: they are there.
__device__ __forceinline__ void make_deep(const Link& l, const Block& on, WeightStream& stream, float* came,
                                          float* counter) {
  const Lane lane;
  const int warp = warp_index();
  float* const all_sums = on.shared + kSums;
  for (int tile = on.index, own = 0; tile < l.tiles(); tile += on.of_cluster, ++own) {
    const Extras extras(l, on, tile, own);
    if (own > 0) __syncthreads();  // the warps' sums of the tile before have been read
    stream.fill();
    if (own == 0 && came != nullptr) wait_for_bytes(came);
    float sums[32] = {};  // [4 rows][8 columns]
#pragma unroll 1
    for (int depth = warp; depth < l.depth(); depth += kWarps) {
      const float* const w = stream.first();
      const float* const x = on.shared + l.rows + depth * kRowTile;
      if (l.along)
        multiply<true>(lane, x, w, sums);
      else
        multiply<false>(lane, x, w, sums);
      stream.give_back();
      if (depth + kWarps < l.depth()) stream.fill();
    }
    // The lanes that share k: each is left with a row.
    exchange_half<16, 16>(sums);
    exchange_half<8, 8>(sums);
    float* const to = all_sums + warp * kSumsOfWarp + (2 * lane.k + lane.odd) * kPitch + lane.cols * 8;
    *reinterpret_cast<float4*>(to) = {sums[0], sums[1], sums[2], sums[3]};
    *reinterpret_cast<float4*>(to + 4) = {sums[4], sums[5], sums[6], sums[7]};
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int other = 0; other < kWarps; ++other)
      sum += all_sums[other * kSumsOfWarp + warp * kPitch + lane_index()];
    finish(l, on, tile, own, sum, extras, counter);
  }
}

// Layers with no more than 32 of k for the block: a sum a thread

/// Of a row and one of `cols` columns, over `depth` of k.
__device__ __forceinline__ float sum_of_thread(bool along, const float* x, const float* w, int pitch, int cols,
                                               int depth) {
  const int row = warp_index(), lane = lane_index();
  if (lane >= cols) return 0;
  float sums[4] = {};
  if (along) {
    w += static_cast<int64_t>(lane) * pitch;
#pragma unroll 8
    for (int k = 0; k < depth; k += 4) {
      const float4 a = *reinterpret_cast<const float4*>(x + place_in_rows(row, k));
      const float4 b = *reinterpret_cast<const float4*>(w + k);
      sums[0] += a.x * b.x, sums[1] += a.y * b.y, sums[2] += a.z * b.z, sums[3] += a.w * b.w;
    }
  } else {
    w += lane;
#pragma unroll 8
    for (int k = 0; k < depth; k += 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (k + i < depth) sums[i] += x[place_in_rows(row, k + i)] * w[static_cast<int64_t>(k + i) * pitch];
    }
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

__device__ __forceinline__ float direct_sum(const Link& l, const Block& on, const WeightTile& tile, const float* x) {
  const int cols = l.along ? tile.lines : tile.width, depth = min(l.along ? tile.width : tile.lines, kCols);
  if (l.slab >= 0) {
    wait_for_bytes(on.shared + kSlabsCame);
    return sum_of_thread(l.along, x, on.shared + l.slab, kPitch, cols, depth);
  }
  return sum_of_thread(l.along, x, tile.from, tile.pitch, cols, depth);
}

/// k is small: each block has all of the rows.
__device__ __forceinline__ void make_shallow(const Link& l, const Block& on, float* counter) {
  for (int tile = l.wide() ? on.index : 0, own = 0; tile < l.tiles(); tile += on.of_cluster, ++own) {
    const Extras extras(l, on, tile, own);
    const float sum = direct_sum(l, on, WeightTile(l, tile, 0), on.shared + l.rows);
    finish(l, on, tile, own, sum, extras, counter);
  }
}

/// Few columns: each block's part of the sums is over the tiles of k that it made, and all blocks add up all parts.
__device__ __forceinline__ void make_in_parts(const Link& l, const Block& on, float* counter) {
  const int row = warp_index(), lane = lane_index(), pitch = l.parts_pitch(), first = lane & ~3;
  const Extras extras(l, on, 0, 0);
  float part = 0;
  for (int depth = on.index, own = 0; depth < l.depth(); depth += on.of_cluster, ++own)
    part += direct_sum(l, on, WeightTile(l, 0, depth),
                       on.shared + l.rows + (l.whole_rows ? depth : own) * kRowTile);
  float* const parts = on.shared + l.sent + row * pitch;
  send_to_all(on, part, parts + on.index * kRows * pitch + first, first < pitch, counter);
  wait_for_bytes(counter);
  float sum = 0;
  if (lane < pitch) {
#pragma unroll 8
    for (int block = 0; block < on.of_cluster; ++block) sum += parts[block * kRows * pitch + lane];
  }
  finish(l, on, 0, 0, sum, extras, counter);
}

__device__ __forceinline__ void make_product(const Link& l, const Block& on, WeightStream& stream, float* came,
                                             float* counter) {
  if (l.wide() && on.index >= l.tiles()) {  // it has nothing to make, and says when it has come so far
    if (came != nullptr) wait_for_bytes(came);
    __syncthreads();
    if (l.sent >= 0 && static_cast<int>(threadIdx.x) < on.of_cluster) send_note(static_cast<int>(threadIdx.x), counter);
  } else if (l.deep()) {
    make_deep(l, on, stream, came, counter);
  } else if (l.in_parts()) {
    make_in_parts(l, on, counter);
  } else {
    make_shallow(l, on, counter);
  }
}

}  // namespace trainctl::cuda
