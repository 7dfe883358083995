// dtable[ids[t], :] += dy[t, :], without atomics and in a fixed order. A few ids: a block owns rows of the table, looks
// through all ids for its own, and adds their dy up in shared memory. Many: tokens are sorted by row first (stable); a
// warp then adds up a row's, and a block those of a row that is named often, such as padding.
#include "engine/ops/cuda_kernels.h"
#include "engine/ops/embedding/table_rows_cuda.cuh"
#include "engine/ops/vector_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kRowsOfRange = 256;  ///< rows of which one block sorts the tokens
constexpr int kSortThreads = 1024;
constexpr int kSortWarps = kSortThreads / 32;
constexpr int kOften = 64;  ///< tokens of a row that is worth a block
constexpr int kFewTokens = 1024;

/// Tokens by row, in the order of the batch: those of row r are tokens[first[r]] to tokens[first[r + 1] - 1].
struct Sorted {
  int* first = nullptr;        ///< [rows + 1]
  int* often = nullptr;        ///< [ranges, kRowsOfRange]: rows with more than kOften tokens
  int* often_count = nullptr;  ///< [ranges]
  int* unsorted = nullptr;     ///< [tokens]: by range only
  int* tokens = nullptr;       ///< [tokens]
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

/// The tokens of rows [low, high), in order, to `to`. Returns how many.
__device__ int gather(const TableRows& rows, const int32_t* ids, int tokens, int low, int high, int* to) {
  constexpr int kEach = 4;  // neighbours, so that the order stays
  int written = 0;
  for (int start = 0; start < tokens; start += kSortThreads * kEach) {
    int token[kEach], mine = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      token[i] = start + static_cast<int>(threadIdx.x) * kEach + i;
      const int row = token[i] < tokens ? rows.local(ids[token[i]]) : -1;
      if (row < low || row >= high) token[i] = -1;
      mine += token[i] >= 0 ? 1 : 0;
    }
    int total = 0;
    int place = written + sum_before<kSortThreads>(mine, total);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (token[i] >= 0) to[place++] = token[i];
    }
    written += total;
  }
  __syncthreads();
  return written;
}

// Kernels

/// A block sorts the tokens of one range of rows, behind those of lower ranges, which it counts itself. Each warp has a
/// part of the list, and counts and places it by rows of its own.
__global__ void __launch_bounds__(kSortThreads)
    sort_kernel(TableRows rows, const int32_t* ids, int tokens, Sorted sorted) {
  __shared__ int places[kSortWarps][kRowsOfRange];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int low = static_cast<int>(blockIdx.x) * kRowsOfRange;
  const int high = min(low + kRowsOfRange, static_cast<int>(rows.count));
  int lower = 0, first = 0;
  for (int t = threadIdx.x; t < tokens; t += kSortThreads) {
    const int row = rows.local(ids[t]);
    lower += row >= 0 && row < low ? 1 : 0;
  }
  sum_before<kSortThreads>(lower, first);
  for (int i = threadIdx.x; i < kSortWarps * kRowsOfRange; i += kSortThreads)
    places[i / kRowsOfRange][i % kRowsOfRange] = 0;
  const int count = gather(rows, ids, tokens, low, high, sorted.unsorted + first);

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int part = (count + kSortThreads - 1) / kSortThreads * 32;  // of a warp
  const int begin = min(count, warp * part), end = min(count, begin + part);
  const auto over_part = [&](auto use) {  // use(token, row or -1, its equals in the warp)
    for (int i = begin; i < end; i += 32) {
      const int token = i + lane < end ? sorted.unsorted[first + i + lane] : -1;
      const int row = token >= 0 ? rows.local(ids[token]) - low : -1;
      use(token, row, __match_any_sync(~0u, row));
      __syncwarp();
    }
  };
  const unsigned before_me = (1u << lane) - 1;
  over_part([&](int, int row, unsigned equals) {
    if (row >= 0 && (equals & before_me) == 0) places[warp][row] += __popc(equals);
  });
  __syncthreads();
  int of_row = 0, total = 0;
  if (threadIdx.x < kRowsOfRange) {
    for (int w = 0; w < kSortWarps; ++w) of_row += places[w][threadIdx.x];
  }
  int place = first + sum_before<kSortThreads>(of_row, total);
  const int row = low + static_cast<int>(threadIdx.x);
  if (threadIdx.x < kRowsOfRange && row < high) {
    sorted.first[row] = place;
    if (row == static_cast<int>(rows.count) - 1) sorted.first[row + 1] = place + of_row;
    for (int w = 0; w < kSortWarps; ++w) {
      const int here = places[w][threadIdx.x];
      places[w][threadIdx.x] = place;
      place += here;
    }
  }
  int oftens = 0;
  const bool often = threadIdx.x < kRowsOfRange && of_row > kOften;
  const int of_often = sum_before<kSortThreads>(often ? 1 : 0, oftens);
  if (often) sorted.often[low + of_often] = row;
  if (threadIdx.x == 0) sorted.often_count[blockIdx.x] = oftens;
  __syncthreads();
  over_part([&](int token, int r, unsigned equals) {
    const int to = r >= 0 ? places[warp][r] + __popc(equals & before_me) : 0;
    __syncwarp();
    if (r >= 0 && (equals & before_me) == 0) places[warp][r] += __popc(equals);
    if (r >= 0) sorted.tokens[to] = token;
  });
}

template <int V>
__device__ void write_row(Ref<Mixed> table, int64_t at, bool accumulate, const float (&sum)[V]) {
#pragma unroll
  for (int j = 0; j < V; ++j) set(table, at + j, accumulate ? value(table, at + j) + sum[j] : sum[j]);
}

constexpr int kWarpPacks = 4;  ///< of a row, by each lane

/// A warp a row, in gridDim.y parts of its width.
template <int V, class T>
__global__ void __launch_bounds__(256)
    rows_kernel(int rows, int64_t width, Sorted sorted, Ref<T> dy, Ref<Mixed> table, bool accumulate) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int row = static_cast<int>(blockIdx.x) * 8 + static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  const int begin = sorted.first[row], end = sorted.first[row + 1];
  if (end - begin > kOften || (accumulate && begin == end)) return;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kWarpPacks * 32 + lane) * V;
  float sum[kWarpPacks][V] = {};
  for (int i = begin; i < end; ++i) {
    const int64_t from = sorted.tokens[i] * width + column;
    Raw<T, V> raw[kWarpPacks];
#pragma unroll
    for (int k = 0; k < kWarpPacks; ++k) {
      if (column + k * 32 * V < width) raw[k] = fetch<V>(dy, from + k * 32 * V);
    }
#pragma unroll
    for (int k = 0; k < kWarpPacks; ++k) {
      float v[V];
      unpack(raw[k], v);
#pragma unroll
      for (int j = 0; j < V; ++j) sum[k][j] += v[j];
    }
  }
#pragma unroll
  for (int k = 0; k < kWarpPacks; ++k) {
    if (column + k * 32 * V < width) write_row(table, row * width + column + k * 32 * V, accumulate, sum[k]);
  }
}

/// A block a row that is named often, in gridDim.y parts of its width: each warp adds every 32nd token.
template <int V, class T>
__global__ void __launch_bounds__(kSortThreads)
    often_kernel(int ranges, int64_t width, Sorted sorted, Ref<T> dy, Ref<Mixed> table, bool accumulate) {
  __shared__ float of_warp[kSortWarps][32 * V];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * 32 + lane) * V;
  for (int range = blockIdx.x; range < ranges; range += gridDim.x) {
    for (int k = 0; k < sorted.often_count[range]; ++k) {
      const int row = sorted.often[range * kRowsOfRange + k];
      const int begin = sorted.first[row], end = sorted.first[row + 1];
      constexpr int kInFlight = 4;
      float sum[V] = {};
      for (int i = begin + warp; i < end && column < width; i += kInFlight * kSortWarps) {
        Raw<T, V> raw[kInFlight];
#pragma unroll
        for (int u = 0; u < kInFlight; ++u) {
          raw[u] = fetch<V>(dy, sorted.tokens[min(i + u * kSortWarps, end - 1)] * width + column);
        }
#pragma unroll
        for (int u = 0; u < kInFlight; ++u) {
          float v[V];
          unpack(raw[u], v);
          if (i + u * kSortWarps >= end) continue;
#pragma unroll
          for (int j = 0; j < V; ++j) sum[j] += v[j];
        }
      }
      __syncthreads();
      for (int j = 0; j < V; ++j) of_warp[warp][j * 32 + lane] = sum[j];
      __syncthreads();
      for (int c = threadIdx.x; c < 32 * V; c += kSortThreads) {
        const int64_t to = (static_cast<int64_t>(blockIdx.y) * 32 + c % 32) * V + c / 32;
        float total = 0;
        for (int w = 0; w < kSortWarps; ++w) total += of_warp[w][c];
        if (to < width) write_row<1>(table, row * width + to, accumulate, {total});
      }
    }
  }
}

constexpr int kThreads = 256, kIdsOfThread = 4;
constexpr int kBatch = kThreads * kIdsOfThread;  ///< ids that a block looks through at a time

/// What a block of the kernel for few ids owns.
struct Own {
  int rows = 1;
  int lanes = 32;     ///< threads along the columns, a power of 2
  int64_t width = 0;  ///< of the table
};

template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    few_kernel(TableRows rows, const int32_t* ids, int tokens, Own own, Ref<T> dy, Ref<Mixed> table, bool accumulate) {
  extern __shared__ float4 shared_sums[];
  __shared__ int token_list[kBatch];
  __shared__ unsigned char row_list[kBatch];
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
  int all_found = 0;
  for (int start = 0; start < tokens; start += kBatch) {
    int row[kIdsOfThread], mine = 0;
    const int at = start + static_cast<int>(threadIdx.x) * kIdsOfThread;
#pragma unroll
    for (int i = 0; i < kIdsOfThread; ++i) {
      row[i] = at + i >= tokens ? -1 : rows.local(ids[at + i]);
      mine += row[i] >= low && row[i] < high ? 1 : 0;
    }
    int found = 0;
    int to = sum_before<kThreads>(mine, found);
    all_found += found;
#pragma unroll
    for (int i = 0; i < kIdsOfThread; ++i) {
      if (row[i] < low || row[i] >= high) continue;
      token_list[to] = at + i;
      row_list[to++] = static_cast<unsigned char>(row[i] - low);
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
  if (accumulate && all_found == 0) return;
  for (int r = group; r < high - low && valid; r += groups) {
    float sum[V];
    for (int j = 0; j < V; ++j) sum[j] = sums[r * columns + lane * V + j];
    write_row(table, static_cast<int64_t>(low + r) * own.width + column, accumulate, sum);
  }
}

// Launchers

struct Call {
  TableRows rows;
  const int32_t* ids;
  int tokens;
  int64_t width;
  Ref<Mixed> table;
  bool accumulate;
};

template <int V, class T>
CudaKernel prepare_few(const Call& c, Ref<T> dy) {
  Own own;
  own.width = c.width;
  for (own.lanes = 1; own.lanes < kThreads && own.lanes * V < c.width;) own.lanes *= 2;
  const int columns = own.lanes * V;
  const int64_t most = std::min(256, 8192 / columns);  // 32 KB of sums
  own.rows = static_cast<int>(std::clamp<int64_t>(ceil_div(c.rows.count, 2 * multiprocessors()), 1, most));
  const dim3 grid(static_cast<unsigned>(ceil_div(c.rows.count, own.rows)),
                  static_cast<unsigned>(ceil_div(c.width, columns)));
  const auto shared = static_cast<size_t>(own.rows * columns) * sizeof(float);
  return [=](CudaStream stream) {
    launch(few_kernel<V, T>, grid, kThreads, shared, stream, "embedding_grad", c.rows, c.ids, c.tokens, own, dy,
           c.table, c.accumulate);
  };
}

template <int V, class T>
CudaKernel prepare_many(const Call& c, Ref<T> dy, CudaScratch* scratch) {
  const int64_t ranges = ceil_div(c.rows.count, kRowsOfRange);
  const int rows = static_cast<int>(c.rows.count);
  scratch->need((rows + 1 + ranges * (kRowsOfRange + 1) + int64_t{2} * c.tokens) * static_cast<int64_t>(sizeof(int)));
  const dim3 row_grid(static_cast<unsigned>(ceil_div(rows, 8)),
                      static_cast<unsigned>(ceil_div(c.width, kWarpPacks * 32 * V)));
  const dim3 often_grid(static_cast<unsigned>(std::min<int64_t>(ranges, 64)),
                        static_cast<unsigned>(ceil_div(c.width, 32 * V)));
  return [=](CudaStream stream) {
    Sorted sorted;
    sorted.first = static_cast<int*>(scratch->memory());
    sorted.often = sorted.first + rows + 1;
    sorted.often_count = sorted.often + ranges * kRowsOfRange;
    sorted.unsorted = sorted.often_count + ranges;
    sorted.tokens = sorted.unsorted + c.tokens;
    launch(sort_kernel, static_cast<unsigned>(ranges), kSortThreads, 0, stream, "embedding_grad", c.rows, c.ids,
           c.tokens, sorted);
    launch(rows_kernel<V, T>, row_grid, 256, 0, stream, "embedding_grad", rows, c.width, sorted, dy, c.table,
           c.accumulate);
    launch(often_kernel<V, T>, often_grid, kSortThreads, 0, stream, "embedding_grad", static_cast<int>(ranges), c.width,
           sorted, dy, c.table, c.accumulate);
  };
}

}  // namespace

CudaKernel prepare_embedding_grad_cuda(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &ids = call.in[1], &table = call.out[0];
  if (table.size() == 0) return [](CudaStream) {};
  check(ids.size() < (int64_t{1} << 30) && table.shape[0] < (int64_t{1} << 30),
        "embedding takes up to 2^30 ids and rows");
  const Call c{TableRows(table), ids.as<int32_t>(), static_cast<int>(ids.size()),
               table.shape[1],   ref<Mixed>(table), table.accumulate};
  return with_float_type(dy.dtype, [&](auto t) {
    using T = decltype(t);
    const auto prepare = [&](auto pack) {
      if (c.tokens <= kFewTokens) return prepare_few<pack, T>(c, ref<T>(dy));
      return prepare_many<pack, T>(c, ref<T>(dy), call.scratch);
    };
    if (c.width % kPack<T> == 0 && packs_are_aligned({&dy})) return prepare(std::integral_constant<int, kPack<T>>{});
    return prepare(std::integral_constant<int, 1>{});
  });
}

}  // namespace trainctl
