// A small batch through several layers in one launch: forward, loss and backward, as long as each works on every row
// for itself. A cluster of blocks takes 8 rows through all of them.
//
//   block   of each layer's result columns [32 b, 32 b + 32), and every 32 x blocks further on;
//           each block makes by itself, too, what has no more than 32 columns, and the loss
//   along   weights [n,k]: a warp makes 4 of the columns, its lanes share k
//   across  weights [k,n]: the warps share k, four of it at a time, the lanes of a warp these four and the columns;
//           then the warps' sums are added up
//
// Results go straight into the shared memory of all blocks of the cluster by st.async, whose bytes the receiver's
// mbarrier counts: a layer waits for nothing but its own rows. Weights depend on no layer: they are brought into shared
// memory from the start, as far as there is room; the first layer's go straight to registers.
//
// Rows lie in shared memory as the layer that takes them wants them: row by row for weights along k and for losses,
// k by k for weights across. What was sent is in wide[0], wide[1], wide[0], …: who sends a result has received the
// rows before it, in parts or notes from all blocks, so all of them have read the rows before those. What a block made
// for itself is in own[0], own[1], ….
#include <algorithm>
#include <array>

#include "engine/ops/cluster_messages_cuda.cuh"
#include "engine/ops/clusters_cuda.cuh"
#include "engine/ops/data_check_cuda.cuh"
#include "engine/ops/matmul/finish_cuda.h"
#include "engine/ops/matmul/groups_cuda.h"
#include "engine/ops/matmul/product_shape.h"
#include "engine/ops/tickets_cuda.h"

namespace trainctl::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kRows = 8;                  ///< of a cluster
constexpr int kCols = 32;                 ///< of a block's tile
constexpr int kOwnCols = kCols / kWarps;  ///< of a warp, along k
constexpr int kPartPitch = kCols + 4;     ///< free of bank conflicts, by rows and by columns
constexpr int kMostLinks = 16;
constexpr int kMostClasses = 128;
/// Of a batch: 6 clusters, where an H200 runs 7 at once. Ranks that make the same numbers must decide alike.
constexpr int64_t kMostRows = 48;

enum class LinkKind : uint8_t { product, mae, mse, softmax_cross_entropy };

struct Link {
  LinkKind kind = LinkKind::product;
  bool along = false;      ///< weights are [n,k], else [k,n]
  bool relu = false;
  bool next_along = true;  ///< how the next layer wants its rows
  int k = 0, n = 0;
  int resident = -1;  ///< floats into shared memory, where the block's weights lie; -1: they are read from memory
  const float* x = nullptr;            ///< [rows,k]; a loss's predictions [rows,n]
  const float* w = nullptr;            ///< a loss's labels
  const float* bias = nullptr;         ///< [n]
  const float* relu_result = nullptr;  ///< [rows,n]: times relu's slope
  float* y = nullptr;                  ///< [rows,n]; a loss's gradient
  float* loss = nullptr;               ///< [1]
  bool add_to_loss = false;
  double scale = 1;

  __host__ __device__ int tiles() const { return (n + kCols - 1) / kCols; }
  /// Of a row of results in shared memory: whole packs.
  __host__ __device__ int width() const { return (n + 3) / 4 * 4; }
  /// Whether its results are made in parts by all blocks, and sent.
  __host__ __device__ bool wide() const { return kind == LinkKind::product && n > kCols; }
};

struct Chain {
  Link links[kMostLinks];
  int count = 0;
  int rows = 0, of_cluster = 0;            ///< of the batch; of each cluster
  int blocks = 1;                          ///< of a cluster
  int wide_floats = 0, own_floats = 0;     ///< of one of the two places for rows
  double* parts = nullptr;                 ///< of the loss: one a cluster
  unsigned* ticket = nullptr;
};

// Shared memory, in floats: two mbarriers a link, the warps' sums, rows, weights.
constexpr int kResultsCame = 0, kWeightsCame = 2 * kMostLinks;
constexpr int kParts = 4 * kMostLinks;
constexpr int kWide = kParts + kWarps * kRows * kPartPitch;
constexpr int first_resident(int wide_floats, int own_floats) { return kWide + 2 * (wide_floats + own_floats); }

// Weights

/// Of the block's tile of a resident layer, [cols,k] or [k,cols].
struct Slice {
  int col0, cols;
  __device__ Slice(const Link& l, int block)
      : col0(l.wide() ? block * kCols : 0), cols(min(max(l.n - col0, 0), kCols)) {}
  __device__ int bytes(const Link& l) const { return cols * l.k * static_cast<int>(sizeof(float)); }
};

/// By one thread.
__device__ void prepare_barriers(const Chain& chain, int block, float* shared) {
  for (int i = 0; i < chain.count; ++i) {
    const Link& l = chain.links[i];
    if (l.wide() && i + 1 < chain.count)
      expect_bytes(shared + kResultsCame + 2 * i, l.n * kRows * static_cast<int>(sizeof(float)),
                   max(0, chain.blocks - l.tiles()));
    if (l.resident < 0) continue;
    if (l.along)
      expect_bytes(shared + kWeightsCame + 2 * i, Slice(l, block).bytes(l), 0);
    else
      expect_copies<kThreads>(shared + kWeightsCame + 2 * i);
  }
  publish_barriers();
}

/// What lies in one piece comes by the copy engine, which takes long for small pieces; those come by all threads.
__device__ void fetch_weights(const Chain& chain, int block, float* shared) {
  for (int i = 0; i < chain.count; ++i) {
    const Link& l = chain.links[i];
    if (l.resident < 0) continue;
    const Slice slice(l, block);
    float* const to = shared + l.resident;
    float* const barrier = shared + kWeightsCame + 2 * i;
    if (l.along) {
      if (slice.cols > 0 && threadIdx.x == 0)
        copy_bulk(to, l.w + static_cast<int64_t>(slice.col0) * l.k, slice.bytes(l), barrier);
      continue;
    }
    const int col = static_cast<int>(threadIdx.x) % (kCols / 4) * 4, rows = l.k, apart = l.n;
    const float* const from = l.w + slice.col0 + col;
    if (col < slice.cols) {
#pragma unroll 8
      for (int k = static_cast<int>(threadIdx.x) / (kCols / 4); k < rows; k += kThreads / (kCols / 4))
        copy_async<16>(to + k * slice.cols + col, from + static_cast<int64_t>(k) * apart, true);
    }
    note_copies(barrier);
  }
}

// Products

/// What a block works on, and where its layer's results go.
struct Work {
  int row0, rows;         ///< of the batch
  int blocks;             ///< of the cluster
  const float* x;         ///< rows, in shared memory
  float* rows_came;       ///< wait for this before they are read; null: they are there
  float* weights_came;    ///< and for this before the weights; null: they are in memory
  float* to;              ///< in shared memory; null: nowhere
  float* results_came;    ///< sent to all blocks, counted there; null: kept
  float* parts;
};

/// What a result is finished with, asked for before its sums are there.
struct Extras {
  float bias, relu_result;
  __device__ __forceinline__ Extras(const Link& l, const Work& work, int row, int col) : bias(0), relu_result(1) {
    if (col >= l.n) return;
    if (l.bias != nullptr) bias = l.bias[col];
    if (l.relu_result != nullptr && row < work.rows)
      relu_result = __ldcg(l.relu_result + static_cast<int64_t>(work.row0 + row) * l.n + col);
  }
};

/// One result of each lane, of which four neighbours lie side by side in the next layer's rows.
__device__ __forceinline__ void finish(const Link& l, const Work& work, float sum, int row, int col,
                                       const Extras& extras) {
  float v = sum + extras.bias;
  if (l.relu) v = v < 0.0f ? 0.0f : v;  // a NaN stays one
  if (!(extras.relu_result > 0.0f)) v = 0.0f;
  if (row < work.rows && col < l.n) l.y[static_cast<int64_t>(work.row0 + row) * l.n + col] = v;
  if (work.to == nullptr) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, first = lane & ~3;
  const float4 four{__shfl_sync(~0u, v, first), __shfl_sync(~0u, v, first + 1), __shfl_sync(~0u, v, first + 2),
                    __shfl_sync(~0u, v, first + 3)};
  const int width = l.width();
  if (col - (l.next_along ? lane % 4 : 0) >= width) return;
  float* const to = work.to + (l.next_along ? row * width + col - lane % 4 : col * kRows + row - lane % 4);
  if (work.results_came == nullptr) {
    if (lane % 4 == 0) *reinterpret_cast<float4*>(to) = four;
    return;
  }
  for (int block = lane % 4; block < work.blocks; block += 4) send(block, to, four, work.results_came);
}

__device__ __forceinline__ void wait_for_rows(const Work& work) {
  if (work.rows_came != nullptr) wait_for_bytes(work.rows_came);
}

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

/// Each lane's share of 32 sums, all lanes' together in the end: lane i has sum i.
__device__ __forceinline__ float transposed_sum(float (&sums)[32]) {
  exchange_half<16, 16>(sums);
  exchange_half<8, 8>(sums);
  exchange_half<4, 4>(sums);
  exchange_half<2, 2>(sums);
  exchange_half<1, 1>(sums);
  return sums[0];
}

/// Columns [col0, col0 + 32) with weights [32,k] at `w`: each warp 4 of them.
__device__ __forceinline__ void make_along(const Link& link, const Work& work, int col0, const float* w) {
  constexpr int kAhead = 4;  ///< of a lane's parts of k
  const Link l = link;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int own0 = warp * kOwnCols;
  const bool idle = col0 + own0 >= l.n;
  // Lane i ends up with result i of 4 columns x 8 rows, or of 8 rows x 4 columns.
  const int row = l.next_along ? lane / kOwnCols : lane % kRows;
  const int col = col0 + own0 + (l.next_along ? lane % kOwnCols : lane / kRows);
  const Extras extras(l, work, row, col);
  if (work.weights_came != nullptr) wait_for_bytes(work.weights_came);
  float4 weights[kAhead][kOwnCols];
  const auto load = [&](float4 (&to)[kOwnCols], int part) {
    const int k = lane * 4 + part * 128;
#pragma unroll
    for (int c = 0; c < kOwnCols; ++c) {
      const bool there = k < l.k && col0 + own0 + c < l.n;
      to[c] = there ? *reinterpret_cast<const float4*>(w + static_cast<int64_t>(own0 + c) * l.k + k) : float4{};
    }
  };
#pragma unroll
  for (int j = 0; j < kAhead; ++j) load(weights[j], j);
  wait_for_rows(work);
  if (idle) return;
  float sums[kRows][kOwnCols] = {};
#pragma unroll 1
  for (int first = 0; first * 128 < l.k; first += kAhead) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int k = lane * 4 + (first + j) * 128;
      if (k < l.k) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float4 x = *reinterpret_cast<const float4*>(work.x + r * l.k + k);
#pragma unroll
          for (int c = 0; c < kOwnCols; ++c) {
            sums[r][c] += x.x * weights[j][c].x;
            sums[r][c] += x.y * weights[j][c].y;
            sums[r][c] += x.z * weights[j][c].z;
            sums[r][c] += x.w * weights[j][c].w;
          }
        }
      }
      load(weights[j], first + kAhead + j);
    }
  }
  float flat[kRows * kOwnCols];
#pragma unroll
  for (int i = 0; i < kRows * kOwnCols; ++i) {
    const float by_row = sums[i / kOwnCols][i % kOwnCols], by_col = sums[i % kRows][i / kRows];
    flat[i] = l.next_along ? by_row : by_col;
  }
  finish(l, work, transposed_sum(flat), row, col, extras);
}

/// Columns [col0, col0 + 32) with weights [k,32] at `w`, `apart` floats from one k to the next.
__device__ __forceinline__ void make_across(const Link& link, const Work& work, int col0, const float* w, int apart) {
  constexpr int kAhead = 8;
  const Link l = link;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int own_k = warp * 4 + lane / 8, own_col = lane % 8 * 4;
  const bool there = col0 + own_col < l.n;
  // Each thread finishes one result.
  const int result = static_cast<int>(threadIdx.x);
  const int row = l.next_along ? result / kCols : result % kRows;
  const int col = l.next_along ? result % kCols : result / kRows;
  const Extras extras(l, work, row, col0 + col);
  if (work.weights_came != nullptr) wait_for_bytes(work.weights_came);
  wait_for_rows(work);
  float sums[kRows * 4] = {};  // [rows][columns]
  for (int first = own_k; first < l.k; first += 32 * kAhead) {
    float4 weights[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int k = first + 32 * j;
      weights[j] = k < l.k && there ? *reinterpret_cast<const float4*>(w + static_cast<int64_t>(k) * apart + own_col)
                                    : float4{};
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int k = first + 32 * j;
      if (k >= l.k) break;
      const float4 upper = *reinterpret_cast<const float4*>(work.x + k * kRows);
      const float4 lower = *reinterpret_cast<const float4*>(work.x + k * kRows + 4);
      const float x[kRows] = {upper.x, upper.y, upper.z, upper.w, lower.x, lower.y, lower.z, lower.w};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        sums[r * 4 + 0] += x[r] * weights[j].x;
        sums[r * 4 + 1] += x[r] * weights[j].y;
        sums[r * 4 + 2] += x[r] * weights[j].z;
        sums[r * 4 + 3] += x[r] * weights[j].w;
      }
    }
  }
  // The lanes that share columns: each is left with two rows.
  exchange_half<16, 16>(sums);
  exchange_half<8, 8>(sums);
  float* const own = work.parts + (warp * kRows + lane / 8 * 2) * kPartPitch + own_col;
  *reinterpret_cast<float4*>(own) = {sums[0], sums[1], sums[2], sums[3]};
  *reinterpret_cast<float4*>(own + kPartPitch) = {sums[4], sums[5], sums[6], sums[7]};
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int other = 0; other < kWarps; ++other) sum += work.parts[(other * kRows + row) * kPartPitch + col];
  finish(l, work, sum, row, col0 + col, extras);
  __syncthreads();
}

__device__ __forceinline__ void make_product(const Link& l, const Work& work, int block, const float* shared) {
  if (l.wide() && block >= l.tiles()) {  // it has nothing to make, and says when it has come so far
    wait_for_rows(work);
    if (work.results_came != nullptr && threadIdx.x < work.blocks) send_note(threadIdx.x, work.results_came);
  }
  for (int tile = l.wide() ? block : 0; tile < l.tiles(); tile += work.blocks) {
    const int col0 = tile * kCols;
    if (l.along) {
      make_along(l, work, col0, l.resident >= 0 ? shared + l.resident : l.w + static_cast<int64_t>(col0) * l.k);
    } else {
      const int cols = min(l.n - col0, kCols);
      make_across(l, work, col0, l.resident >= 0 ? shared + l.resident : l.w + col0, l.resident >= 0 ? cols : l.n);
    }
  }
}

/// The cluster's rows of the first layer, zeros beyond the last. By all threads, which do something else meanwhile.
template <class Meanwhile>
__device__ __forceinline__ void load_rows(const Link& l, int row0, int rows, float* x, const Meanwhile& meanwhile) {
  const float* const from = l.x + static_cast<int64_t>(row0) * l.k;
  if (!l.along) {
    meanwhile();
    for (int i = threadIdx.x; i < l.k * kRows; i += kThreads) {
      const int row = i % kRows, k = i / kRows;
      x[i] = row < rows ? from[static_cast<int64_t>(row) * l.k + k] : 0.0f;
    }
    return;
  }
  constexpr int kAhead = 8;
  const int fours = kRows * l.k / 4, there = rows * l.k / 4;  // rows lie one after another, there and here
  float4 v[kAhead];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = first + i * kThreads;
      v[i] = at < there ? reinterpret_cast<const float4*>(from)[at] : float4{};
    }
  };
  load(threadIdx.x);
  meanwhile();
  for (int first = threadIdx.x; first < fours;) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = first + i * kThreads;
      if (at < fours) reinterpret_cast<float4*>(x)[at] = v[i];
    }
    first += kThreads * kAhead;
    if (first < fours) load(first);
  }
}

// Losses

/// Of the block, in a fixed order.
__device__ double sum_of_block(double v) {
  __shared__ double of_warps[kWarps];
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) v += __shfl_xor_sync(~0u, v, apart);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = v;
  __syncthreads();
  v = 0;
  for (int w = 0; w < kWarps; ++w) v += of_warps[w];
  return v;
}

/// What a loss works on: the cluster's predictions and, for its results, gradients, in shared memory. Each block makes
/// all of them; the first one writes them to memory.
struct LossRows {
  const float* x;
  float* dx;
  int x_pitch;
  int row0, rows;
  bool writes;

  /// Where the next layer wants its gradients.
  __device__ float& grad(const Link& l, int row, int col) const {
    return dx[l.next_along ? row * l.width() + col : col * kRows + row];
  }
};

/// Of predictions and labels of the same shape.
__device__ double pair_loss(const Link& l, const LossRows& on) {
  const auto scale = static_cast<float>(l.scale);
  const int n = l.n;
  double total = 0;
  for (int i = threadIdx.x; i < on.rows * n; i += kThreads) {
    const int row = i / n, col = i % n;
    const int64_t at = static_cast<int64_t>(on.row0) * n + i;
    const float off = on.x[row * on.x_pitch + col] - l.w[at];
    const float slope = off > 0.0f ? scale : off < 0.0f ? -scale : off;  // a NaN goes through
    const float grad = l.kind == LinkKind::mae ? slope : 2.0f * scale * off;
    total += l.kind == LinkKind::mae ? static_cast<double>(fabsf(off)) : static_cast<double>(off) * off;
    on.grad(l, row, col) = grad;
    if (on.writes) l.y[at] = grad;
  }
  return total;
}

/// A warp a row; see softmax_cross_entropy_cuda.cu for why the label's own term is kept apart.
__device__ double softmax_loss(const Link& l, const LossRows& on) {
  constexpr int kOfLane = kMostClasses / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  double total = 0;
  for (int row = static_cast<int>(threadIdx.x) / 32; row < on.rows; row += kWarps) {
    const int32_t label = reinterpret_cast<const int32_t*>(l.w)[on.row0 + row];
    if (label < 0 || label >= l.n) data_is_wrong("softmax_cross_entropy: a label is no class of the logits");
    const float* const x = on.x + row * on.x_pitch;
    const float of_label = x[label];
    float v[kOfLane], top = of_label, others = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int c = lane + 32 * i;
      v[i] = c < l.n ? x[c] : of_label;
      top = v[i] <= top ? top : v[i];  // a NaN goes through
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
      const float other = __shfl_xor_sync(~0u, top, apart);
      top = other <= top ? top : other;
    }
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int c = lane + 32 * i;
      v[i] = c < l.n ? __expf(v[i] - top) : 0.0f;
      if (c != label) others += v[i];
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) others += __shfl_xor_sync(~0u, others, apart);
    const float share = static_cast<float>(l.scale) / (others + __expf(of_label - top));
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int c = lane + 32 * i;
      if (c >= l.n) continue;
      const float grad = c == label ? -share * others : v[i] * share;
      on.grad(l, row, c) = grad;
      if (on.writes) l.y[static_cast<int64_t>(on.row0 + row) * l.n + c] = grad;
    }
    if (lane == 0) {
      const double own = exp(static_cast<double>(of_label) - top);
      total += log(static_cast<double>(others) + own) + (static_cast<double>(top) - of_label);
    }
  }
  return total;
}

/// The gradients; gives what this thread has of the loss's sum.
__device__ double make_loss(const Link& l, const LossRows& on) {
  return l.kind == LinkKind::softmax_cross_entropy ? softmax_loss(l, on) : pair_loss(l, on);
}

/// By the first block of each cluster. The last of them adds up the clusters' parts, in their order.
__device__ void write_loss(const Chain& chain, const Link& l, int cluster, int clusters, double of_thread) {
  double total = sum_of_block(of_thread);
  if (threadIdx.x != 0) return;
  if (clusters > 1) {
    __stcg(&chain.parts[cluster], total);
    __threadfence();
    if (atomicAdd(chain.ticket, 1u) != static_cast<unsigned>(clusters) - 1) return;
    *chain.ticket = 0;
    __threadfence();
    total = 0;
    for (int c = 0; c < clusters; ++c) total += __ldcg(&chain.parts[c]);
  }
  *l.loss = static_cast<float>((l.add_to_loss ? *l.loss : 0.0) + l.scale * total);
}

__global__ void __launch_bounds__(kThreads) row_chain(const __grid_constant__ Chain chain) {
  extern __shared__ float4 shared4[];
  float* const shared = reinterpret_cast<float*>(shared4);
  float* wide = shared + kWide;
  float* own = shared + kWide + 2 * chain.wide_floats;
  float *next_wide = wide + chain.wide_floats, *next_own = own + chain.own_floats;
  const int block = static_cast<int>(blockIdx.x) % chain.blocks, cluster = static_cast<int>(blockIdx.x) / chain.blocks;
  const int row0 = cluster * chain.of_cluster, rows = min(chain.of_cluster, chain.rows - row0);
  if (threadIdx.x == 0) prepare_barriers(chain, block, shared);
  wait_for_cluster();  // none sends to a block that has not started
  wait_for_kernel_before();
  let_next_kernel_start();

  load_rows(chain.links[0], row0, rows, wide, [&] { fetch_weights(chain, block, shared); });
  __syncthreads();
  Work work{row0, rows, chain.blocks, wide, nullptr, nullptr, nullptr, nullptr, shared + kParts};
  int loss_at = -1;
  double of_loss = 0;
#pragma unroll 1
  for (int i = 0; i < chain.count; ++i) {
    const Link& l = chain.links[i];
    const bool last = i + 1 == chain.count;
    float* const to = l.wide() ? next_wide : next_own;
    work.to = last ? nullptr : to;
    work.results_came = l.wide() && !last ? shared + kResultsCame + 2 * i : nullptr;
    work.weights_came = l.resident >= 0 ? shared + kWeightsCame + 2 * i : nullptr;
    if (l.kind == LinkKind::product) {
      make_product(l, work, block, shared);
    } else {
      wait_for_rows(work);
      of_loss = make_loss(l, {work.x, to, l.width(), row0, rows, block == 0});
      loss_at = i;
    }
    work.x = to;
    work.rows_came = work.results_came;
    if (l.wide()) {
      next_wide = wide;
      wide = to;
    } else {
      next_own = own;
      own = to;
      __syncthreads();
    }
  }
  if (loss_at >= 0 && block == 0)
    write_loss(chain, chain.links[loss_at], cluster, static_cast<int>(gridDim.x) / chain.blocks, of_loss);
}

// Which kernels are links, and how many clusters they get

std::optional<Link> product_link(const CudaKernelCall& call) {
  const TensorArg &a = call.in[0], &b = call.in[1], &c = call.out[0];
  const std::string activation = call.attrs.text("activation"), slope = call.attrs.text("activation_grad");
  const bool plain = a.dtype == DType::f32 && b.dtype == DType::f32 && c.dtype == DType::f32 && !call.tf32 &&
                     !call.attrs.flag("tf32") && !c.accumulate && call.out.size() == 1 && b.shape.size() == 2 &&
                     !call.attrs.flag("transpose_a") && (activation.empty() || activation == "relu") &&
                     (slope.empty() || slope == "relu");
  if (!plain) return std::nullopt;
  Product p;
  set_matmul_shape(call, p);
  constexpr int64_t kMost = 1 << 13;
  if (p.batch != 1 || p.m == 0 || p.n == 0 || p.k == 0 || p.n > kMost || p.k > kMost) return std::nullopt;
  Link l;
  l.along = p.transpose_b;
  l.relu = !activation.empty();
  l.k = static_cast<int>(p.k);
  l.n = static_cast<int>(p.n);
  l.x = a.as<float>();
  l.w = b.as<float>();
  l.y = c.as<float>();
  if (call.attrs.flag("bias")) {
    if (call.in[2].dtype != DType::f32) return std::nullopt;
    l.bias = call.in[2].as<float>();
  }
  if (!slope.empty()) {
    if (call.in.back().dtype != DType::f32) return std::nullopt;
    l.relu_result = call.in.back().as<float>();
  }
  if (l.along && (l.k % 4 != 0 || !is_aligned(l.x))) return std::nullopt;
  if ((!l.along || l.n > kCols) && l.n % 4 != 0) return std::nullopt;
  return is_aligned(l.w) ? std::optional(l) : std::nullopt;
}

std::optional<Link> loss_link(std::string_view op, const CudaKernelCall& call) {
  Link l;
  if (op == "mae_with_grad") {
    l.kind = LinkKind::mae;
  } else if (op == "mse_with_grad") {
    l.kind = LinkKind::mse;
  } else if (op == "softmax_cross_entropy_with_grad") {
    l.kind = LinkKind::softmax_cross_entropy;
  } else {
    return std::nullopt;
  }
  const TensorArg &x = call.in[0], &labels = call.in[1], &loss = call.out[0], &dx = call.out[1];
  const bool classes = l.kind == LinkKind::softmax_cross_entropy;
  if (x.dtype != DType::f32 || dx.dtype != DType::f32 || loss.dtype != DType::f32 || x.shape.empty() ||
      labels.dtype != (classes ? DType::i32 : DType::f32) || (classes && x.shape.back() > kMostClasses) ||
      (!classes && labels.size() != x.size()) || x.size() == 0 || x.size() > (int64_t{1} << 30)) {
    return std::nullopt;
  }
  // A tensor of one dim has a number a row.
  l.n = x.shape.size() == 1 && !classes ? 1 : static_cast<int>(x.shape.back());
  l.x = x.as<float>();
  l.w = static_cast<const float*>(labels.data);
  l.y = dx.as<float>();
  l.loss = loss.as<float>();
  l.add_to_loss = loss.accumulate;
  l.scale = call.attrs.number("scale", 1.0);
  return l;
}

/// Each link takes the rows of the one before; weights, biases and labels come from outside. A result for a slope was
/// made by the same block, and a link lies between, at whose end its threads meet.
bool is_chain(const Chain& chain) {
  for (int i = 0; i < chain.count; ++i) {
    const Link& l = chain.links[i];
    if (i > 0 && (l.x != chain.links[i - 1].y || (l.kind == LinkKind::product ? l.k : l.n) != chain.links[i - 1].n))
      return false;
    if (i == 0 && l.kind != LinkKind::product) return false;
    for (int j = 0; j < chain.count; ++j) {
      const bool too_near = chain.links[j].n != l.n || i < j + 2;
      for (const float* const made : std::array<const float*, 2>{chain.links[j].y, chain.links[j].loss})
        if (made != nullptr && (made == l.w || made == l.bias || (made == l.relu_result && too_near)))
          return false;
    }
  }
  return true;
}

/// Clusters of so many blocks that run at once; 0: none does. `most_bytes` of shared memory is what any chain may ask
/// for.
int clusters_at_once(int blocks, int shared_bytes, int most_bytes) {
  if (cudaFuncSetAttribute(row_chain, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess ||
      cudaFuncSetAttribute(row_chain, cudaFuncAttributeMaxDynamicSharedMemorySize, most_bytes) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  const ClusterLaunch one(dim3(static_cast<unsigned>(blocks)), kThreads, static_cast<size_t>(shared_bytes), blocks,
                          nullptr);
  int count = 0;
  if (cudaOccupancyMaxActiveClusters(&count, row_chain, &one.config) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

/// All but the first layer's, for which there is no time to bring them, as far as there is room. Gives the floats of
/// shared memory in all.
int place_weights(Chain& chain, int most_floats) {
  int end = first_resident(chain.wide_floats, chain.own_floats);
  for (int i = 1; i < chain.count; ++i) {
    Link& l = chain.links[i];
    const int floats = std::min(l.n, kCols) * l.k;
    const bool one_tile = !l.wide() || l.tiles() <= chain.blocks;
    if (l.kind != LinkKind::product || !one_tile || end + floats > most_floats) continue;
    l.resident = end;
    end += static_cast<int>(ceil_div(floats, 4) * 4);
  }
  return end;
}

/// In clusters of so many blocks; null: they do not all run at once.
std::optional<CudaKernel> prepare(const CudaKernelCall& call, Chain chain, int blocks) {
  int device = 0, most = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  constexpr int kStatic = 256;  // of sum_of_block
  const int most_floats = (most - kStatic) / static_cast<int>(sizeof(float));
  if (!knows_clusters(row_chain) || first_resident(chain.wide_floats, chain.own_floats) > most_floats)
    return std::nullopt;
  chain.blocks = blocks;
  const int bytes = place_weights(chain, most_floats) * static_cast<int>(sizeof(float));
  const auto clusters = static_cast<int>(ceil_div(chain.rows, kRows));
  if (clusters > clusters_at_once(blocks, bytes, most - kStatic)) return std::nullopt;
  chain.of_cluster = static_cast<int>(ceil_div(chain.rows, clusters));
  const Tickets ticket = clusters > 1 ? take_tickets(1) : nullptr;
  if (clusters > 1 && ticket == nullptr) return std::nullopt;
  call.scratch->need(clusters * static_cast<int64_t>(sizeof(double)));
  return [=, scratch = call.scratch](CudaStream stream) {
    Chain now = chain;
    now.parts = static_cast<double*>(scratch->memory());
    now.ticket = ticket.get();
    const ClusterLaunch launch(dim3(static_cast<unsigned>(clusters * blocks)), kThreads, static_cast<size_t>(bytes),
                               blocks, stream);
    cuda_check(cudaLaunchKernelEx(&launch.config, row_chain, now), "row_chain");
  };
}

}  // namespace

std::optional<CudaKernel> prepare_row_chain(std::span<const GroupedKernel> kernels) {
  if (kernels.size() < 2 || kernels.size() > kMostLinks) return std::nullopt;
  Chain chain;
  int64_t rows = 0;
  int losses = 0;
  for (const GroupedKernel& kernel : kernels) {
    const std::optional<Link> link =
        kernel.op == "matmul" ? product_link(kernel.call) : loss_link(kernel.op, kernel.call);
    if (!link) return std::nullopt;
    const int width = link->kind == LinkKind::product ? link->k : link->n;
    const int64_t own_rows = kernel.call.in[0].size() / width;
    if (chain.count > 0 && own_rows != rows) return std::nullopt;
    rows = own_rows;
    losses += link->kind == LinkKind::product ? 0 : 1;
    if (chain.count > 0) chain.links[chain.count - 1].next_along = link->kind != LinkKind::product || link->along;
    if (chain.count == 0) chain.wide_floats = kRows * width;  // the first rows
    int& floats = link->wide() ? chain.wide_floats : chain.own_floats;
    floats = std::max(floats, kRows * link->width());
    chain.links[chain.count++] = *link;
  }
  if (losses > 1 || rows > kMostRows || !is_chain(chain)) return std::nullopt;
  chain.rows = static_cast<int>(rows);
  const CudaKernelCall& call = kernels[0].call;
  if (std::optional<CudaKernel> large = prepare(call, chain, 16)) return large;
  return prepare(call, chain, 8);
}

}  // namespace trainctl::cuda
