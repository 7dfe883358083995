// A thread rotates one pair of features of all heads of a row: its angle is computed once. Angles are exact to f32 for
// any row, because they are reduced to half a turn in double.
#include <array>

#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/rotary/rotary_shape.h"

namespace trainctl {
namespace {

constexpr int kRotaryThreads = 256;
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

  std::array<double, kMostRotaryPairs> rates;  ///< turns a row, of each pair
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
  const double turns = static_cast<double>(r.position(row)) * r.rates[of_row];
  const auto half_turns = static_cast<float>(2.0 * (turns - rint(turns)));
  const float cosine = r.magnitude * cospif(half_turns), sine = r.magnitude * r.direction * sinpif(half_turns);
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
  return with_float_type(call.out[0].dtype, [&](auto type) -> CudaKernel {
    using T = decltype(type);
    return [=, x = call.in[0].as<T>(), y = call.out[0].as<T>()](CudaStream stream) {
      if (threads == 0) return;
      launch(rotary_kernel<T>, static_cast<unsigned>(ceil_div(threads, kRotaryThreads)), kRotaryThreads, 0, stream,
             "rotary", turning, x, y, row_threads);
    };
  });
}

}  // namespace

extern const CudaKernels rotary_cuda = {{"rotary", prepare_rotary}};

}  // namespace trainctl
