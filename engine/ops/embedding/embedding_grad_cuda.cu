// dtable[ids[t], :] += dy[t, :], in a fixed order. A few ids: a block owns rows of the table, looks
// through all ids for its own, and adds their dy up in shared memory. Many: tokens are sorted by row first (stable); a
// warp then adds up a row's. A row that is named often, such as padding, is cut into pieces, each of which a block adds
// up: common words have neighbouring ids, so that no part of the table may be one block's work.
#include "engine/ops/cuda_kernels.h"
#include "engine/ops/embedding/sort_tokens_cuda.cuh"
#include "engine/ops/vector_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kFewTokens = 1024;

/// The gradient of the table.
struct TableGrad {
  Ref<Mixed> p;
  bool accumulate = false;
  bool packs = false;  ///< rows begin at 16-byte borders

  template <int V>
  __device__ void write(int64_t at, float (&sum)[V]) const {
    if (packs) return add_to<V>(at, sum);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      float one[1] = {sum[j]};
      add_to<1>(at + j, one);
    }
  }

 private:
  template <int V>
  __device__ void add_to(int64_t at, float (&sum)[V]) const {
    if (accumulate) {
      float before[V];
      load(p, at, before);
#pragma unroll
      for (int j = 0; j < V; ++j) sum[j] += before[j];
    }
    store(p, at, sum);
  }
};

// Kernels

constexpr int kPieceThreads = 256, kPieceWarps = kPieceThreads / 32;

/// A block adds up the pieces that begin among kPiece places, in gridDim.y parts of the width: each warp every 8th
/// token.
template <int V, class T>
__global__ void __launch_bounds__(kPieceThreads)
    pieces_kernel(int rows, int64_t width, Sorted sorted, Ref<T> dy, TableGrad table) {
  constexpr int kMost = kPiece / kOften;
  __shared__ float of_warp[kPieceWarps][32 * V];
  __shared__ int begins[kMost], count;
  wait_for_kernel_before();
  let_next_kernel_start();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * 32 + lane) * V;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  const int last = min(static_cast<int>(blockIdx.x + 1) * kPiece, sorted.first[rows]);
  for (int i = static_cast<int>(blockIdx.x) * kPiece + threadIdx.x; i < last; i += kPieceThreads) {
    const int row = sorted.often_rows[i];
    if (row < 0) continue;
    const int off = i - sorted.first[row], left = sorted.first[row + 1] - i;
    if (off % kPiece == 0 && (off == 0 || left >= kPiece)) begins[atomicAdd(&count, 1)] = i;  // in any order
  }
  __syncthreads();
  for (int k = 0; k < count; ++k) {
    const int begin = begins[k], row = sorted.often_rows[begin], row_end = sorted.first[row + 1];
    const bool alone = pieces_of(row_end - sorted.first[row]) == 1;
    const int end = row_end - begin < 2 * kPiece ? row_end : begin + kPiece;
    constexpr int kInFlight = 4;
    float sum[V] = {};
    for (int i = begin + warp; i < end && column < width; i += kInFlight * kPieceWarps) {
      int token[kInFlight];
      Raw<T, V> raw[kInFlight];
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) token[u] = sorted.tokens[min(i + u * kPieceWarps, end - 1)];
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) raw[u] = fetch<V>(dy, token[u] * width + column);
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        if (i + u * kPieceWarps >= end) continue;
        float v[V];
        unpack(raw[u], v);
#pragma unroll
        for (int j = 0; j < V; ++j) sum[j] += v[j];
      }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < V; ++j) of_warp[warp][j * 32 + lane] = sum[j];
    __syncthreads();
    for (int c = threadIdx.x; c < 32 * V; c += kPieceThreads) {
      const int64_t to = (static_cast<int64_t>(blockIdx.y) * 32 + c % 32) * V + c / 32;
      if (to >= width) continue;
      float total[1] = {};
      for (int w = 0; w < kPieceWarps; ++w) total[0] += of_warp[w][c];
      if (alone) {
        TableGrad{table.p, table.accumulate, false}.write(row * width + to, total);
      } else {
        sorted.pieces[begin / kPiece * width + to] = total[0];
      }
    }
  }
}

constexpr int kWarpPacks = 4;  ///< of a row, by each lane

/// A warp a row, in gridDim.y parts of its width: it adds up dy of its tokens, or the pieces of a row that has several.
template <int V, class T>
__global__ void __launch_bounds__(256, 1)
    rows_kernel(int rows, int64_t width, Sorted sorted, Ref<T> dy, TableGrad table) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int row = static_cast<int>(blockIdx.x) * 8 + static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  const int begin = sorted.first[row], count = sorted.first[row + 1] - begin;
  const bool often = count > kOften;
  if ((table.accumulate && count == 0) || (often && pieces_of(count) == 1)) return;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kWarpPacks * 32 + lane) * V;
  float sum[kWarpPacks][V] = {};
  const auto add = [&]<int U, class F>(std::integral_constant<int, U>, Ref<F> from, auto row_of) {
    Raw<F, V> raw[U][kWarpPacks];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int64_t at = row_of(u) * width + column;
#pragma unroll
      for (int k = 0; k < kWarpPacks; ++k) {
        if (column + k * 32 * V < width) raw[u][k] = fetch<V>(from, at + k * 32 * V);
      }
    }
#pragma unroll
    for (int m = 0; m < U * kWarpPacks; ++m) {
      float v[V];
      unpack(raw[m / kWarpPacks][m % kWarpPacks], v);
#pragma unroll
      for (int j = 0; j < V; ++j) sum[m % kWarpPacks][j] += v[j];
    }
  };
  constexpr std::integral_constant<int, 2> two;
  constexpr std::integral_constant<int, 1> one;
  if (often) {
    for (int k = 0; k < pieces_of(count); ++k)
      add(one, Ref<float>{sorted.pieces}, [&](int) { return int64_t{begin / kPiece + k}; });
  } else {
    const int token = lane < count ? sorted.tokens[begin + lane] : 0;  // all of the row's at once
    const auto token_of = [&](int i) { return static_cast<int64_t>(__shfl_sync(~0u, token, i)); };
    int i = 0;
    for (; i + 1 < count; i += 2) add(two, dy, [&](int u) { return token_of(i + u); });
    if (i < count) add(one, dy, [&](int) { return token_of(i); });
  }
#pragma unroll
  for (int k = 0; k < kWarpPacks; ++k) {
    if (column + k * 32 * V < width) table.write(row * width + column + k * 32 * V, sum[k]);
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
    few_kernel(TableRows rows, const int32_t* ids, int tokens, Own own, Ref<T> dy, TableGrad table) {
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
  __syncthreads();  // the loop has barriers, but there may be no ids
  int all_found = 0;
  for (int start = 0; start < tokens; start += kBatch) {
    int row[kIdsOfThread], mine = 0;
    const int at = start + static_cast<int>(threadIdx.x) * kIdsOfThread;
#pragma unroll
    for (int i = 0; i < kIdsOfThread; ++i) row[i] = ids[min(at + i, tokens - 1)];  // all, before any is checked
#pragma unroll
    for (int i = 0; i < kIdsOfThread; ++i) {
      row[i] = at + i >= tokens ? -1 : rows.local(row[i]);
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
  if (table.accumulate && all_found == 0) return;
  for (int r = group; r < high - low && valid; r += groups) {
    float sum[V];
    for (int j = 0; j < V; ++j) sum[j] = sums[r * columns + lane * V + j];
    table.write(static_cast<int64_t>(low + r) * own.width + column, sum);
  }
}

// Launchers

struct Call {
  TableRows rows;
  const int32_t* ids;
  int tokens;
  int64_t width;
  TableGrad table;
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
           c.table);
  };
}

template <int V, class T>
CudaKernel prepare_many(const Call& c, Ref<T> dy, CudaScratch* scratch) {
  const int64_t ranges = ceil_div(c.rows.count, kRowsOfRange), windows = ceil_div(c.tokens, kPiece);
  const int rows = static_cast<int>(c.rows.count);
  scratch->need(windows * c.width * static_cast<int64_t>(sizeof(float)) +
                (rows + 1 + int64_t{3} * c.tokens) * static_cast<int64_t>(sizeof(int)));
  const dim3 row_grid(static_cast<unsigned>(ceil_div(rows, 8)),
                      static_cast<unsigned>(ceil_div(c.width, kWarpPacks * 32 * V)));
  const dim3 piece_grid(static_cast<unsigned>(windows), static_cast<unsigned>(ceil_div(c.width, 32 * V)));
  return [=](CudaStream stream) {
    Sorted sorted;
    sorted.pieces = static_cast<float*>(scratch->memory());
    sorted.first = reinterpret_cast<int*>(sorted.pieces + windows * c.width);
    sorted.unsorted = sorted.first + rows + 1;
    sorted.tokens = sorted.unsorted + c.tokens;
    sorted.often_rows = sorted.tokens + c.tokens;
    launch(sort_kernel, static_cast<unsigned>(ranges), kSortThreads, 0, stream, "embedding_grad", c.rows, c.ids,
           c.tokens, sorted);
    launch(pieces_kernel<V, T>, piece_grid, kPieceThreads, 0, stream, "embedding_grad", rows, c.width, sorted, dy,
           c.table);
    launch(rows_kernel<V, T>, row_grid, 256, 0, stream, "embedding_grad", rows, c.width, sorted, dy, c.table);
  };
}

}  // namespace

CudaKernel prepare_embedding_grad_cuda(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &ids = call.in[1], &table = call.out[0];
  if (table.size() == 0) return [](CudaStream) {};
  check(ids.size() < (int64_t{1} << 30) && table.shape[0] < (int64_t{1} << 30),
        "embedding takes up to 2^30 ids and rows");
  Call c{TableRows(table), ids.as<int32_t>(), static_cast<int>(ids.size()), table.shape[1],
         TableGrad{ref<Mixed>(table), table.accumulate}};
  return with_float_type(dy.dtype, [&](auto t) {
    using T = decltype(t);
    const auto prepare = [&](auto pack) {
      c.table.packs = pack > 1 && packs_are_aligned({&table});
      if (c.tokens <= kFewTokens) return prepare_few<pack, T>(c, ref<T>(dy));
      return prepare_many<pack, T>(c, ref<T>(dy), call.scratch);
    };
    if (c.width % kPack<T> == 0 && packs_are_aligned({&dy})) return prepare(std::integral_constant<int, kPack<T>>{});
    return prepare(std::integral_constant<int, 1>{});
  });
}

}  // namespace trainctl
