// The engine's own attention, for any head, type and mask: tiles of B queries by B keys in shared memory, arithmetic
// in f32, sums in a fixed order. 256 threads are 16 x 16; a thread has every 16th row and column of a tile.
//   forward   a block for each tile of queries, over the tiles of keys; the softmax is kept up to date on the way
//   backward  a block for each tile of keys (dk, dv) over all queries that see it, then one for each tile of queries
//             (dq) over its keys; both compute the scores again from q, k and the rows' logs
#pragma once

#include <cfloat>

#include "engine/ops/attention/attention_shape.h"
#include "engine/ops/cuda/vector_cuda.cuh"

namespace trainctl::attention {

inline constexpr int kSide = 16, kThreads = kSide * kSide;

enum class MaskType : uint8_t { none, ints, floats, halves, documents };

/// The operands that all kernels of one call read. Tiles in shared memory are f32 for any dtype, so the kernels are
/// compiled once.
struct Operands {
  AttentionSize n;
  Heads q, k, v, out;
  Ref<Mixed> q_data, k_data, v_data;
  const void* mask;
  MaskType mask_type;
  bool causal;
  int64_t window, first_row;
  float scale, softcap;
  int64_t first_key, mask_rows;  // from AttentionCall
  bool marks_no_keys;            // a row that sees no key gets the log kNoKeys: the keys are a part, or there are sinks

  __device__ bool mask_at(int64_t b, int64_t key) const {
    const int64_t at = b * mask_rows + first_key + key;
    switch (mask_type) {
      case MaskType::ints:
        return static_cast<const int32_t*>(mask)[at] != 0;
      case MaskType::floats:
        return static_cast<const float*>(mask)[at] != 0.0f;
      case MaskType::halves:
        return to_f32(static_cast<const bf16*>(mask)[at]) != 0.0f;
      case MaskType::none:
      case MaskType::documents:
        break;
    }
    return true;
  }
  /// The index of the first row of the document that a row, or a key, belongs to.
  __device__ int64_t document_at(int64_t b, int64_t row) const {
    return static_cast<const int32_t*>(mask)[b * mask_rows + row];
  }
  __device__ bool sees(int64_t b, int64_t row, int64_t key) const {
    const int64_t position = first_key + key;
    if (row >= n.t || key >= n.s || (causal && position > first_row + row)) return false;
    if (window > 0 && position + window <= first_row + row) return false;
    if (mask_type != MaskType::documents) return mask_at(b, key);
    const int64_t document = document_at(b, first_row + row);
    return position >= document && document == document_at(b, position);
  }
  /// The first key that a row in [begin, end) can see.
  __device__ int64_t first_key_of(int64_t b, int64_t begin, int64_t end) const {
    int64_t first = window > 0 ? first_row + begin - window + 1 : 0;
    if (mask_type == MaskType::documents) {
      int64_t document = mask_rows;
      for (int64_t row = begin; row < (end < n.t ? end : n.t); ++row) {
        const int64_t its = document_at(b, first_row + row);
        document = its < document ? its : document;
      }
      first = document > first ? document : first;
    }
    return first > first_key ? first - first_key : 0;
  }
  /// The score of q . k.
  __device__ float score(float product) const {
    return softcap > 0 ? softcap * tanhf(scale * product / softcap) : scale * product;
  }
  /// The factor of a score's gradient that is due to the softcap.
  __device__ float slope_at(float score) const {
    const float capped = softcap > 0 ? score / softcap : 0.0f;
    return 1.0f - capped * capped;
  }
  /// The end of the keys that rows before `end` can see.
  __device__ int64_t keys_of(int64_t end) const {
    const int64_t last = first_row + (end < n.t ? end : n.t) - first_key;
    return causal && last < n.s ? last : n.s;
  }
};

/// The terms of scores and dropout (score_terms.h). Most calls have none: their kernels do without.
struct NoTerms {
  static constexpr bool kAny = false;
};
struct WithTerms {
  static constexpr bool kAny = true;
  ScoreTerms terms;
  Ref<Mixed> bias;
  const StepScalars* scalars;

  /// The terms that are added to a score: its bias and ALiBi. `slope`: terms.slope_of(head).
  __device__ float added(int64_t b, int64_t head, int64_t row, int64_t key, float slope) const {
    const int64_t distance = terms.first_row + row - terms.first_key - key;
    const float by_bias = terms.has_bias ? value(bias, terms.bias_of(b, head, row) + key) : 0.0f;
    return by_bias - slope * static_cast<float>(distance < 0 ? -distance : distance);
  }
  /// The factor by which dropout multiplies an attention weight.
  __device__ float factor(int64_t b, int64_t head, int64_t row, int64_t key) const {
    if (!terms.dropout.is_on()) return 1.0f;
    const uint64_t at = static_cast<uint64_t>(terms.first_key + key);
    const Philox4 bits = philox(terms.dropout.key, terms.block_of(b, head, row) + at / 4, scalars->step);
    return terms.dropout.factor(bits.v[at % 4]);
  }
};
/// Scores up to this one hide their key.
inline constexpr float kHidden = -FLT_MAX;

/// The distance in floats between two rows of a tile of B rows and D features in shared memory. The 4 extra floats keep
/// the rows that a warp reads at the same time in different banks.
template <int D>
inline constexpr int kPitch = D + 4;

/// Loads `rows` rows of `features` features as a tile of f32, with 0 in the other rows and features. `row_step`:
/// elements from one row to the next.
template <int B, int D, class T>
__device__ void load_tile_of(float* to, const T* from, int64_t row_step, int64_t rows, int64_t features) {
  for (int i = threadIdx.x; i < B * D; i += kThreads) {
    const int row = i / D, e = i % D;
    to[row * kPitch<D> + e] = row < rows && e < features ? to_f32(from[row * row_step + e]) : 0.0f;
  }
}
template <int B, int D>
__device__ void load_tile(float* to, Ref<Mixed> from, int64_t row_step, int64_t rows, int64_t features) {
  if (from.is_bf16)
    load_tile_of<B, D>(to, static_cast<const bf16*>(from.p), row_step, rows, features);
  else
    load_tile_of<B, D>(to, static_cast<const float*>(from.p), row_step, rows, features);
}

/// Row number i, and column number j, of the current thread in a tile.
__device__ inline int row_of(int i) { return static_cast<int>(threadIdx.x) / kSide + kSide * i; }
__device__ inline int column_of(int j) { return static_cast<int>(threadIdx.x) % kSide + kSide * j; }

/// acc[i][j] = a[row i] . b[column j], the dot products of rows of two tiles
template <int B, int D>
__device__ void dots(const float* a, const float* b, float (&acc)[B / kSide][B / kSide]) {
  constexpr int kR = B / kSide;
#pragma unroll
  for (int i = 0; i < kR; ++i) {
#pragma unroll
    for (int j = 0; j < kR; ++j) acc[i][j] = 0;
  }
#pragma unroll 4
  for (int e = 0; e < D; e += 4) {
    float4 left[kR], right[kR];
#pragma unroll
    for (int i = 0; i < kR; ++i) left[i] = *reinterpret_cast<const float4*>(a + row_of(i) * kPitch<D> + e);
#pragma unroll
    for (int j = 0; j < kR; ++j) right[j] = *reinterpret_cast<const float4*>(b + column_of(j) * kPitch<D> + e);
#pragma unroll
    for (int i = 0; i < kR; ++i) {
#pragma unroll
      for (int j = 0; j < kR; ++j) {
        acc[i][j] += left[i].x * right[j].x;
        acc[i][j] += left[i].y * right[j].y;
        acc[i][j] += left[i].z * right[j].z;
        acc[i][j] += left[i].w * right[j].w;
      }
    }
  }
}

/// acc[i][c] += sum over k of s[row i, k] * rows[k, column c], or of s[k, row i] if transposed
template <int B, int D, bool kTransposed>
__device__ void add_product(const float* s, const float* rows, float (&acc)[B / kSide][D / kSide]) {
#pragma unroll 4
  for (int k = 0; k < B; ++k) {
    float right[D / kSide];
#pragma unroll
    for (int c = 0; c < D / kSide; ++c) right[c] = rows[k * kPitch<D> + column_of(c)];
#pragma unroll
    for (int i = 0; i < B / kSide; ++i) {
      const float left = kTransposed ? s[k * (B + 1) + row_of(i)] : s[row_of(i) * (B + 1) + k];
#pragma unroll
      for (int c = 0; c < D / kSide; ++c) acc[i][c] += left * right[c];
    }
  }
}

/// Writes the [B, B] results of all threads to shared memory, in rows of B + 1 floats.
template <int B>
__device__ void store_square(float* to, const float (&v)[B / kSide][B / kSide]) {
#pragma unroll
  for (int i = 0; i < B / kSide; ++i) {
#pragma unroll
    for (int j = 0; j < B / kSide; ++j) to[row_of(i) * (B + 1) + column_of(j)] = v[i][j];
  }
}

/// Writes the [B, D] results of all threads to the first `rows` rows and `features` features of an operand.
template <int B, int D>
__device__ void write_tile(Ref<Mixed> to, int64_t row_step, int64_t rows, int64_t features,
                           const float (&v)[B / kSide][D / kSide]) {
#pragma unroll
  for (int i = 0; i < B / kSide; ++i) {
#pragma unroll
    for (int c = 0; c < D / kSide; ++c) {
      if (row_of(i) < rows && column_of(c) < features) set(to, row_of(i) * row_step + column_of(c), v[i][c]);
    }
  }
}

/// The maximum, and the sum, over the 16 threads that share a row; each of them gets it.
__device__ inline float row_max(float v) {
#pragma unroll
  for (int by = kSide / 2; by > 0; by /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, by));
  return v;
}
__device__ inline float row_sum(float v) {
#pragma unroll
  for (int by = kSide / 2; by > 0; by /= 2) v += __shfl_xor_sync(~0u, v, by);
  return v;
}

/// One head of one sample, and the first row of the block's tile.
struct Place {
  int64_t b, g, r, first;
};
/// Blocks in the order (sample, head, tile), the last tile first: with causal its work is the longest.
__device__ inline Place place_of(int64_t heads, int64_t group, int64_t tiles, int tile_rows) {
  const int64_t head = blockIdx.x / tiles, tile = tiles - 1 - blockIdx.x % tiles;
  return {head / heads, head % heads / group, head % heads % group, tile * tile_rows};
}

/// The index of a row in the log-sum-exps [b, g, r, t].
__device__ inline int64_t log_at(const Operands& a, int64_t b, int64_t g, int64_t r, int64_t row) {
  return ((b * a.n.g + g) * a.n.r + r) * a.n.t + row;
}

/// The shared memory of the kernels, in floats: their tiles and one [B, B] square.
template <int B, int D>
inline constexpr int kForwardFloats = 2 * B* kPitch<D> + B*(B + 1);
template <int B, int D>
inline constexpr int kBackwardFloats = 4 * B* kPitch<D> + B*(B + 1);

/// Turns the scores of B rows and B keys into weights, the exponentials of the scores less each row's highest so far,
/// and rescales the rows' totals [B] and weighted values [B, D] from their highest before to the new one.
template <int B, int D, class Terms>
__device__ __forceinline__ void weigh_keys(const Operands& a, const Terms& terms, const Place& at, int64_t head,
                                           float alibi, int64_t first, float (&score)[B / kSide][B / kSide],
                                           float (&top)[B / kSide], float (&total)[B / kSide],
                                           float (&sums)[B / kSide][D / kSide]) {
  constexpr int kR = B / kSide;
#pragma unroll
  for (int i = 0; i < kR; ++i) {
    float highest = top[i];
#pragma unroll
    for (int j = 0; j < kR; ++j) {
      const int64_t row = at.first + row_of(i), key = first + column_of(j);
      const bool seen = a.sees(at.b, row, key);
      score[i][j] = seen ? a.score(score[i][j]) : -INFINITY;
      if constexpr (Terms::kAny) {
        if (seen) score[i][j] += terms.added(at.b, head, row, key, alibi);
        if (score[i][j] <= kHidden) score[i][j] = -INFINITY;
      }
      highest = fmaxf(highest, score[i][j]);
    }
    highest = row_max(highest);
    const float by = highest == -INFINITY ? 0.0f : highest;  // a row that has seen no key: every exponential is 0
    const float factor = expf(top[i] - by);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kR; ++j) sum += score[i][j] = expf(score[i][j] - by);
    total[i] = total[i] * factor + row_sum(sum);
    top[i] = highest;
#pragma unroll
    for (int c = 0; c < D / kSide; ++c) sums[i][c] *= factor;
    if constexpr (Terms::kAny) {
#pragma unroll
      for (int j = 0; j < kR; ++j)
        if (score[i][j] != 0.0f) score[i][j] *= terms.factor(at.b, head, at.first + row_of(i), first + column_of(j));
    }
  }
}

/// Divides the weighted values [B, D] of a tile's rows by their total weight, and writes the rows' log-sum-exps.
template <int B, int D>
__device__ __forceinline__ void finish_rows(const Operands& a, const Place& at, const float (&top)[B / kSide],
                                            const float (&total)[B / kSide], float (&sums)[B / kSide][D / kSide],
                                            float* logs) {
  constexpr int kR = B / kSide;
#pragma unroll
  for (int i = 0; i < kR; ++i) {
    const bool none = total[i] == 0.0f;
    const int64_t row = at.first + row_of(i);
    if (row < a.n.t && column_of(0) == 0)
      logs[log_at(a, at.b, at.g, at.r, row)] = none ? (a.marks_no_keys ? kNoKeys : 0.0f) : top[i] + logf(total[i]);
#pragma unroll
    for (int c = 0; c < D / kSide; ++c) sums[i][c] = none ? 0.0f : sums[i][c] / total[i];
  }
}

/// out [B, e] and log-sum-exps [B] of one tile of queries of one head, from the tiles of keys that it sees, one after
/// the other. One block per (sample, head, tile of queries); see place_of().
template <int B, int D, class Terms>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(Operands a, Terms terms, Ref<Mixed> out, float* logs, int64_t tiles) {
  constexpr int kR = B / kSide;
  wait_for_kernel_before();
  let_next_kernel_start();
  extern __shared__ float4 attention_shared[];
  float* const queries = reinterpret_cast<float*>(attention_shared);
  float* const keys = queries + B * kPitch<D>;  // and the values
  float* const square = keys + B * kPitch<D>;
  const Place at = place_of(a.n.g * a.n.r, a.n.r, tiles, B);
  load_tile<B, D>(queries, from(a.q_data, offset_of(a.q, at.b, at.g, at.r, at.first)), a.q.row, a.n.t - at.first,
                  a.n.d);
  float sums[kR][D / kSide] = {}, top[kR], total[kR] = {};
#pragma unroll
  for (int i = 0; i < kR; ++i) top[i] = -INFINITY;
  const int64_t end = a.keys_of(at.first + B), head = at.g * a.n.r + at.r;
  float alibi = 0;
  if constexpr (Terms::kAny) alibi = terms.terms.slope_of(head);
  for (int64_t first = a.first_key_of(at.b, at.first, at.first + B); first < end; first += B) {
    __syncthreads();
    load_tile<B, D>(keys, from(a.k_data, offset_of(a.k, at.b, at.g, 0, first)), a.k.row, a.n.s - first, a.n.d);
    __syncthreads();
    float score[kR][kR];
    dots<B, D>(queries, keys, score);
    weigh_keys<B, D>(a, terms, at, head, alibi, first, score, top, total, sums);
    store_square<B>(square, score);
    __syncthreads();
    load_tile<B, D>(keys, from(a.v_data, offset_of(a.v, at.b, at.g, 0, first)), a.v.row, a.n.s - first, a.n.e);
    __syncthreads();
    add_product<B, D, false>(square, keys, sums);
  }
  finish_rows<B, D>(a, at, top, total, sums, logs);
  write_tile<B, D>(from(out, offset_of(a.out, at.b, at.g, at.r, at.first)), a.out.row, a.n.t - at.first, a.n.e, sums);
}

/// means[b, g, r, t] = sum of dy * out over the features of the head: one warp per row.
inline __global__ void __launch_bounds__(kThreads)
    means_kernel(Operands a, Ref<Mixed> dy, Ref<Mixed> out, float* means) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= a.n.b * a.n.g * a.n.r * a.n.t) return;
  const int64_t t = row % a.n.t, head = row / a.n.t;
  const int64_t at = offset_of(a.out, head / (a.n.g * a.n.r), head / a.n.r % a.n.g, head % a.n.r, t);
  float sum = 0;
  for (int64_t e = lane; e < a.n.e; e += 32) sum += value(dy, at + e) * value(out, at + e);
#pragma unroll
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (lane == 0) means[row] = sum;
}

/// Operands that the gradients read in addition.
struct GradOperands {
  Ref<Mixed> dy;
  const float *logs, *means;
};

/// Recomputes the attention weights of one thread's elements from the tiles of q, k, dy and v. p = e^(score - log),
/// times the factor of dropout; g: the gradient of the product q . k, or with kOfScores that of the score, to which
/// bias and ALiBi are added.
template <int B, int D, bool kOfScores = false, class Terms>
__device__ void slopes(const Operands& a, const Terms& terms, const GradOperands& grad, const Place& at, int64_t row0,
                       int64_t key0, const float* queries, const float* keys, const float* dys, const float* values,
                       float (&p)[B / kSide][B / kSide], float (&g)[B / kSide][B / kSide]) {
  dots<B, D>(queries, keys, p);
  dots<B, D>(dys, values, g);
  const int64_t head = at.g * a.n.r + at.r;
  float alibi = 0;
  if constexpr (Terms::kAny) alibi = terms.terms.slope_of(head);
#pragma unroll
  for (int i = 0; i < B / kSide; ++i) {
    const int64_t row = row0 + row_of(i);
    const int64_t at_log = log_at(a, at.b, at.g, at.r, row < a.n.t ? row : 0);
    const float log = grad.logs[at_log], mean = grad.means[at_log];
#pragma unroll
    for (int j = 0; j < B / kSide; ++j) {
      const int64_t key = key0 + column_of(j);
      const float product = a.score(p[i][j]);
      float score = product, kept = 1.0f;
      bool seen = a.sees(at.b, row, key);
      if constexpr (Terms::kAny) {
        if (seen) {
          score += terms.added(at.b, head, row, key, alibi);
          kept = terms.factor(at.b, head, row, key);
          seen = !(score <= kHidden);
        }
      }
      const float weight = seen ? expf(score - log) : 0.0f;
      p[i][j] = weight * kept;
      g[i][j] = kOfScores ? weight * (g[i][j] * kept - mean)
                          : a.scale * weight * (g[i][j] * kept - mean) * a.slope_at(product);
    }
  }
}

/// dk and dv of one tile of keys of one kv head: the sums over the tiles of queries of its r query heads that see it.
/// Blocks: (sample, kv head, tile of keys).
template <int B, int D, class Terms>
__global__ void __launch_bounds__(kThreads)
    keys_grad_kernel(Operands a, Terms terms, GradOperands grad, Ref<Mixed> dk, Ref<Mixed> dv, int64_t tiles) {
  constexpr int kR = B / kSide;
  wait_for_kernel_before();
  let_next_kernel_start();
  extern __shared__ float4 attention_shared[];
  float* const keys = reinterpret_cast<float*>(attention_shared);
  float* const values = keys + B * kPitch<D>;
  float* const queries = values + B * kPitch<D>;
  float* const dys = queries + B * kPitch<D>;
  float* const square = dys + B * kPitch<D>;
  Place at = place_of(a.n.g, 1, tiles, B);
  const int64_t key0 = at.first;
  load_tile<B, D>(keys, from(a.k_data, offset_of(a.k, at.b, at.g, 0, key0)), a.k.row, a.n.s - key0, a.n.d);
  load_tile<B, D>(values, from(a.v_data, offset_of(a.v, at.b, at.g, 0, key0)), a.v.row, a.n.s - key0, a.n.e);
  float to_k[kR][D / kSide] = {}, to_v[kR][D / kSide] = {};
  // With causal, rows before the tile's first key see none of it.
  const int64_t position = a.first_key + key0;
  const int64_t before = a.causal && position > a.first_row ? (position - a.first_row) / B * B : 0;
  for (at.r = 0; at.r < a.n.r; ++at.r) {
    for (int64_t row0 = before; row0 < a.n.t; row0 += B) {
      if (a.first_key_of(at.b, row0, row0 + B) >= key0 + B) continue;  // a window or documents: no row sees the tile
      __syncthreads();
      load_tile<B, D>(queries, from(a.q_data, offset_of(a.q, at.b, at.g, at.r, row0)), a.q.row, a.n.t - row0, a.n.d);
      load_tile<B, D>(dys, from(grad.dy, offset_of(a.out, at.b, at.g, at.r, row0)), a.out.row, a.n.t - row0, a.n.e);
      __syncthreads();
      float p[kR][kR], g[kR][kR];
      slopes<B, D>(a, terms, grad, at, row0, key0, queries, keys, dys, values, p, g);
      store_square<B>(square, p);
      __syncthreads();
      add_product<B, D, true>(square, dys, to_v);
      __syncthreads();
      store_square<B>(square, g);
      __syncthreads();
      add_product<B, D, true>(square, queries, to_k);
    }
  }
  write_tile<B, D>(from(dk, offset_of(a.k, at.b, at.g, 0, key0)), a.k.row, a.n.s - key0, a.n.d, to_k);
  write_tile<B, D>(from(dv, offset_of(a.v, at.b, at.g, 0, key0)), a.v.row, a.n.s - key0, a.n.e, to_v);
}

/// dq of one tile of queries of one head: the sum over the tiles of keys that it sees. Blocks: (sample, head, tile of
/// queries).
template <int B, int D, class Terms>
__global__ void __launch_bounds__(kThreads)
    queries_grad_kernel(Operands a, Terms terms, GradOperands grad, Ref<Mixed> dq, int64_t tiles) {
  constexpr int kR = B / kSide;
  wait_for_kernel_before();
  let_next_kernel_start();
  extern __shared__ float4 attention_shared[];
  float* const keys = reinterpret_cast<float*>(attention_shared);
  float* const values = keys + B * kPitch<D>;
  float* const queries = values + B * kPitch<D>;
  float* const dys = queries + B * kPitch<D>;
  float* const square = dys + B * kPitch<D>;
  const Place at = place_of(a.n.g * a.n.r, a.n.r, tiles, B);
  const int64_t row0 = at.first;
  load_tile<B, D>(queries, from(a.q_data, offset_of(a.q, at.b, at.g, at.r, row0)), a.q.row, a.n.t - row0, a.n.d);
  load_tile<B, D>(dys, from(grad.dy, offset_of(a.out, at.b, at.g, at.r, row0)), a.out.row, a.n.t - row0, a.n.e);
  float to_q[kR][D / kSide] = {};
  const int64_t end = a.keys_of(row0 + B);
  for (int64_t key0 = a.first_key_of(at.b, row0, row0 + B); key0 < end; key0 += B) {
    __syncthreads();
    load_tile<B, D>(keys, from(a.k_data, offset_of(a.k, at.b, at.g, 0, key0)), a.k.row, a.n.s - key0, a.n.d);
    load_tile<B, D>(values, from(a.v_data, offset_of(a.v, at.b, at.g, 0, key0)), a.v.row, a.n.s - key0, a.n.e);
    __syncthreads();
    float p[kR][kR], g[kR][kR];
    slopes<B, D>(a, terms, grad, at, row0, key0, queries, keys, dys, values, p, g);
    store_square<B>(square, g);
    __syncthreads();
    add_product<B, D, false>(square, keys, to_q);
  }
  write_tile<B, D>(from(dq, offset_of(a.q, at.b, at.g, at.r, row0)), a.q.row, a.n.t - row0, a.n.d, to_q);
}

}  // namespace trainctl::attention
