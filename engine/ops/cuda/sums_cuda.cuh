// Sums over dims of contiguous tensors in one launch. The few numbers that a thread has in flight are added in f32,
// everything else in double and in a fixed order. If one block per output would leave most of the GPU idle, the summed
// range is split: each block writes its part to scratch, and the last block of an output adds the parts.
//
// A Term defines what is summed:
//   static constexpr int kSums                            number of sums computed at once
//   auto begin<V>(k)                                      state of outputs k to k + V - 1, loaded once
//   auto fetch<V>(at, row)                                loads elements at to at + V - 1, of summed row `row`
//   void terms(at, fetched, state, float (&v)[kSums][V])  computes their terms
//   void finish(k, const double (&total)[kSums])          writes output k
// In sums of rows `terms` is called exactly once per element, so it may also write that element's result.
#pragma once

#include "engine/ops/cuda/split_sums_cuda.cuh"
#include "engine/ops/cuda/strided_cuda.cuh"

namespace trainctl {

inline constexpr int kSumThreads = 256;
/// Packs that a thread has in flight; a Term with long code defines kUnroll.
template <class Term>
constexpr int sum_unroll() {
  if constexpr (requires { Term::kUnroll; }) return Term::kUnroll;
  return 4;
}
template <class Term>  // minimum blocks per multiprocessor: with more operands, fewer have enough bytes in flight
inline constexpr int kSumBlocks = Term::kSums == 1 ? 4 : 1;

/// Outputs whose elements are contiguous along the innermost dim: out[k] = sum of runs * run_packs packs.
struct SumOfRows {
  Nest<1> kept;
  Nest<1> runs;
  Divisor run_packs;
  int64_t packs = 0;  ///< per output
  int64_t split = 0;  ///< packs of one of gridDim.y blocks
  int64_t head = 0;   ///< single elements before the packs; only in a sum to one output
  int64_t tail = 0;   ///< and after them
  int group = 32;     ///< threads per output: a power of 2 up to 32, or the block

  /// Offsets of packs p, p + group, .. of the output that starts at `base`. All are computed before the first load, so
  /// that there is no branch between loads.
  template <int V, int U>
  __device__ void places(int64_t base, int64_t p, int64_t (&at)[U]) const {
    if (runs.ndim == 0) {
#pragma unroll
      for (int u = 0; u < U; ++u) at[u] = base + (p + u * group) * V;
      return;
    }
    const auto first = static_cast<uint32_t>(p);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const uint32_t pack = first + u * group, run = run_packs.quotient(pack);
      at[u] = base + int64_t{pack - run * run_packs.by} * V + (runs.ndim == 1 ? run * runs.stride[0][0] : 0);
    }
    if (runs.ndim == 1) return;
#pragma unroll 1
    for (int u = 0; u < U; ++u) {
      int64_t offset[1] = {};
      runs.add_offsets(run_packs.quotient(first + u * group), offset);
#pragma unroll
      for (int k = 0; k < U; ++k) at[k] += k == u ? offset[0] : 0;
    }
  }
};

/// Outputs that are contiguous: out[outer, c] = sum over rows of in[outer, row, c].
struct SumOfColumns {
  Nest<1> outer;
  Nest<1> rows;
  int64_t columns = 0;
  Divisor tiles;       ///< number of tiles of columns
  uint32_t split = 0;  ///< rows of one of gridDim.y blocks
  int lanes = 32;      ///< threads across columns, a power of 2

  /// Offsets of rows r, r + step, ..; computed before the first load, because loads do not overlap across a branch.
  template <int U>
  __device__ void row_offsets(uint32_t r, uint32_t step, int64_t (&at)[U]) const {
    if (rows.ndim == 1) {
#pragma unroll
      for (int u = 0; u < U; ++u) at[u] = (r + u * step) * rows.stride[0][0];
      return;
    }
#pragma unroll
    for (int u = 0; u < U; ++u) at[u] = 0;
#pragma unroll 1
    for (int u = 0; u < U; ++u) {
      int64_t offset[1] = {};
      rows.add_offsets(r + u * step, offset);
#pragma unroll
      for (int k = 0; k < U; ++k) at[k] += k == u ? offset[0] : 0;
    }
  }
};

// Kernels

/// The sum over the group's threads; all of them get it. A group of more than a warp is the block.
__device__ inline double sum_of_group(double v, int group) {
  for (int away = min(group, 32) / 2; away > 0; away /= 2) v += __shfl_xor_sync(~0u, v, away);
  if (group <= 32) return v;
  __shared__ double of_warp[32];
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
  __syncthreads();
  const int warps = (blockDim.x + 31) / 32;
  v = threadIdx.x % 32 < warps ? of_warp[threadIdx.x % 32] : 0.0;
  for (int away = 16; away > 0; away /= 2) v += __shfl_xor_sync(~0u, v, away);
  return v;
}

/// The sum of the blocks' parts, one each. Called by the last block; all of its threads get it.
__device__ inline double sum_of_parts(const Parts& parts) {
  double total = 0;
#pragma unroll 8
  for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) total += __ldcg(&parts.memory[i]);
  return sum_of_group(total, static_cast<int>(blockDim.x));
}

/// Sums along contiguous rows: a group of threads per output and split. The last block of several splits adds their
/// parts in order (Parts).
template <int V, class Term>
__global__ void __launch_bounds__(kSumThreads) sum_rows_kernel(Term term, SumOfRows g, Parts parts) {
  constexpr int N = Term::kSums, kUnroll = sum_unroll<Term>();
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t k = static_cast<int64_t>(blockIdx.x) * (kSumThreads / g.group) + threadIdx.x / g.group;
  const int lane = threadIdx.x % g.group;
  const bool valid = k < parts.outputs;
  const int64_t end = valid ? min(g.packs, (blockIdx.y + 1) * g.split) : 0;
  const auto state = term.template begin<1>(valid ? k : 0);
  int64_t base[1] = {g.head};
  if (valid) g.kept.add_offsets(static_cast<uint32_t>(k), base);
  double total[N] = {};
  int64_t p = blockIdx.y * g.split + lane;
  const auto add_packs = [&]<int U>(std::integral_constant<int, U>) {
    int64_t at[U];
    decltype(term.template fetch<V>(0, 0)) raw[U];
    g.template places<V>(base[0], p, at);
#pragma unroll
    for (int u = 0; u < U; ++u) raw[u] = term.template fetch<V>(at[u], 0);
    float sum[N] = {};
#pragma unroll
    for (int u = 0; u < U; ++u) {
      float v[N][V];
      term.terms(at[u], raw[u], state, v);
#pragma unroll
      for (int n = 0; n < N; ++n) sum[n] += sum_of_pack(v[n]);
    }
#pragma unroll
    for (int n = 0; n < N; ++n) total[n] += sum[n];
  };
  for (; p + (kUnroll - 1) * g.group < end; p += kUnroll * g.group) add_packs(std::integral_constant<int, kUnroll>{});
  for (; p < end; p += g.group) add_packs(std::integral_constant<int, 1>{});
  if (V > 1 && blockIdx.y == gridDim.y - 1 && lane < g.head + g.tail) {
    float v[N][1];
    const int64_t at = lane < g.head ? lane : g.packs * V + lane;
    term.terms(at, term.template fetch<1>(at, 0), state, v);
    for (int n = 0; n < N; ++n) total[n] += v[n][0];
  }
  for (int n = 0; n < N; ++n) total[n] = sum_of_group(total[n], g.group);
  if (gridDim.y > 1) {  // the block is the group
    if (lane == 0) {
      for (int n = 0; n < N; ++n) parts.memory[(blockIdx.y * N + n) * parts.outputs + k] = total[n];
    }
    if (!ends_last(parts.tickets + blockIdx.x, gridDim.y)) return;
    for (int n = 0; n < N; ++n) {
      double sum = 0;
      for (unsigned s = lane; s < gridDim.y; s += kSumThreads)
        sum += __ldcg(&parts.memory[(s * N + n) * parts.outputs + k]);
      total[n] = sum_of_group(sum, g.group);
    }
  }
  if (valid && lane == 0) term.finish(k, total);
}

/// Sums over the threads of a column; the first row of threads gets the result.
template <int M>
__device__ inline void sum_down(double (&total)[M], int lanes) {
  __shared__ double shared[M][kSumThreads];
  for (int threads = kSumThreads / 2; threads >= lanes; threads /= 2) {
    __syncthreads();
    if (threadIdx.x >= threads && threadIdx.x < 2 * threads) {
      for (int m = 0; m < M; ++m) shared[m][threadIdx.x] = total[m];
    }
    __syncthreads();
    if (threadIdx.x < threads) {
      for (int m = 0; m < M; ++m) total[m] += shared[m][threadIdx.x + threads];
    }
  }
}

/// Sums down columns: a thread has V adjacent columns of every `step`-th row. The last block of several splits adds
/// their parts in order.
template <int V, class Term>
__global__ void __launch_bounds__(kSumThreads, kSumBlocks<Term>)
    sum_columns_kernel(Term term, SumOfColumns g, Parts parts) {
  constexpr int N = Term::kSums, kUnroll = sum_unroll<Term>();
  wait_for_kernel_before();
  let_next_kernel_start();
  const uint32_t lane = threadIdx.x % g.lanes, first = threadIdx.x / g.lanes, step = kSumThreads / g.lanes;
  const uint32_t outer = g.tiles.quotient(blockIdx.x);
  const int64_t column = (static_cast<int64_t>(blockIdx.x - outer * g.tiles.by) * g.lanes + lane) * V;
  const bool valid = column < g.columns;
  const int64_t k = outer * g.columns + (valid ? column : 0);
  const auto state = term.template begin<V>(k);
  int64_t base[1] = {valid ? column : 0};
  g.outer.add_offsets(outer, base);
  const auto end = static_cast<uint32_t>(min(g.rows.count, static_cast<int64_t>(blockIdx.y + 1) * g.split));
  double total[N * V] = {};
  uint32_t r = blockIdx.y * g.split + first;
  const auto add_rows = [&]<int U>(std::integral_constant<int, U>) {
    int64_t at[U];
    decltype(term.template fetch<V>(0, 0)) raw[U];
    g.row_offsets(r, step, at);
#pragma unroll
    for (int u = 0; u < U; ++u) raw[u] = term.template fetch<V>(at[u] += base[0], r + u * step);
    float sum[N][V];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      float v[N][V];
      term.terms(at[u], raw[u], state, v);
#pragma unroll
      for (int m = 0; m < N * V; ++m)
        sum[m / V][m % V] = u == 0 ? v[m / V][m % V] : sum[m / V][m % V] + v[m / V][m % V];
    }
#pragma unroll
    for (int m = 0; m < N * V; ++m) total[m] += sum[m / V][m % V];
  };
  for (; r + (kUnroll - 1) * step < end; r += kUnroll * step) add_rows(std::integral_constant<int, kUnroll>{});
  for (; r < end; r += step) add_rows(std::integral_constant<int, 1>{});
  sum_down(total, g.lanes);
  if (gridDim.y > 1) {
    const auto part = [&](unsigned split) -> double* {
      return parts.memory + (static_cast<int64_t>(split) * gridDim.x + blockIdx.x) * (N * V * g.lanes) + lane;
    };
    if (first == 0) {
      for (int m = 0; m < N * V; ++m) part(blockIdx.y)[m * g.lanes] = total[m];
    }
    if (!ends_last(parts.tickets + blockIdx.x, gridDim.y)) return;
    for (int m = 0; m < N * V; ++m) total[m] = 0;
#pragma unroll 4
    for (unsigned s = first; s < gridDim.y; s += step) {  // several loads in flight: latency is high
#pragma unroll
      for (int m = 0; m < N * V; ++m) total[m] += __ldcg(part(s) + m * g.lanes);
    }
    sum_down(total, g.lanes);
  }
  if (first != 0 || !valid) return;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    double of_column[N];
    for (int n = 0; n < N; ++n) of_column[n] = total[n * V + j];
    term.finish(k + j, of_column);
  }
}

// Launchers

template <int V, class Term>
CudaKernel launch_sum_rows(const CudaKernelCall& call, SumOfRows g, int64_t outputs, Term term, const char* name) {
  constexpr int kUnroll = sum_unroll<Term>();
  g.group = kSumThreads;
  // A warp an output, or less, if that fills the GPU or an output has too little work for a block.
  if (outputs > 1 && (g.packs <= 32 * kUnroll || outputs >= int64_t{32} * multiprocessors())) {
    for (g.group = 1; g.group < 32 && g.group < g.packs;) g.group *= 2;
  }
  const int64_t tiles = ceil_div(outputs, kSumThreads / g.group);
  const int64_t round = kUnroll * kSumThreads;
  const int64_t at_once = blocks_at_once(sum_rows_kernel<V, Term>, kSumThreads, 0, name);
  const int64_t wanted = g.group < kSumThreads ? 1 : splits_for(at_once, tiles, g.packs, round, round);
  const Split split(call, wanted, tiles, outputs * Term::kSums);
  g.split = share_of(g.packs, split.splits, round);
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(split.splits));
  return [=](CudaStream stream) {
    launch(sum_rows_kernel<V, Term>, grid, kSumThreads, 0, stream, name, term, g, split.parts(outputs));
  };
}

template <int V, class Term>
CudaKernel launch_sum_columns(const CudaKernelCall& call, SumOfColumns g, Term term, const char* name) {
  constexpr int kUnroll = sum_unroll<Term>();
  const int64_t packs = g.columns / V;
  // 256 contiguous bytes are enough for memory; more would leave fewer tiles, each with more parts to add.
  for (g.lanes = 1; g.lanes < 16 && g.lanes < packs;) g.lanes *= 2;
  g.tiles = Divisor(ceil_div(packs, g.lanes));
  const int64_t tiles = g.outer.count * g.tiles.by, outputs = g.outer.count * g.columns;
  const int64_t round = kUnroll * (kSumThreads / g.lanes);
  const int64_t at_once = blocks_at_once(sum_columns_kernel<V, Term>, kSumThreads, 0, name);
  const Split split(call, splits_for(at_once, tiles, g.rows.count, 2 * round, round), tiles,
                    tiles * g.lanes * V * Term::kSums);
  g.split = static_cast<uint32_t>(share_of(g.rows.count, split.splits, round));
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(split.splits));
  return [=](CudaStream stream) {
    launch(sum_columns_kernel<V, Term>, grid, kSumThreads, 0, stream, name, term, g, split.parts(outputs));
  };
}

/// Sums the terms of a tensor [rows, columns] over its rows. `loaded`: the operands of that shape that the term loads;
/// term_of(T{}) is the term for operands of T.
template <class TermOf>
CudaKernel prepare_column_sums(const CudaKernelCall& call, int64_t rows, int64_t columns, Args loaded, TermOf term_of,
                               const char* name) {
  cpu::Loops<1> loop;
  loop.add(rows, {columns});
  SumOfColumns g;
  g.columns = columns;
  g.rows = Nest<1>(loop);
  if (columns == 0) return [](CudaStream) {};
  const auto fit = [&](int pack) { return columns % pack == 0 && packs_are_aligned(loaded); };
  return with_access<true>(loaded, fit, [&](auto access) {
    return launch_sum_columns<access.V>(call, g, term_of(decltype(element_of(access)){}), name);
  });
}

/// Sums the terms of all n elements into output 0.
template <bool kPacksOfF16 = true, class TermOf>
CudaKernel prepare_total(const CudaKernelCall& call, int64_t n, Args loaded, TermOf term_of, const char* name) {
  int64_t head = 0;
  const auto fit = [&](int pack) { return (head = elements_before_packs(loaded, pack)) >= 0; };
  return with_access<kPacksOfF16>(loaded, fit, [&](auto access) {
    constexpr int V = access.V;
    SumOfRows g;
    g.head = V > 1 ? std::min(head, n) : 0;
    g.packs = (n - g.head) / V;
    g.tail = n - g.head - g.packs * V;
    return launch_sum_rows<V>(call, g, 1, term_of(decltype(element_of(access)){}), name);
  });
}

/// Sums the terms of a tensor of `shape` over the dims whose `out_strides` is 0; outputs keep the order of the
/// other dims. `loaded` and `term_of` as above.
template <class TermOf>
CudaKernel prepare_sums(const CudaKernelCall& call, const Shape& shape, const Shape& out_strides, Args loaded,
                        TermOf term_of, const char* name) {
  const Shape strides = cpu::strides_of(shape);
  cpu::Loops<1> kept, summed;
  for (size_t d = 0; d < shape.size(); ++d) (out_strides[d] == 0 ? summed : kept).add(shape[d], {strides[d]});
  if (kept.ndim == 0 && summed.ndim <= 1) return prepare_total(call, num_elements(shape), loaded, term_of, name);
  if (kept.ndim > 0 && (summed.ndim == 0 || summed.stride[summed.ndim - 1][0] != 1)) {
    std::array<int64_t, 1> inner{};
    SumOfColumns g;
    g.columns = kept.take_inner(inner);
    g.outer = Nest<1>(kept);
    g.rows = Nest<1>(summed);
    if (g.columns * g.outer.count == 0) return [](CudaStream) {};
    const auto fit = [&](int pack) { return g.columns % pack == 0 && packs_are_aligned(loaded); };
    return with_access<true>(loaded, fit, [&](auto access) {
      return launch_sum_columns<access.V>(call, g, term_of(decltype(element_of(access)){}), name);
    });
  }
  std::array<int64_t, 1> inner{};
  const int64_t run = summed.take_inner(inner);
  SumOfRows g;
  g.kept = Nest<1>(kept);
  g.runs = Nest<1>(summed);
  if (g.kept.count == 0) return [](CudaStream) {};
  const auto fit = [&](int pack) { return run % pack == 0 && packs_are_aligned(loaded); };
  return with_access<true>(loaded, fit, [&](auto access) {
    constexpr int V = access.V;
    g.packs = g.runs.count * (run / V);
    check(g.runs.ndim == 0 || g.packs < (int64_t{1} << 31), "CUDA kernels sum up to 2^31 packs in runs");
    if (g.runs.ndim > 0) g.run_packs = Divisor(std::max<int64_t>(1, run / V));
    return launch_sum_rows<V>(call, g, g.kept.count, term_of(decltype(element_of(access)){}), name);
  });
}

/// Writes output k of a sum: out[k] (+)= scale * total; with descend out[k] -= learning_rate * total.
struct SumOutput {
  Ref<Mixed> out;
  bool accumulate = false;
  double scale = 1;
  const float* rate = nullptr;  ///< learning rate; null: no descend

  static SumOutput of(const CudaKernelCall& call, int index, double scale) {
    const TensorArg& arg = call.out[static_cast<size_t>(index)];
    const bool descend = epilogue_of(call.attrs).descend;
    return {ref<Mixed>(arg), arg.accumulate, scale, descend ? &call.scalars->learning_rate : nullptr};
  }
  __device__ void write(int64_t k, double total) const {
    const double before = accumulate ? value(out, k) : 0.0f;
    set(out, k, static_cast<float>(before + (rate == nullptr ? scale : -static_cast<double>(*rate)) * total));
  }
};

/// out[0] (+)= scale * sum of in[0] over the dims whose out_strides is 0.
CudaKernel prepare_plain_sum(const CudaKernelCall& call, const Shape& out_strides, double scale, const char* name);

}  // namespace trainctl
