// The end of a network as one launch: a product with few outputs, the loss of each row with its gradient, and the
// backward product, times the slope of the preceding layer. Each of these kernels costs little more than its launch.
//
//   y = x W^T + bias      loss += f(y, label), dy its gradient      dx = dy W * slope
//
// One or more warps share a pair of rows: each thread takes packs of k and uses each pack of W that it reads for both
// rows. W stays in L1. All warps of a pair compute its loss redundantly, so that none waits for another. A block
// publishes its part of the loss before it computes dx; the last block to publish adds the parts.
#include <algorithm>
#include <bit>

#include "engine/ops/cuda/activations_cuda.cuh"
#include "engine/ops/cuda/sums_cuda.cuh"
#include "engine/ops/matmul/product_shape.h"
#include "engine/ops/small_step/finish_cuda.h"
#include "engine/ops/small_step/groups_cuda.h"
#include "engine/ops/small_step/row_losses_cuda.cuh"

namespace trainctl::cuda {
namespace {

constexpr int kWarps = 8;              ///< a block, at most
constexpr int kRows = 2;               ///< a pair
constexpr int kCols = 32 / kRows;      ///< most outputs: each lane has one output of one row
constexpr int kMostWeights = 1 << 15;  ///< that L1 keeps beside the rows in flight
/// Lanes without a pack idle: with more short rows than this they cost more than the launches saved.
constexpr int kMostShortRows = 4096, kLongRow = 64;  ///< rows; packs

template <class T>
struct Head {
  Ref<T> x;         ///< [rows,k]
  Ref<T> w;         ///< [n,k]
  Ref<Mixed> bias;  ///< [n], or null
  Ref<T> y, dy;     ///< [rows,n]
  Ref<T> dx;        ///< [rows,k], or null
  Ref<T> slope_at;  ///< [rows,k]: dx's slope is derived from it
  Activation slope = Activation::none;
  LossKind kind = LossKind::none;
  const void* labels = nullptr;  ///< [rows] classes, or [rows,n]
  float scale = 1;
  SumOutput loss;
  int rows = 0, pairs = 0, n = 0;
  int packs = 0;        ///< packs of k
  int log_threads = 5;  ///< log2 of the threads of a pair
};

// Kernels

/// Calls use(u, j, w) with pack p + u * apart of the weights of each output j, u < kPacks; outputs past the end repeat
/// the last one. Fetches a whole group of packs before it uses the first.
template <int kN, int kPacks, class T, class Use>
__device__ __forceinline__ void over_weights(const Head<T>& h, int p, int apart, Use use) {
  constexpr int V = kPack<T>, kAtOnce = kN <= 6 ? kN : kN / 2;
#pragma unroll
  for (int first = 0; first < kN; first += kAtOnce) {
    Raw<T, V> raw[kPacks][kAtOnce];
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        raw[u][i] = fetch<V>(h.w, (min(first + i, h.n - 1) * h.packs + p + u * apart) * V);
    }
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        float w[V];
        unpack(raw[u][i], w);
        use(u, first + i, w);
      }
    }
  }
}

/// A transposing warp reduction: leaves each lane one total, in sums[0]; own_sum() says which. In each exchange a lane
/// trades half of its sums for its partner's parts of the other half: N sums take about N exchanges, not 5 N.
template <int kCount, int kBit = 16, int kSize>
__device__ __forceinline__ void share_sums(float (&sums)[kSize]) {
  constexpr int kHalf = (kCount + 1) / 2;
  const bool upper = (threadIdx.x & kBit) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float low = sums[i], high = i + kHalf < kCount ? sums[i + kHalf < kSize ? i + kHalf : 0] : 0.0f;
    if constexpr (kCount == 1)
      sums[i] = low + __shfl_xor_sync(~0u, low, kBit);
    else
      sums[i] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, kBit);
  }
  if constexpr (kBit > 1) share_sums<kHalf, kBit / 2>(sums);
}

/// The index of the sum that share_sums() leaves in this lane; -1: none. Several lanes may have the same.
template <int kCount>
__device__ __forceinline__ int own_sum(int lane) {
  int first = 0, left = kCount;
#pragma unroll
  for (int bit = 16, count = kCount; bit > 0; bit /= 2) {
    if (count == 1) continue;
    count = (count + 1) / 2;
    first += (lane & bit) != 0 ? count : 0;
    left = (lane & bit) != 0 ? left - count : min(left, count);
  }
  return left > 0 ? first : -1;
}

/// How the threads of a block share its pairs of rows.
struct Place {
  int lane, warp;
  int pair;             ///< index in the block
  int thread, threads;  ///< index in the pair, and their number
  int first_warp;       ///< first warp of the pair
  __device__ __forceinline__ explicit Place(int log_threads)
      : lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        pair(threadIdx.x >> log_threads),
        thread(threadIdx.x & ((1 << log_threads) - 1)),
        threads(1 << log_threads),
        first_warp(warp - thread / 32) {}
};

/// A pair of rows. A row beyond the end reads the last row and writes nothing.
template <class T>
struct Pair {
  static constexpr int V = kPack<T>;
  const Head<T>& h;
  const Place& on;
  int row0;

  __device__ __forceinline__ bool exists(int r) const { return row0 + r < h.rows; }
  __device__ __forceinline__ int64_t place(int r, int p) const {
    return (static_cast<int64_t>(min(row0 + r, h.rows - 1)) * h.packs + p) * V;
  }
  __device__ __forceinline__ void fetch_packs(Ref<T> from, int p, Raw<T, V> (&raw)[kRows]) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) raw[r] = fetch<V>(from, place(r, p));
  }

  /// Adds this thread's parts of x W^T: [kRows, kN].
  template <int kN>
  __device__ __forceinline__ void add_dots(float (&sums)[kRows * kN]) const {
    constexpr int kAtOnce = kN == 1 ? 4 : kN == 2 ? 2 : 1;
    int p = on.thread;
    if constexpr (kAtOnce > 1) {
      for (; p + (kAtOnce - 1) * on.threads < h.packs; p += kAtOnce * on.threads) add_packs<kN, kAtOnce>(p, sums);
    }
    for (; p < h.packs; p += on.threads) add_packs<kN, 1>(p, sums);
  }

  /// `dy`: for the lane's row and output; `slopes`: slope_at for this thread's first packs.
  template <int kN>
  __device__ __forceinline__ void write_dx(float dy, Raw<T, V> (&slopes)[kRows]) const {
    float of[kRows][kN];
#pragma unroll
    for (int i = 0; i < kRows * kN; ++i) of[i / kN][i % kN] = __shfl_sync(~0u, dy, i / kN * kCols + i % kN);
    for (int p = on.thread; p < h.packs; p += on.threads) {
      float v[kRows][V] = {};
      over_weights<kN, 1>(h, p, 0, [&](int, int j, const float(&w)[V]) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int e = 0; e < V; ++e) v[r][e] += of[r][j] * w[e];
        }
      });
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (h.slope != Activation::none) multiply_by_slope(slopes[r], v[r]);
        if (exists(r)) store(h.dx, place(r, p), v[r]);
      }
      if (h.slope != Activation::none && p + on.threads < h.packs) fetch_packs(h.slope_at, p + on.threads, slopes);
    }
  }

 private:
  template <int kN, int kPacks>
  __device__ __forceinline__ void add_packs(int p, float (&sums)[kRows * kN]) const {
    Raw<T, V> raw[kPacks][kRows];
#pragma unroll
    for (int u = 0; u < kPacks; ++u) fetch_packs(h.x, p + u * on.threads, raw[u]);
    over_weights<kN, kPacks>(h, p, on.threads, [&](int u, int j, const float(&w)[V]) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float x[V];
        unpack(raw[u][r], x);
#pragma unroll
        for (int e = 0; e < V; ++e) sums[r * kN + j] += x[e] * w[e];
      }
    });
  }

  __device__ __forceinline__ void multiply_by_slope(const Raw<T, V>& raw, float (&v)[V]) const {
    float at[V];
    unpack(raw, at);
    const auto each = [&](auto grad) {
#pragma unroll
      for (int e = 0; e < V; ++e) v[e] = grad(v[e], at[e]);
    };
    if (h.slope == Activation::relu) return each(ReluGrad{});
    if (h.slope == Activation::gelu) return each(GeluGrad{});
    each(GeluTanhGrad{});
  }
};

/// The label that a lane compares its output with.
union Label {
  float value;
  int32_t of_class;
};

template <class T>
__device__ __forceinline__ Label fetch_label(const Head<T>& h, int row, int col) {
  Label label;
  const int64_t safe_row = min(row, h.rows - 1);
  if (h.kind == LossKind::softmax_cross_entropy)
    label.of_class = static_cast<const int32_t*>(h.labels)[safe_row];
  else
    label.value = static_cast<const float*>(h.labels)[safe_row * h.n + min(col, h.n - 1)];
  return label;
}

/// The lane's part of the loss, and the gradient of its output.
struct LaneLoss {
  double loss = 0;
  float grad = 0;
};

template <class T>
__device__ __forceinline__ LaneLoss make_loss(const Head<T>& h, int lane, float y, const Label& label) {
  const int col = lane % kCols;
  LaneLoss made;
  if (h.kind != LossKind::softmax_cross_entropy) {
    const float off = y - label.value;
    if (col < h.n) made = {loss_of_pair(h.kind, off), slope_of_pair(h.kind, h.scale, off)};
    return made;
  }
  check_label(label.of_class, h.n);
  const float of_label = __shfl_sync(~0u, y, lane - col + label.of_class);
  float v[1] = {col < h.n ? y : of_label};
  const SoftmaxRow softmax = softmax_slopes<kCols>(v, col, h.n, label.of_class, of_label, h.scale);
  if (col == 0) made.loss = softmax.loss(of_label);
  made.grad = v[0];
  return made;
}

/// Minimum blocks a multiprocessor: low enough that registers do not spill.
template <class T, int kN>
constexpr int kBlocks = kN* kPack<T> > 96 ? 1 : 2;

template <class T, int kN>
__global__ void __launch_bounds__(32 * kWarps, kBlocks<T, kN>)
    head_kernel(const __grid_constant__ Head<T> h, Parts parts) {
  constexpr int V = kPack<T>, kSums = kRows * kN;
  __shared__ float of_warps[2][kWarps][kSums];
  const Place on(h.log_threads);
  const int pairs = static_cast<int>(blockDim.x) >> h.log_threads, step = static_cast<int>(gridDim.x) * pairs;
  const int col = on.lane % kCols, own = own_sum<kSums>(on.lane);
  wait_for_kernel_before();
  let_next_kernel_start();
  const float bias = h.bias.p != nullptr && col < h.n ? value(h.bias, col) : 0.0f;
  double total = 0;
  unsigned came_before = 0;
  int turn = 0;  // which half of of_warps: all threads have passed a barrier since the other one was read
  for (int first = static_cast<int>(blockIdx.x) * pairs; first < h.pairs; first += step, turn ^= 1) {
    const Pair<T> pair{h, on, (first + on.pair) * kRows};
    const int row = pair.row0 + on.lane / kCols;
    const Label label = fetch_label(h, row, col);
    Raw<T, V> slopes[kRows];
    if (h.slope != Activation::none && on.thread < h.packs) pair.fetch_packs(h.slope_at, on.thread, slopes);

    float sums[kSums] = {};
    pair.template add_dots<kN>(sums);
    share_sums<kSums>(sums);
    if (own >= 0) of_warps[turn][on.warp][own] = sums[0];
    if (on.threads > 32)
      __syncthreads();
    else
      __syncwarp();
    float y = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
      if (w * 32 < on.threads) y += of_warps[turn][on.first_warp + w][on.lane / kCols * kN + min(col, kN - 1)];
    y = to_f32(from_f32<T>(y + bias));

    LaneLoss made = make_loss(h, on.lane, y, label);
    made.grad = to_f32(from_f32<T>(made.grad));
    if (on.thread < 32 && col < h.n && row < h.rows) {
      set(h.y, static_cast<int64_t>(row) * h.n + col, y);
      set(h.dy, static_cast<int64_t>(row) * h.n + col, made.grad);
      total += made.loss;
    }
    if (first + step >= h.pairs) {  // the block's last rows
      if (pairs > 1 || on.warp == 0) total = sum_of_group(total, pairs > 1 ? static_cast<int>(blockDim.x) : 32);
      if (threadIdx.x == 0 && gridDim.x > 1) {
        parts.memory[blockIdx.x] = total;
        came_before = hand_in(parts.tickets);
      }
    }
    if (h.dx.p != nullptr) pair.template write_dx<kN>(made.grad, slopes);
  }
  if (gridDim.x > 1) {
    if (!was_last(came_before, parts.tickets, gridDim.x)) return;
    total = sum_of_parts(parts);
  }
  if (threadIdx.x == 0) h.loss.write(0, total);
}

// Launchers

template <class T, int kN>
std::optional<CudaKernel> prepare(const CudaKernelCall& loss, Head<T> h) {
  const int64_t processors = multiprocessors(), pairs = h.pairs;
  // One pack per thread if that does not fill the device: with few rows the time of one thread is the bound.
  int warps = kWarps;
  while (warps > 1 && (warps / 2 * 32 >= h.packs || pairs * warps * 32 > processors * 1024)) warps /= 2;
  h.log_threads = std::bit_width(static_cast<unsigned>(warps * 32)) - 1;
  const int64_t of_block = pairs > 4 * processors ? kWarps / warps : 1;
  const auto threads = static_cast<unsigned>(of_block * warps * 32);
  const int64_t rounds = ceil_div(ceil_div(pairs, of_block), blocks_at_once(head_kernel<T, kN>, threads, 0, "head"));
  const int64_t blocks = ceil_div(pairs, of_block * rounds);
  const Split split(loss, blocks, 1, 1);
  if (split.splits < blocks) return std::nullopt;
  return [=](CudaStream stream) {
    launch(head_kernel<T, kN>, static_cast<unsigned>(blocks), threads, 0, stream, "head", h, split.parts(1));
  };
}

template <class T>
std::optional<CudaKernel> prepare_for_outputs(const CudaKernelCall& loss, const Head<T>& h) {
  if (h.n <= 1) return prepare<T, 1>(loss, h);
  if (h.n <= 2) return prepare<T, 2>(loss, h);
  if (h.n <= 4) return prepare<T, 4>(loss, h);
  if (h.n <= 6) return prepare<T, 6>(loss, h);
  if (h.n <= 8) return prepare<T, 8>(loss, h);
  if (h.n <= 10) return prepare<T, 10>(loss, h);
  if (h.n <= 12) return prepare<T, 12>(loss, h);
  return prepare<T, kCols>(loss, h);
}

/// The forward or backward product; null if it is more than a product with bias or slope.
std::optional<Product> plain_product(const GroupedKernel& kernel) {
  const CudaKernelCall& call = kernel.call;
  if (kernel.kernel->launch_role != LaunchRole::product || call.out.size() != 1 || call.out[0].accumulate ||
      call.in[1].shape.size() != 2 || call.attrs.flag("transpose_a") ||
      epilogue_of(call.attrs).activation != Activation::none)
    return std::nullopt;
  const TensorArg &a = call.in[0], &b = call.in[1], &c = call.out[0];
  if (a.dtype != b.dtype || a.dtype != c.dtype) return std::nullopt;
  Product p{.a = a.data, .b = b.data, .c = c.data, .operands = a.dtype, .result = c.dtype};
  set_matmul_shape(call, p);
  return p.batch == 1 && p.m > 0 ? std::optional(p) : std::nullopt;
}

/// Whether `back` is the backward product through the weights of `p`; a vector is the same in both layouts.
bool is_backward_of(const Product& back, const Product& p, const CudaKernelCall& call) {
  return back.b == p.b && back.operands == p.operands && back.m == p.m && back.k == p.n && back.n == p.k &&
         (!back.transpose_b || back.k == 1) && !epilogue_of(call.attrs).bias;
}

template <class T>
std::optional<CudaKernel> prepare_head_of(std::span<const GroupedKernel> kernels, const Product& p,
                                          const RowLoss& loss) {
  const CudaKernelCall &forward = kernels[0].call, &of_loss = kernels[1].call;
  const TensorArg &y = forward.out[0], &dy = of_loss.out[1], &labels = of_loss.in[1];
  constexpr int V = kPack<T>;
  Head<T> h;
  h.x = ref<T>(forward.in[0]);
  h.w = ref<T>(forward.in[1]);
  if (epilogue_of(forward.attrs).bias) h.bias = ref<Mixed>(forward.in[2]);
  h.y = ref<T>(y);
  h.dy = ref<T>(dy);
  h.kind = loss.kind;
  h.labels = labels.data;
  h.scale = static_cast<float>(loss.scale);
  h.loss = SumOutput::of(of_loss, 0, loss.scale);
  h.rows = static_cast<int>(p.m);
  h.pairs = static_cast<int>(ceil_div(p.m, kRows));
  h.n = static_cast<int>(p.n);
  h.packs = static_cast<int>(p.k / V);
  if (p.k % V != 0 || (p.m > kMostShortRows && h.packs < kLongRow) || !is_aligned(h.x.p) || !is_aligned(h.w.p))
    return std::nullopt;
  if (kernels.size() > 2) {
    const CudaKernelCall& backward = kernels[2].call;
    h.dx = ref<T>(backward.out[0]);
    h.slope = epilogue_of(backward.attrs).slope;
    if (h.slope != Activation::none) {
      const TensorArg& at = backward.in.back();
      if (at.dtype != backward.out[0].dtype || at.data == y.data || at.data == dy.data) return std::nullopt;
      h.slope_at = ref<T>(at);
    }
    if (!is_aligned(h.dx.p) || !is_aligned(h.slope_at.p)) return std::nullopt;
  }
  return prepare_for_outputs(of_loss, h);
}

}  // namespace

std::optional<CudaKernel> prepare_head(std::span<const GroupedKernel> kernels) {
  if (kernels.size() < 2 || kernels.size() > 3) return std::nullopt;
  const std::optional<Product> p = plain_product(kernels[0]);
  const std::optional<RowLoss> loss = row_loss_of(kernels[1]);
  if (!p || !loss || epilogue_of(kernels[0].call.attrs).slope != Activation::none || !(p->transpose_b || p->n == 1))
    return std::nullopt;
  const TensorArg &predictions = kernels[1].call.in[0], &labels = kernels[1].call.in[1];
  const bool classes = loss->kind == LossKind::softmax_cross_entropy;
  if (predictions.data != p->c || labels.data == p->c || loss->type != p->operands || loss->rows != p->m ||
      loss->n != p->n || (classes && labels.size() != p->m) || p->n > kCols || p->n * p->k > kMostWeights)
    return std::nullopt;
  if (kernels.size() == 3) {
    const std::optional<Product> back = plain_product(kernels[2]);
    if (!back || back->a != kernels[1].call.out[1].data || !is_backward_of(*back, *p, kernels[2].call))
      return std::nullopt;
  }
  return with_float_type(p->operands, [&](auto t) { return prepare_head_of<decltype(t)>(kernels, *p, *loss); });
}

}  // namespace trainctl::cuda
