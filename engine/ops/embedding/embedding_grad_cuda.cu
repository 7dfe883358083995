// dtable[ids[t], :] += dy[t, :], in the order of the tokens and without atomics: a block owns a few rows of the table,
// looks through the ids for its own, and adds their dy up in shared memory. Where table and batch are large, ids are
// first sorted out by ranges of rows, so that a block looks through those of its range alone.
#include "engine/ops/cuda_kernels.h"
#include "engine/ops/embedding/table_rows_cuda.cuh"
#include "engine/ops/vector_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kThreads = 256;
constexpr int kIdsOfThread = 8;
constexpr int kBatch = kThreads * kIdsOfThread;  ///< ids that a block looks through at a time
constexpr int kSortThreads = 1024;
constexpr int kRanges = 256;

/// Tokens by range of rows, each in the order of the batch. Without ranges: all tokens.
struct Ranges {
  int rows = 0;           ///< of a range; 0: tokens are not sorted out
  int* tokens = nullptr;  ///< [tokens]
  int* first = nullptr;   ///< [kRanges]: where a range begins in `tokens`
  int* count = nullptr;   ///< [kRanges]
};

/// How many threads of the block before this one count what; `total` of all. Every thread takes part.
template <int kBlock>
__device__ int sum_before(int mine, int& total) {
  __shared__ int of_warp[kBlock / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = mine;
  for (int away = 1; away < 32; away *= 2) {
    const int other = __shfl_up_sync(~0u, sum, away);
    if (lane >= away) sum += other;
  }
  __syncthreads();
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < kBlock / 32; ++w) {
    if (w < warp) before += of_warp[w];
    total += of_warp[w];
  }
  return before + sum - mine;
}

// Kernels

/// Block r writes the tokens of range r, behind those of lower ranges, which it counts itself.
__global__ void __launch_bounds__(kSortThreads)
    sort_out_kernel(TableRows rows, const int32_t* ids, int tokens, Ranges ranges) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int low = static_cast<int>(blockIdx.x) * ranges.rows, high = low + ranges.rows;
  int lower = 0;
  for (int t = threadIdx.x; t < tokens; t += kSortThreads) {
    const int row = rows.local(ids[t]);
    lower += row >= 0 && row < low ? 1 : 0;
  }
  int first = 0;
  sum_before<kSortThreads>(lower, first);
  int written = 0;
  constexpr int kEach = 4;  // neighbours, so that the order stays
  for (int start = 0; start < tokens; start += kSortThreads * kEach) {
    int token[kEach], mine = 0;
    for (int i = 0; i < kEach; ++i) {
      token[i] = start + static_cast<int>(threadIdx.x) * kEach + i;
      const int row = token[i] < tokens ? rows.local(ids[token[i]]) : -1;
      if (row < low || row >= high) token[i] = -1;
      mine += token[i] >= 0 ? 1 : 0;
    }
    int total = 0;
    int to = first + written + sum_before<kSortThreads>(mine, total);
    for (int i = 0; i < kEach; ++i) {
      if (token[i] >= 0) ranges.tokens[to++] = token[i];
    }
    written += total;
  }
  if (threadIdx.x == 0) {
    ranges.first[blockIdx.x] = first;
    ranges.count[blockIdx.x] = written;
  }
}

/// What a block of the second kernel owns: `rows` rows by `columns` columns.
struct Own {
  int rows = 1;
  int lanes = 32;     ///< threads along the columns, a power of 2
  int64_t width = 0;  ///< of the table
};

template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    embedding_grad_kernel(TableRows rows, const int32_t* ids, int tokens, Ranges ranges, Own own, Ref<T> dy,
                          Ref<Mixed> table, bool accumulate) {
  extern __shared__ float4 shared_sums[];
  __shared__ int token_list[kBatch];
  __shared__ unsigned char row_list[kBatch];
  __shared__ bool touched[256];
  float* const sums = reinterpret_cast<float*>(shared_sums);
  wait_for_kernel_before();
  let_next_kernel_start();
  const int low = static_cast<int>(blockIdx.x) * own.rows;
  const int high = min(low + own.rows, static_cast<int>(rows.count));
  const int lane = static_cast<int>(threadIdx.x) % own.lanes, group = static_cast<int>(threadIdx.x) / own.lanes;
  const int groups = kThreads / own.lanes, columns = own.lanes * V;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * columns + lane * V;
  const bool valid = column < own.width;
  for (int i = threadIdx.x; i < own.rows * columns; i += kThreads) sums[i] = 0;
  for (int i = threadIdx.x; i < own.rows; i += kThreads) touched[i] = false;

  const int* list = nullptr;
  if (ranges.rows > 0) {
    const int range = low / ranges.rows;
    list = ranges.tokens + ranges.first[range];
    tokens = ranges.count[range];
  }
  for (int start = 0; start < tokens; start += kBatch) {
    int token[kIdsOfThread], row[kIdsOfThread], mine = 0;
#pragma unroll
    for (int i = 0; i < kIdsOfThread; ++i) {
      const int at = start + static_cast<int>(threadIdx.x) * kIdsOfThread + i;
      token[i] = at >= tokens ? -1 : list != nullptr ? list[at] : at;
      row[i] = token[i] < 0 ? -1 : rows.local(ids[token[i]]);
      mine += row[i] >= low && row[i] < high ? 1 : 0;
    }
    int found = 0;
    int to = sum_before<kThreads>(mine, found);
#pragma unroll
    for (int i = 0; i < kIdsOfThread; ++i) {
      if (row[i] < low || row[i] >= high) continue;
      token_list[to] = token[i];
      row_list[to++] = static_cast<unsigned char>(row[i] - low);
      touched[row[i] - low] = true;
    }
    __syncthreads();
    constexpr int kInFlight = 4;
    for (int first = 0; first < found && valid; first += kInFlight) {
      float v[kInFlight][V];
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {  // a row belongs to one group of threads, which keeps the tokens' order
        if (first + u >= found || row_list[first + u] % groups != group) continue;
        load(dy, token_list[first + u] * own.width + column, v[u]);
      }
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        if (first + u >= found || row_list[first + u] % groups != group) continue;
        float* const sum = sums + row_list[first + u] * columns + lane * V;
        for (int j = 0; j < V; ++j) sum[j] += v[u][j];
      }
    }
    __syncthreads();
  }
  __syncthreads();
  for (int r = group; r < high - low && valid; r += groups) {
    if (accumulate && !touched[r]) continue;
    const float* const sum = sums + r * columns + lane * V;
    for (int j = 0; j < V; ++j) {
      const int64_t at = static_cast<int64_t>(low + r) * own.width + column + j;
      set(table, at, accumulate ? value(table, at) + sum[j] : sum[j]);
    }
  }
}

}  // namespace

// Launchers

CudaKernel prepare_embedding_grad_cuda(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &ids = call.in[1], &table = call.out[0];
  const int64_t rows = table.shape[0], width = table.shape[1];
  if (table.size() == 0) return [](CudaStream) {};
  check(ids.size() < (int64_t{1} << 31) && rows < (int64_t{1} << 31), "embedding takes up to 2^31 ids and rows");
  const int tokens = static_cast<int>(ids.size());
  return with_float_type(dy.dtype, [&](auto t) {
    using T = decltype(t);
    const auto prepare = [&](auto pack) {
      Own own;
      own.width = width;
      for (own.lanes = 1; own.lanes < kThreads && own.lanes * pack < width;) own.lanes *= 2;
      const int columns = own.lanes * pack;
      own.rows = static_cast<int>(std::min<int64_t>(rows, std::min(256, 16384 / columns)));  // 64 KB of sums
      const dim3 grid(static_cast<unsigned>(ceil_div(rows, own.rows)), static_cast<unsigned>(ceil_div(width, columns)));
      const auto shared = static_cast<size_t>(own.rows * columns) * sizeof(float);
      cuda_check(cudaFuncSetAttribute(embedding_grad_kernel<pack, T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shared)),
                 "embedding_grad");
      Ranges ranges;
      // Every block looking through every id: worth sorting them out first where that is much.
      if (int64_t{grid.x} * grid.y * tokens > 8 << 20) {
        ranges.rows = static_cast<int>(ceil_div(ceil_div(rows, kRanges), own.rows) * own.rows);
        call.scratch->need((int64_t{tokens} + 2 * kRanges) * static_cast<int64_t>(sizeof(int)));
      }
      return CudaKernel([=, own_rows = TableRows(table), at = static_cast<const int32_t*>(ids.as<int32_t>()),
                         from = ref<T>(dy), to = ref<Mixed>(table), add = table.accumulate,
                         scratch = call.scratch](CudaStream stream) {
        Ranges sorted = ranges;
        if (ranges.rows > 0) {
          sorted.first = static_cast<int*>(scratch->memory());
          sorted.count = sorted.first + kRanges;
          sorted.tokens = sorted.count + kRanges;
          const auto blocks = static_cast<unsigned>(ceil_div(own_rows.count, ranges.rows));
          launch(sort_out_kernel, blocks, kSortThreads, 0, stream, "embedding_grad", own_rows, at, tokens, sorted);
        }
        launch(embedding_grad_kernel<pack, T>, grid, kThreads, shared, stream, "embedding_grad", own_rows, at, tokens,
               sorted, own, from, to, add);
      });
    };
    if (width % kPack<T> == 0 && packs_are_aligned({&dy})) return prepare(std::integral_constant<int, kPack<T>>{});
    return prepare(std::integral_constant<int, 1>{});
  });
}

}  // namespace trainctl
