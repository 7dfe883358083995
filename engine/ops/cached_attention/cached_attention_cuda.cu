// Three kernels: the new keys and values are written; blocks attend to a part of the keys each; the parts are combined.
//
//   grid of attend   x: sample, row, kv head, up to R of its query heads    y: part of the keys
//   warp             K keys at a time, so that their loads overlap: a dot product with each of R queries, over the
//   lanes lane             U features, 32 apart, of q, of the keys, and of the sum of values
#include "engine/ops/cached_attention/cached_attention_shape.h"
#include "engine/ops/cached_attention/key_splits.h"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/vector_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kCachedThreads = 256, kCachedWarps = kCachedThreads / 32;

/// Keys whose features a lane has in registers at a time.
template <int U>
constexpr int kKeysAtOnce = U <= 4 ? 4 : 2;

template <class T>
struct CachedOperands {
  AttentionSize n;
  Heads q_heads{}, k_heads{}, v_heads{}, out_heads{}, k_cache_heads{}, v_cache_heads{};
  int64_t positions = 0, window = 0, keys_of_part = 0, parts = 1, chunks = 1;
  float scale = 1, softcap = 0;
  const T *q = nullptr, *k = nullptr, *v = nullptr;
  const int32_t* starts = nullptr;
  T *k_cache = nullptr, *v_cache = nullptr, *out = nullptr;
  const T* sinks = nullptr;  ///< [query heads], or null
  ScoreTerms terms{};        ///< alibi
  float *sums = nullptr, *tops = nullptr,
        *totals = nullptr;  ///< [rows of heads, parts, e] and [rows of heads, parts]; with several parts
};

/// A thread for each feature of the keys and values of the new rows.
template <class T>
__global__ void __launch_bounds__(kCachedThreads) append_kernel(CachedOperands<T> p) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t features = p.n.d + p.n.e;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kCachedThreads + threadIdx.x;
  if (i >= p.n.b * p.n.t * p.n.g * features) return;
  const int64_t f = i % features, g = i / features % p.n.g, row = i / features / p.n.g;
  const int64_t b = row / p.n.t, t = row % p.n.t, position = p.starts[b] + t;
  if (position >= p.positions) return;
  if (f < p.n.d)
    p.k_cache[offset_of(p.k_cache_heads, b, g, 0, position) + f] = p.k[offset_of(p.k_heads, b, g, 0, t) + f];
  else
    p.v_cache[offset_of(p.v_cache_heads, b, g, 0, position) + f - p.n.d] =
        p.v[offset_of(p.v_heads, b, g, 0, t) + f - p.n.d];
}

/// The softmax of R queries over a warp's keys so far: largest score, sum of exponentials, weighted sum of values.
template <int U, int R>
struct KeySums {
  float top[R], total[R], sum[R][U];
};

/// Adds the keys in [begin, end) that this warp takes to the softmax sums of R queries. `k_at`, `v_at`: offsets of the
/// head's first key and value; `slopes`: those of ALiBi; `position`: that of the query.
template <class T, int U, int R>
__device__ void attend_to_keys(const CachedOperands<T>& p, int64_t k_at, int64_t v_at, int64_t begin, int64_t end,
                               int64_t position, const float (&slopes)[R], const float (&q)[R][U],
                               KeySums<U, R>& sums) {
  constexpr int K = kKeysAtOnce<U>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int64_t first = begin + warp * K; first < end; first += kCachedWarps * K) {
    float key[K][U], value[K][U];
#pragma unroll
    for (int i = 0; i < K; ++i) {
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const int64_t f = lane + 32 * u, j = first + i;
        key[i][u] = j < end && f < p.n.d ? to_f32(p.k_cache[k_at + j * p.k_cache_heads.row + f]) : 0.0f;
        value[i][u] = j < end && f < p.n.e ? to_f32(p.v_cache[v_at + j * p.v_cache_heads.row + f]) : 0.0f;
      }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float scores[K], top = sums.top[r];
#pragma unroll
      for (int i = 0; i < K; ++i) {
        float score = 0;
#pragma unroll
        for (int u = 0; u < U; ++u) score += q[r][u] * key[i][u];
#pragma unroll
        for (int step = 16; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffffu, score, step);
        if (p.softcap > 0) score = p.softcap * tanhf(score / p.softcap);
        score -= slopes[r] * static_cast<float>(position - first - i);
        scores[i] = first + i < end ? score : -INFINITY;
        top = fmaxf(top, scores[i]);
      }
      const float before = expf(sums.top[r] - top);
      sums.top[r] = top;
      sums.total[r] *= before;
#pragma unroll
      for (int u = 0; u < U; ++u) sums.sum[r][u] *= before;
#pragma unroll
      for (int i = 0; i < K; ++i) {
        const float weight = expf(scores[i] - top);
        sums.total[r] += weight;
#pragma unroll
        for (int u = 0; u < U; ++u) sums.sum[r][u] += weight * value[i][u];
      }
    }
  }
}

/// The output, given the sum over all keys and the largest score. A row that sees no key is 0.
template <class T>
__device__ float result_of(const CachedOperands<T>& p, float sum, float total, float top, int64_t head) {
  if (!(total > 0)) return 0.0f;
  if (p.sinks == nullptr) return sum / total;
  const float sink = to_f32(p.sinks[head]), highest = fmaxf(top, sink), factor = expf(top - highest);
  return sum * factor / (total * factor + expf(sink - highest));
}

/// Writes the sums of the block's warps: the output, or the part's entry.
template <class T, int U, int R>
__device__ void write_part(const CachedOperands<T>& p, const KeySums<U, R>& sums, int64_t head_row, int64_t out_at,
                           int64_t first_head, int64_t count) {
  __shared__ float tops[kCachedWarps][R], totals[kCachedWarps][R], parts[kCachedWarps][R][U * 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int r = 0; r < R; ++r) {
    if (lane == 0) tops[warp][r] = sums.top[r], totals[warp][r] = sums.total[r];
    for (int u = 0; u < U; ++u) parts[warp][r][lane + 32 * u] = sums.sum[r][u];
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < count * p.n.e; i += kCachedThreads) {
    const int r = static_cast<int>(i / p.n.e), f = static_cast<int>(i % p.n.e);
    float top = -INFINITY, total = 0, sum = 0;
    for (int w = 0; w < kCachedWarps; ++w) top = fmaxf(top, tops[w][r]);
    for (int w = 0; w < kCachedWarps; ++w) {
      const float factor = tops[w][r] == -INFINITY ? 0.0f : expf(tops[w][r] - top);
      total += factor * totals[w][r];
      sum += factor * parts[w][r][f];
    }
    if (p.parts == 1) {
      const int64_t head = (head_row + r) % (p.n.g * p.n.r);
      p.out[out_at + (first_head + r) * p.out_heads.head + f] = from_f32<T>(result_of(p, sum, total, top, head));
      continue;
    }
    const int64_t entry = (head_row + r) * p.parts + blockIdx.y;
    p.sums[entry * p.n.e + f] = sum;
    if (f == 0) p.tops[entry] = top, p.totals[entry] = total;
  }
}

/// One block for one row, kv head, up to R of its query heads and one part of the keys.
template <class T, int U, int R>
__global__ void __launch_bounds__(kCachedThreads) attend_kernel(CachedOperands<T> p) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t chunk = blockIdx.x % p.chunks, g = blockIdx.x / p.chunks % p.n.g, row = blockIdx.x / p.chunks / p.n.g;
  const int64_t b = row / p.n.t, t = row % p.n.t, first_head = chunk * R, position = p.starts[b] + t;
  const int64_t count = p.n.r - first_head < R ? p.n.r - first_head : R;
  const int lane = threadIdx.x % 32;
  float q[R][U], slopes[R];
  KeySums<U, R> sums;
  for (int r = 0; r < R; ++r) {
    slopes[r] = p.terms.slope_of(g * p.n.r + first_head + r);
    sums.top[r] = -INFINITY, sums.total[r] = 0;
    const int64_t at = offset_of(p.q_heads, b, g, first_head + (r < count ? r : 0), t);
    for (int u = 0; u < U; ++u) {
      const int64_t f = lane + 32 * u;
      q[r][u] = f < p.n.d ? p.scale * to_f32(p.q[at + f]) : 0.0f;
      sums.sum[r][u] = 0;
    }
  }
  const int64_t seen = position < p.positions ? position + 1 : 0;  // rows beyond the caches see nothing
  int64_t begin = blockIdx.y * p.keys_of_part, end = begin + p.keys_of_part;
  if (p.window > 0 && begin < seen - p.window) begin = seen - p.window;
  if (end > seen) end = seen;
  attend_to_keys<T, U, R>(p, offset_of(p.k_cache_heads, b, g, 0, 0), offset_of(p.v_cache_heads, b, g, 0, 0), begin, end,
                          position, slopes, q, sums);
  write_part<T, U, R>(p, sums, (row * p.n.g + g) * p.n.r + first_head, offset_of(p.out_heads, b, g, 0, t), first_head,
                      count);
}

/// A thread for each element of the output.
template <class T>
__global__ void __launch_bounds__(kCachedThreads) combine_kernel(CachedOperands<T> p) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kCachedThreads + threadIdx.x;
  if (i >= p.n.b * p.n.t * p.n.g * p.n.r * p.n.e) return;
  const int64_t f = i % p.n.e, first = i / p.n.e * p.parts;
  float top = -INFINITY, total = 0, sum = 0;
  for (int64_t part = first; part < first + p.parts; ++part) top = fmaxf(top, p.tops[part]);
  for (int64_t part = first; part < first + p.parts; ++part) {
    const float factor = p.tops[part] == -INFINITY ? 0.0f : expf(p.tops[part] - top);
    total += factor * p.totals[part];
    sum += factor * p.sums[part * p.n.e + f];
  }
  // Rows of heads are in the order of the output.
  p.out[i] = from_f32<T>(result_of(p, sum, total, top, i / p.n.e % (p.n.g * p.n.r)));
}

template <int N>
using CachedInt = std::integral_constant<int, N>;

/// Calls run(U, R).
template <class Run>
CudaKernel with_widths(int64_t features, int64_t queries, Run run) {
  const auto with_queries = [&](auto u) -> CudaKernel {
    if (queries == 1) return run(u, CachedInt<1>{});
    if (queries == 2) return run(u, CachedInt<2>{});
    return run(u, CachedInt<4>{});
  };
  if (features <= 32) return with_queries(CachedInt<1>{});
  if (features <= 64) return with_queries(CachedInt<2>{});
  if (features <= 128) return with_queries(CachedInt<4>{});
  check(features <= 256, "cached_attention supports heads of up to 256 features");
  return with_queries(CachedInt<8>{});
}

template <class T>
CachedOperands<T> operands_of_cached(const CudaKernelCall& call) {
  const CachedAttentionCall c = cached_attention_of(call);
  const AttentionCall& a = c.heads;
  CachedOperands<T> p{.n = a.size, .q_heads = a.q, .k_heads = a.k, .v_heads = a.v, .out_heads = a.out};
  p.k_cache_heads = c.k_cache, p.v_cache_heads = c.v_cache;
  p.positions = c.positions, p.window = a.window;
  p.parts = key_parts(c.positions), p.keys_of_part = ceil_div(c.positions, p.parts);
  p.scale = a.scale, p.softcap = a.softcap;
  p.q = call.in[a.q_at].as<T>(), p.k = call.in[a.k_at].as<T>(), p.v = call.in[a.v_at].as<T>();
  p.k_cache = call.in[0].as<T>(), p.v_cache = call.in[1].as<T>(), p.starts = call.in[2].as<int32_t>();
  p.out = call.out[0].as<T>();
  p.terms = a.terms;
  if (a.has_sinks) p.sinks = call.in[a.sinks_at].as<T>();
  return p;
}

unsigned cached_blocks(int64_t threads) { return static_cast<unsigned>(ceil_div(threads, kCachedThreads)); }

/// Launches append_kernel and attend_kernel, and combine_kernel if the keys are divided into several parts.
template <class T>
CudaKernel prepare_cached(const CudaKernelCall& call) {
  CachedOperands<T> p = operands_of_cached<T>(call);
  const int64_t elements = call.out[0].size(), rows = elements / p.n.e, entries = rows * p.parts;
  if (p.parts > 1) call.scratch->need(key_parts_bytes(elements, rows, p.positions));
  return with_widths(std::max(p.n.d, p.n.e), p.n.r, [&](auto u, auto r) -> CudaKernel {
    constexpr int kU = decltype(u)::value, kR = decltype(r)::value;
    p.chunks = ceil_div(p.n.r, kR);
    return [=, scratch = call.scratch](CudaStream stream) {
      CachedOperands<T> now = p;
      if (now.parts > 1) {
        now.sums = static_cast<float*>(scratch->memory());
        now.tops = now.sums + entries * now.n.e, now.totals = now.tops + entries;
      }
      const int64_t groups = now.n.b * now.n.t * now.n.g;
      launch(append_kernel<T>, cached_blocks(groups * (now.n.d + now.n.e)), kCachedThreads, 0, stream,
             "cached_attention", now);
      launch(attend_kernel<T, kU, kR>,
             dim3(static_cast<unsigned>(groups * now.chunks), static_cast<unsigned>(now.parts)), kCachedThreads, 0,
             stream, "cached_attention", now);
      if (now.parts > 1)
        launch(combine_kernel<T>, cached_blocks(elements), kCachedThreads, 0, stream, "cached_attention", now);
    };
  });
}

CudaKernel prepare_cached_attention(const CudaKernelCall& call) {
  return with_float_type(call.out[0].dtype, [&](auto type) { return prepare_cached<decltype(type)>(call); });
}

}  // namespace

extern const CudaKernels cached_attention_cuda = {{"cached_attention", prepare_cached_attention}};

}  // namespace trainctl
