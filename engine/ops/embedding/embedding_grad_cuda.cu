// dtable[ids[t], :] += dy[t, :], in a fixed order.
//   few ids   a block owns rows of the table: it scans all ids for them and adds their dy in shared memory
//   many ids  tokens are sorted by row (stable); a warp adds a row's dy. Frequent rows, such as padding, are split at
//             windows of the sorted list, one block per window: common words have adjacent ids, so a part of the table
//             could be most of the work. A run is the tokens of one row; a long run has more than kOften. The sum of a
//             long run's tokens in one window is a piece, if the run does not end in the window in which it begins
#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/embedding/embedding_grad_cuda.h"
#include "engine/ops/embedding/token_runs_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kFewTokens = 1024;

/// The gradient of the table.
struct TableGrad {
  Ref<Mixed> p;
  bool accumulate = false;
  bool packs = false;  ///< rows start at 16-byte boundaries

  template <int V>
  __device__ void write(int64_t at, float (&sum)[V]) const {
    if (packs) return add_to<V>(at, sum);
#pragma unroll
    for (int j = 0; j < V; ++j) write_one(at + j, sum[j]);
  }
  __device__ void write_one(int64_t at, float sum) const {
    float one[1] = {sum};
    add_to<1>(at, one);
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

/// Calls put(column, the sum over `count` rows row_of(i) of `from`), in one thread each, for 32 V columns from `first`
/// on. Called by the whole block: each warp adds every 8th row.
template <int V, class F, class RowOf, class Put>
__device__ inline void add_up_rows(Ref<F> from, int64_t width, int64_t first, int count, RowOf row_of, Put put) {
  constexpr int kInFlight = 4;
  __shared__ float of_warp[kRunWarps][32 * V];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t column = first + lane * V;
  float sum[V] = {};
  for (int i = warp; i < count && column < width; i += kInFlight * kRunWarps) {
    Raw<F, V> raw[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u)
      raw[u] = fetch<V>(from, row_of(min(i + u * kRunWarps, count - 1)) * width + column);
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (i + u * kRunWarps >= count) continue;
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
  for (int c = threadIdx.x; c < 32 * V; c += kRunThreads) {
    const int64_t to = first + c % 32 * V + c / 32;
    if (to >= width) continue;
    float total = 0;
    for (int w = 0; w < kRunWarps; ++w) total += of_warp[w][c];
    put(to, total);
  }
}

/// A block adds the long runs of a window, in gridDim.y parts of the width. It also records where rows begin.
template <int V, class T>
__global__ void __launch_bounds__(kRunThreads) runs_kernel(int64_t width, Sorted sorted, Ref<T> dy, TableGrad table) {
  __shared__ Window window;
  wait_for_kernel_before();
  let_next_kernel_start();
  const auto at = static_cast<int>(blockIdx.x);
  window.load(sorted, at, blockIdx.y == 0);
  for (int k = 0; k < window.runs; ++k) {
    const Run run = window.run(k);
    const auto token = [&](int i) { return static_cast<int64_t>(window.token[run.begin + i]); };
    add_up_rows<V>(dy, width, static_cast<int64_t>(blockIdx.y) * 32 * V, run.count, token, [&](int64_t to, float sum) {
      if (run.from_before || run.continues_after) {
        sorted.pieces[sorted.piece(at, run.from_before) * width + to] = sum;
      } else {
        table.write_one(run.row * width + to, sum);
      }
    });
  }
}

constexpr int kWarpPacks = 2;   ///< packs of a row per lane
constexpr int kRowsOfWarp = 8;  ///< processed in turn; the tokens of all of them are read at once

/// Adds the pieces of the row whose run begins in this window and continues after it, for part `part` of the width.
/// Does nothing if the window's last row began earlier, ends in the window, or is infrequent.
template <int V>
__device__ inline void add_up_pieces(int window, int part, int64_t width, const Sorted& sorted,
                                     const TableGrad& table) {
  const int row = sorted.row((window + 1) * kWindow - 1);
  if (row >= sorted.rows) return;
  const int begin = sorted.first[row], end = sorted.first[row + 1];
  const int pieces = (end - 1) / kWindow - window + 1;
  if (begin < window * kWindow || pieces == 1 || end - begin <= kOften) return;
  for (int k = 0; k < kWarpPacks; ++k) {
    const auto piece = [&](int i) { return sorted.piece(window + i, i > 0); };
    add_up_rows<V>(Ref<float>{sorted.pieces}, width, (static_cast<int64_t>(part) * kWarpPacks + k) * 32 * V, pieces,
                   piece, [&](int64_t to, float sum) { table.write_one(row * width + to, sum); });
  }
}

/// The width is split into `parts`, adjacent in the grid so that whole rows are written together. The first blocks add
/// the pieces of a window each, as above. In the others, a warp takes infrequent rows.
template <int V, class T>
__global__ void __launch_bounds__(kRunThreads, 4)
    rows_kernel(int parts, int64_t width, Sorted sorted, Ref<T> dy, TableGrad table) {
  __shared__ int tokens[kRunWarps][kRowsOfWarp][kOften];
  wait_for_kernel_before();
  let_next_kernel_start();
  const auto x = static_cast<int>(blockIdx.x / parts), part = static_cast<int>(blockIdx.x % parts);
  if (x < sorted.windows) return add_up_pieces<V>(x, part, width, sorted, table);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row0 = ((x - sorted.windows) * kRunWarps + warp) * kRowsOfWarp, rows = min(kRowsOfWarp, sorted.rows - row0);
  if (rows <= 0) return;
  const int first = sorted.first[row0 + min(lane, rows)];
  const auto count_of = [&](int k) { return __shfl_sync(~0u, first, k + 1) - __shfl_sync(~0u, first, k); };
#pragma unroll
  for (int k = 0; k < kRowsOfWarp; ++k) {
    const int begin = __shfl_sync(~0u, first, k), count = count_of(k);
    if (count <= kOften && lane < count) tokens[warp][k][lane] = sorted.tokens[begin + lane].index;
  }
  __syncwarp();
  const int64_t column = (static_cast<int64_t>(part) * kWarpPacks * 32 + lane) * V;
#pragma unroll 1
  for (int k = 0; k < rows; ++k) {
    const int count = count_of(k);
    if (count > kOften || (table.accumulate && count == 0)) continue;
    float sum[kWarpPacks][V] = {};
    const auto add = [&]<int U>(std::integral_constant<int, U>, int i) {
      Raw<T, V> raw[U][kWarpPacks];
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const int64_t at = tokens[warp][k][i + u] * width + column;
#pragma unroll
        for (int p = 0; p < kWarpPacks; ++p) {
          if (column + p * 32 * V < width) raw[u][p] = fetch<V>(dy, at + p * 32 * V);
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
    int i = 0;
    for (; i + 1 < count; i += 2) add(std::integral_constant<int, 2>{}, i);
    if (i < count) add(std::integral_constant<int, 1>{}, i);
#pragma unroll
    for (int p = 0; p < kWarpPacks; ++p) {
      if (column + p * 32 * V < width) table.write((row0 + k) * width + column + p * 32 * V, sum[p]);
    }
  }
}

constexpr int kScanThreads = 256, kIdsOfThread = 4;
constexpr int kBatch = kScanThreads * kIdsOfThread;  ///< ids that a block scans at a time

/// The part of the table that a block of the kernel for few ids owns.
struct Own {
  int rows = 1;
  int lanes = 32;     ///< threads across columns, a power of 2
  int64_t width = 0;  ///< width of the table
};

/// The gradients of own.rows rows of a small table, whose sums fit into shared memory. A block goes through all ids,
/// kBatch at a time, and lists the tokens of its rows in order. Blocks: (rows of the table, columns).
template <int V, class T>
__global__ void __launch_bounds__(kScanThreads)
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
  const int groups = kScanThreads / own.lanes, columns = own.lanes * V;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * columns + lane * V;
  const bool valid = column < own.width;
  for (int i = threadIdx.x; i < own.rows * columns; i += kScanThreads) sums[i] = 0;
  __syncthreads();  // needed if there are no ids: the barriers are in the loop
  int all_found = 0;
  for (int start = 0; start < tokens; start += kBatch) {
    int row[kIdsOfThread], mine = 0;
    const int at = start + static_cast<int>(threadIdx.x) * kIdsOfThread;
#pragma unroll
    for (int i = 0; i < kIdsOfThread; ++i) row[i] = ids[min(at + i, tokens - 1)];  // load all before the first check
#pragma unroll
    for (int i = 0; i < kIdsOfThread; ++i) {
      row[i] = at + i >= tokens ? -1 : rows.local(row[i]);
      mine += row[i] >= low && row[i] < high ? 1 : 0;
    }
    int found = 0;
    int to = sum_before<kScanThreads>(mine, found);
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
      for (int u = 0; u < kInFlight; ++u) {  // a row is one group's, which keeps the tokens' order
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
  for (own.lanes = 1; own.lanes < kScanThreads && own.lanes * V < c.width;) own.lanes *= 2;
  const int columns = own.lanes * V;
  const int64_t most = std::min(256, 8192 / columns);  // 32 KB of sums
  own.rows = static_cast<int>(std::clamp<int64_t>(ceil_div(c.rows.count, 2 * multiprocessors()), 1, most));
  const dim3 grid(static_cast<unsigned>(ceil_div(c.rows.count, own.rows)),
                  static_cast<unsigned>(ceil_div(c.width, columns)));
  const auto shared = static_cast<size_t>(own.rows * columns) * sizeof(float);
  return [=](CudaStream stream) {
    launch(few_kernel<V, T>, grid, kScanThreads, shared, stream, "embedding_grad", c.rows, c.ids, c.tokens, own, dy,
           c.table);
  };
}

/// The gradient of a large table: tokens are sorted by row, then runs of equal rows are summed window by window, and
/// the sums of rows that span windows are added.
template <int V, class T>
CudaKernel prepare_many(const Call& c, Ref<T> dy, CudaScratch* scratch) {
  const int64_t windows = Sorted::windows_of(c.tokens);
  TokenSort sort(c.tokens, c.rows.count);
  Sorted sorted;
  sorted.count = c.tokens;
  sorted.rows = static_cast<int>(c.rows.count);
  sorted.windows = static_cast<int>(windows);
  scratch->need(static_cast<int64_t>(sizeof(float)) * 2 * windows * c.width +
                static_cast<int64_t>(sizeof(int)) * (sort.ints() + sorted.rows + 1));
  const dim3 window_grid(static_cast<unsigned>(windows), static_cast<unsigned>(ceil_div(c.width, 32 * V)));
  const int64_t parts = ceil_div(c.width, kWarpPacks * 32 * V);
  const int64_t row_blocks = (windows + ceil_div(sorted.rows, kRunWarps * kRowsOfWarp)) * parts;
  check(row_blocks < (int64_t{1} << 31), "embedding_grad takes up to 2^31 blocks");
  return [=](CudaStream stream) mutable {
    sorted.pieces = static_cast<float*>(scratch->memory());
    int* const behind = reinterpret_cast<int*>(sorted.pieces + 2 * windows * c.width);
    sort.use(behind);
    sorted.tokens = sort.sorted();
    sorted.first = behind + sort.ints();
    launch_sort(c.rows, c.ids, sort, stream, "embedding_grad");
    launch(runs_kernel<V, T>, window_grid, kRunThreads, 0, stream, "embedding_grad", c.width, sorted, dy, c.table);
    launch(rows_kernel<V, T>, static_cast<unsigned>(row_blocks), kRunThreads, 0, stream, "embedding_grad",
           static_cast<int>(parts), c.width, sorted, dy, c.table);
  };
}

}  // namespace

CudaKernel prepare_embedding_grad(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &ids = call.in[1], &table = call.out[0];
  if (table.size() == 0) return [](CudaStream) {};
  check(ids.size() < (int64_t{1} << 30) && table.shape[0] < (int64_t{1} << 30),
        "embedding takes up to 2^30 ids and rows");
  Call c{TableRows(table), ids.as<int32_t>(), static_cast<int>(ids.size()), table.shape[1],
         TableGrad{ref<Mixed>(table), table.accumulate}};
  return with_any_float_type(dy.dtype, [&](auto t) {
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
