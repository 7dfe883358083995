// Rotation by packs of features where they are aligned: a block computes the angles of a few rows once, in shared
// memory, and its threads request several packs before they use any. Otherwise a thread rotates one pair of features of
// all heads of a row. Angles are exact to f32 for any row, because they are reduced to half a turn in double.
#include <array>

#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/strided_cuda.cuh"
#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/rotary/rotary_shape.h"

namespace trainctl {
namespace {

constexpr int kRotaryThreads = 256;
constexpr int kPackRows = 4;    ///< rows per block of the kernel for packs
constexpr int kPacksAhead = 5;  ///< tasks per thread that are in flight at once
constexpr double kTurn = 6.283185307179586;

struct Turning {
  int64_t rows, t, units, features, head_dim, rotated, rotary_dim, rotary_offset, first_row;
  bool interleaved;
  float direction, magnitude;
  const int32_t *documents, *starts;
  int64_t positions;
  RowOrder order;

  /// The position of a row, counted over all samples.
  __device__ int64_t position(int64_t row) const {
    const int64_t of_sample = order.position(first_row + row % t);
    if (starts != nullptr) return position_from(starts[row / t], of_sample, positions);
    return documents != nullptr ? position_in_document(of_sample, documents[row]) : of_sample;
  }

  /// The index within a unit of its i-th feature that is copied: those of rotated heads come first.
  __device__ int64_t copied(int64_t i) const {
    const int64_t of_head = head_dim - rotary_dim;
    if (i < rotated * of_head) {
      const int64_t nth = i % of_head;
      return i / of_head * head_dim + nth + (nth < rotary_offset ? 0 : rotary_dim);
    }
    return i + rotated * rotary_dim;
  }

  __device__ float2 cosine_and_sine(int64_t row, int64_t pair) const {
    const double turns = static_cast<double>(position(row)) * rates[pair];
    const auto half_turns = static_cast<float>(2.0 * (turns - rint(turns)));
    return {magnitude * cospif(half_turns), magnitude * direction * sinpif(half_turns)};
  }

  std::array<double, kMostRotaryPairs> rates;  ///< turns a row, of each pair
};

/// The packs of a row: those of rotated heads (the first half of each head, unless interleaved), then those copied.
struct PackTasks {
  uint32_t rotated = 0, all = 0;
  Divisor of_row, of_head, rotated_heads, copied_of_unit;
};

/// Threads of a row: one for each pair, then one for each feature that is copied.
template <class T>
__global__ void __launch_bounds__(kRotaryThreads) rotary_kernel(Turning r, const T* x, T* y, int64_t row_threads) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kRotaryThreads + threadIdx.x;
  const int64_t row = thread / row_threads, of_row = thread % row_threads, pairs = r.rotary_dim / 2;
  if (row >= r.rows) return;
  const int64_t start = row * r.units * r.features;
  if (of_row >= pairs) {
    const int64_t feature = r.copied(of_row - pairs);
    for (int64_t unit = 0; unit < r.units; ++unit) {
      const int64_t at = start + unit * r.features + feature;
      y[at] = x[at];
    }
    return;
  }
  const auto [cosine, sine] = r.cosine_and_sine(row, of_row);
  const int64_t apart = r.interleaved ? 1 : pairs;
  const int64_t feature = r.rotary_offset + (r.interleaved ? 2 * of_row : of_row);
  for (int64_t unit = 0; unit < r.units; ++unit) {
    for (int64_t head = 0; head < r.rotated; ++head) {
      const int64_t at = start + unit * r.features + head * r.head_dim + feature;
      const float a = to_f32(x[at]), b = to_f32(x[at + apart]);
      y[at] = from_f32<T>(a * cosine - b * sine);
      y[at + apart] = from_f32<T>(b * cosine + a * sine);
    }
  }
}

/// A pack that a thread rotates or copies.
template <class T>
struct PackTask {
  Raw<T, kPack<T>> a, b;  ///< b: the other half of the head
  int64_t at = 0;
  int row = 0, pair = -1;  ///< row of the block; pair: the first, or -1 to copy

  template <bool kInterleaved>
  __device__ void begin(const Turning& r, const PackTasks& tasks, int64_t first_row, uint32_t task, Ref<T> x) {
    constexpr int V = kPack<T>;
    row = static_cast<int>(tasks.of_row.quotient(task));
    const uint32_t of_row = task - static_cast<uint32_t>(row) * tasks.all;
    at = (first_row + row) * r.units * r.features;
    if (of_row < tasks.rotated) {
      const uint32_t head = tasks.of_head.quotient(of_row), pack = of_row - head * tasks.of_head.by;
      const uint32_t unit = tasks.rotated_heads.quotient(head), of_unit = head - unit * tasks.rotated_heads.by;
      at += unit * r.features + of_unit * r.head_dim + r.rotary_offset + pack * V;
      pair = static_cast<int>(pack) * (kInterleaved ? V / 2 : V);
      if constexpr (!kInterleaved) b = fetch<V>(x, at + r.rotary_dim / 2);
    } else {
      const uint32_t i = of_row - tasks.rotated, unit = tasks.copied_of_unit.quotient(i);
      at += unit * r.features + r.copied(int64_t{i - unit * tasks.copied_of_unit.by} * V);
      pair = -1;
    }
    a = fetch<V>(x, at);
  }

  template <bool kInterleaved>
  __device__ void end(const Turning& r, const float* cosines, const float* sines, Ref<T> y) const {
    constexpr int V = kPack<T>;
    float of_a[V], of_b[V] = {};
    unpack(a, of_a);
    if (pair < 0) return store(y, at, of_a);
    if constexpr (kInterleaved) {
      float turned[V];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float sine = j % 2 == 0 ? -sines[pair + j / 2] : sines[pair + j / 2];
        turned[j] = of_a[j] * cosines[pair + j / 2] + of_a[j ^ 1] * sine;
      }
      store(y, at, turned);
    } else {
      unpack(b, of_b);
      float first[V], second[V];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float cosine = cosines[pair + j], sine = sines[pair + j];
        first[j] = of_a[j] * cosine - of_b[j] * sine;
        second[j] = of_b[j] * cosine + of_a[j] * sine;
      }
      store(y, at, first);
      store(y, at + r.rotary_dim / 2, second);
    }
  }
};

/// Rotates kPackRows rows in packs of 16 bytes. The block first computes the cosines and sines of its rows in shared
/// memory.
template <class T, bool kInterleaved>
__global__ void __launch_bounds__(kRotaryThreads)
    rotary_packs_kernel(__grid_constant__ const Turning r, __grid_constant__ const PackTasks tasks, Ref<T> x,
                        Ref<T> y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  __shared__ __align__(16) float cosines[kPackRows][kMostRotaryPairs], sines[kPackRows][kMostRotaryPairs];
  const int64_t first_row = int64_t{blockIdx.x} * kPackRows;
  const int rows = static_cast<int>(min(r.rows - first_row, int64_t{kPackRows}));
  const int pairs = static_cast<int>(r.rotary_dim / 2);
  for (int i = static_cast<int>(threadIdx.x); i < rows * pairs; i += kRotaryThreads) {
    const int row = i / pairs, pair = i - row * pairs;
    const auto [cosine, sine] = r.cosine_and_sine(first_row + row, pair);
    cosines[row][pair] = cosine;
    sines[row][pair] = sine;
  }
  __syncthreads();
  const uint32_t all = static_cast<uint32_t>(rows) * tasks.all;
  for (uint32_t first = threadIdx.x; first < all; first += kPacksAhead * kRotaryThreads) {
    PackTask<T> packs[kPacksAhead];
#pragma unroll
    for (int j = 0; j < kPacksAhead; ++j) {
      if (first + j * kRotaryThreads < all)
        packs[j].template begin<kInterleaved>(r, tasks, first_row, first + j * kRotaryThreads, x);
    }
#pragma unroll
    for (int j = 0; j < kPacksAhead; ++j) {
      if (first + j * kRotaryThreads < all)
        packs[j].template end<kInterleaved>(r, cosines[packs[j].row], sines[packs[j].row], y);
    }
  }
}

// Launchers

/// Empty if packs are not aligned. `copied`: features per unit.
template <class T, bool kInterleaved>
CudaKernel launch_rotary_packs(const CudaKernelCall& call, const Turning& turning, int64_t copied) {
  constexpr int64_t V = kPack<T>;
  const int64_t of_head = turning.rotary_dim / (kInterleaved ? V : 2 * V);
  const int64_t rotated = turning.units * turning.rotated * of_head, all = rotated + turning.units * (copied / V);
  const bool fits = turning.head_dim % V == 0 && turning.rotary_dim % (kInterleaved ? V : 2 * V) == 0 &&
                    turning.rotary_offset % V == 0 && rotated > 0 && all < (int64_t{1} << 28) &&
                    packs_are_aligned({&call.in[0], &call.out[0]});
  if (!fits) return {};
  const PackTasks tasks{.rotated = static_cast<uint32_t>(rotated),
                        .all = static_cast<uint32_t>(all),
                        .of_row = Divisor(all),
                        .of_head = Divisor(of_head),
                        .rotated_heads = Divisor(turning.rotated),
                        .copied_of_unit = Divisor(std::max<int64_t>(copied / V, 1))};
  const auto blocks = static_cast<unsigned>(ceil_div(turning.rows, int64_t{kPackRows}));
  return [=, x = ref<T>(call.in[0]), y = ref<T>(call.out[0])](CudaStream stream) {
    launch(rotary_packs_kernel<T, kInterleaved>, blocks, kRotaryThreads, 0, stream, "rotary", turning, tasks, x, y);
  };
}

/// Rotates in packs if the operands permit it, otherwise one pair or copied feature per thread.
CudaKernel prepare_rotary(const CudaKernelCall& call) {
  const RotaryCall r = rotary_of(call);
  Turning turning{.rows = r.b * r.t,
                  .t = r.t,
                  .units = r.units,
                  .features = r.features,
                  .head_dim = r.head_dim,
                  .rotated = r.rotated,
                  .rotary_dim = r.rotary_dim,
                  .rotary_offset = r.rotary_offset,
                  .first_row = r.first_row,
                  .interleaved = r.interleaved,
                  .direction = r.inverse ? -1.0f : 1.0f,
                  .magnitude = static_cast<float>(r.angles.magnitude),
                  .documents = r.documents,
                  .starts = r.starts,
                  .positions = r.positions,
                  .order = r.order,
                  .rates = {}};
  for (size_t i = 0; i < r.angles.rates.size(); ++i) turning.rates.at(i) = r.angles.rates[i] / kTurn;
  // In place, the features that are not rotated already have their values.
  const bool in_place = call.in[0].data == call.out[0].data;
  const int64_t copied = in_place ? 0 : r.features - r.rotated * r.rotary_dim, row_threads = r.pairs() + copied;
  const int64_t threads = turning.rows * row_threads;
  return with_any_float_type(call.out[0].dtype, [&](auto type) -> CudaKernel {
    using T = decltype(type);
    if (threads > 0) {
      const CudaKernel packs = r.interleaved ? launch_rotary_packs<T, true>(call, turning, copied)
                                             : launch_rotary_packs<T, false>(call, turning, copied);
      if (packs) return packs;
    }
    return [=, x = call.in[0].as<T>(), y = call.out[0].as<T>()](CudaStream stream) {
      if (threads == 0) return;
      launch(rotary_kernel<T>, static_cast<unsigned>(ceil_div(threads, kRotaryThreads)), kRotaryThreads, 0, stream,
             "rotary", turning, x, y, row_threads);
    };
  });
}

}  // namespace

extern const CudaKernels rotary_cuda = {{"rotary", prepare_rotary, kTakesF16}};

}  // namespace trainctl
