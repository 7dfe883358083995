// The products of a chain. Whichever way a layer's sums are made, in the end each thread has a result of a tile for each
// set of rows: the warp's row, the lane's column. So a thread takes slopes from what it kept itself, and a warp has kept
// whole rows.
#pragma once

#include "engine/ops/matmul/row_chain_weights_cuda.cuh"
#include "engine/ops/matmul/three_tf32_cuda.cuh"

namespace trainctl::cuda {

// Deep layers: the groups of warps share k, and the warps of a group the columns

/// How the lanes of a warp share a tile, as fragments of mma have it: weights are A, of which 16 columns are a fragment's
/// rows, and rows are B. Which column, row and k of a tile is which of mma's is free, as long as A and B, or A and the
/// sums, agree. Here k (in_group, in_group + 4) of step i is number i of the packs (k, k + 4), columns (group, group + 8)
/// of a fragment are (out, out + 1), of the other fragment the two behind them, and rows stand so that 8 lanes read packs
/// of 8 places without bank conflicts.
struct Lane {
  int row, k, out, left;  ///< left: the first of the two rows whose sums it has; the other is 4 further on
  __device__ __forceinline__ explicit Lane(const Place& on)
      : row(on.lane / 8 + (on.lane & 4)), k(on.lane & 3), out(on.lane / 4 * 4 + on.half * 2), left(on.lane & 3) {}
};

/// Of the fragments of columns that a warp makes.
template <int kSets>
using ChainSums = TileSums[2 / Share<kSets>::kHalves][kSets];

/// Adds a tile of rows times one of weights.
template <bool kAlong, int kSets>
__device__ __forceinline__ void multiply(const Lane& lane, const float* x, const float* w, ChainSums<kSets>& sums) {
  constexpr int kSteps = 4, kTall = 2 / Share<kSets>::kHalves, kOut = 2 * kTall;
  float rows[kSets][2][kSteps], weights[2][kOut][kSteps];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < (kAlong ? kOut : 0); ++i) {
      const int line = lane.out + i, pack = (lane.k + 4 * half) ^ line % 8;
      const float4 v = *reinterpret_cast<const float4*>(w + line * kCols + pack * 4);
      float(&to)[kSteps] = weights[half][i];
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    }
#pragma unroll
    for (int i = 0; i < (kAlong ? 0 : kSteps); ++i) {
      const int line = 16 * half + 4 * lane.k + i, pack = lane.out / 4 ^ line % 8;
      const float* const from = w + line * kCols + pack * 4 + lane.out % 4;
      if constexpr (kOut == 4) {
        const float4 v = *reinterpret_cast<const float4*>(from);
        weights[half][0][i] = v.x, weights[half][1][i] = v.y, weights[half][2][i] = v.z, weights[half][3][i] = v.w;
      } else {
        const float2 v = *reinterpret_cast<const float2*>(from);
        weights[half][0][i] = v.x, weights[half][1][i] = v.y;
      }
    }
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      const int pack = (lane.k + 4 * half) ^ lane.row;
      const float4 v = *reinterpret_cast<const float4*>(x + set * kRowTile + lane.row * kCols + pack * 4);
      float(&to)[kSteps] = rows[set][half];
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    }
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    Fragment<4> a[kTall];
#pragma unroll
    for (int j = 0; j < 4 * kTall; ++j) a[j / 4].set(j % 4, weights[j % 4 / 2][j / 4 * 2 + j % 2][i]);
    float b[kSets][2];
#pragma unroll
    for (int set = 0; set < kSets; ++set) b[set][0] = rows[set][0][i], b[set][1] = rows[set][1][i];
    add_products(a, b, sums);
  }
#pragma unroll
  for (TileSums(&fragment)[kSets] : sums) {
#pragma unroll
    for (TileSums& set : fragment) set.keep();
  }
}

/// In a tree, so that little waits for what is before it.
__device__ __forceinline__ float sum_of_four(const float* first, int apart) {
  return (first[0] + first[apart]) + (first[2 * apart] + first[3 * apart]);
}
__device__ __forceinline__ float sum_of_eight(const float* first, int apart) {
  return sum_of_four(first, apart) + sum_of_four(first + 4 * apart, apart);
}

template <int kSets>
__device__ __forceinline__ void deep_sums(const Link& l, const Place& on, WeightStream<kSets>& stream,
                                          float (&v)[kSets]) {
  constexpr int kGroups = Share<kSets>::kGroups, kSumsOfGroup = kSets * kRows * kSumsPitch;
  const Lane lane(on);
  ChainSums<kSets> sums{};
  const bool long_layer = stream.exceeded_by(l.depth);
#pragma unroll 1
  for (int depth = on.group; depth < l.depth; depth += kGroups) {
    const float* const w = stream.first();
    const float* const x = l.rows < 0 ? w + kWeightTile : on.shared + l.rows + depth * kSets * kRowTile;
    if (l.along)
      multiply<true>(lane, x, w, sums);
    else
      multiply<false>(lane, x, w, sums);
    stream.give_back();
    if (long_layer) stream.fill();
  }
  float* const of_groups = on.shared + kSums;
  float* const to = of_groups + on.group * kSumsOfGroup + lane.left * kSumsPitch + lane.out;
#pragma unroll
  for (int set = 0; set < kSets; ++set) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float* const row = to + (set * kRows + i * 4) * kSumsPitch;
      const TileSums& first = sums[0][set];
      if constexpr (Share<kSets>::kHalves == 1) {
        const TileSums& second = sums[1][set];
        *reinterpret_cast<float4*>(row) = {first.sum(i), first.sum(i + 2), second.sum(i), second.sum(i + 2)};
      } else {
        *reinterpret_cast<float2*>(row) = {first.sum(i), first.sum(i + 2)};
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int set = 0; set < kSets; ++set) {
    const float* const of_first = of_groups + (set * kRows + on.row) * kSumsPitch + on.lane;
    v[set] = kGroups == 8 ? sum_of_eight(of_first, kSumsOfGroup) : sum_of_four(of_first, kSumsOfGroup);
  }
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
template <int kSets>
__device__ __forceinline__ void direct_sums(const Link& l, const Place& on, int own, float (&v)[kSets]) {
  constexpr int kRowFloats = kSets * kRowTile;
  const bool in_parts = l.form == Form::in_parts;
  const float* x = on.shared + l.rows;
  const float* w = on.shared + l.slabs + own * kSlab;
  int depth = in_parts ? on.block : 0;
  if (in_parts && l.whole_rows) x += depth * kRowFloats;
  wait_for_bytes(on.shared + kSlabsCame);
#pragma unroll
  for (float& sum : v) sum = 0;
#pragma unroll 1
  for (; depth < l.depth; depth += on.blocks) {
    const int k = min(l.k - depth * kCols, kCols);
#pragma unroll
    for (int set = 0; set < kSets; ++set) v[set] += sum_of_tile(l, on, x + set * kRowTile, w, k);
    x += (l.whole_rows ? on.blocks : 1) * kRowFloats;
    w += kSlab;
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
template <int kSets>
__device__ __forceinline__ void sum_parts(const Link& l, const Place& on, float* counter, float (&v)[kSets]) {
  const int lane = on.lane, first = lane & ~3, pitch = l.sent_pitch, block_floats = kSets * kRows * pitch;
  float* const parts = on.shared + l.sent + on.row * pitch;
#pragma unroll
  for (int set = 0; set < kSets; ++set)
    send_to_all(on, v[set], parts + on.block * block_floats + set * kRows * pitch + first, first < pitch, counter);
  wait_for_bytes(counter);
#pragma unroll
  for (int set = 0; set < kSets; ++set) {
    v[set] = 0;
    if (lane >= pitch) continue;
#pragma unroll 1
    for (int block = 0; block < on.blocks; block += 8)
      v[set] += sum_of_eight(parts + set * kRows * pitch + block * block_floats + lane, block_floats);
  }
}

/// The block's tiles of a layer's results.
template <int kSets>
__device__ __forceinline__ void make_tiles(const Link& l, const Place& on, WeightStream<kSets>& stream, float* came,
                                           float* counter) {
  constexpr int kRowFloats = kSets * kRowTile;
  const int row = on.row, lane = on.lane;
  for (int tile = l.wide ? on.block : 0, own = 0; tile < l.tiles; tile += on.blocks, ++own) {
    const int col = tile * kCols + lane, in_rows = own * kRowFloats + place_in_rows(row, lane);
    const int in_memory = (on.row0 + row) * l.n + col;
    const auto there = [&](int set) { return row + set * kRows < on.rows && col < l.n; };
    // What the result is finished with is asked for before its sum is there.
    float bias = 0, relu_result[kSets], v[kSets];
    if (l.bias != nullptr && col < l.n) bias = l.bias[col];
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      relu_result[set] = 1;
      if (l.slope >= 0)
        relu_result[set] = on.shared[l.slope + in_rows + set * kRowTile];
      else if (l.relu_result != nullptr && there(set))
        relu_result[set] = __ldcg(l.relu_result + in_memory + set * kRows * l.n);
    }

    if (own > 0)
      __syncthreads();  // the groups' sums of the tile before have been read
    else if (came != nullptr)
      wait_for_bytes(came);
    if (l.form == Form::deep)
      deep_sums(l, on, stream, v);
    else
      direct_sums(l, on, own, v);
    if (l.form == Form::in_parts) sum_parts(l, on, counter, v);
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      v[set] += bias;
      if (l.relu) v[set] = v[set] < 0.0f ? 0.0f : v[set];  // a NaN stays one
      if (!(relu_result[set] > 0.0f) || col >= l.n) v[set] = 0.0f;  // whoever takes whole tiles needs no bounds
      if (l.wide && l.sent >= 0)
        send_to_all(on, v[set],
                    on.shared + l.sent + tile * kRowFloats + set * kRowTile + place_in_rows(row, lane & ~3), true,
                    counter);
    }
    if (l.form == Form::deep) stream.fill();  // after what others wait for
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      if (l.kept >= 0) on.shared[l.kept + in_rows + set * kRowTile] = v[set];
      if (there(set) && (l.wide || on.block == 0)) l.y[in_memory + set * kRows * l.n] = v[set];
    }
  }
}

template <int kSets>
__device__ __forceinline__ void make_product(const Link& l, const Place& on, WeightStream<kSets>& stream, float* came,
                                             float* counter) {
  if (!l.wide || on.block < l.tiles) return make_tiles(l, on, stream, came, counter);
  // It has nothing to make, and says when it has come so far.
  if (came != nullptr) wait_for_bytes(came);
  __syncthreads();
  if (l.sent >= 0 && static_cast<int>(threadIdx.x) < on.blocks) send_note(static_cast<int>(threadIdx.x), counter);
}

}  // namespace trainctl::cuda
