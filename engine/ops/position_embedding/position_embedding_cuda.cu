// y[b, t, :] = x[b, t, :] + table[t, :]; dtable[t, :] = sum over b of dy[b, t, :], 0 for positions that do not occur.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/sums_cuda.cuh"
#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/row_order.h"

namespace trainctl {
namespace {

struct Plus {
  __device__ float operator()(std::array<float, 1> x, std::array<float, 1> row) const { return x[0] + row[0]; }
};

/// The rows of `table` that belong to the positions of `x`, from the first one on.
TensorArg rows_of_positions(const TensorArg& table, const TensorArg& x) {
  TensorArg rows = table;
  const size_t t = x.shape.size() - 2;
  rows.data = table.as<std::byte>() + x.offset[t] * table.shape[1] * byte_size(table.dtype);
  rows.shape[0] = x.shape[t];
  return rows;
}

/// The strides of [positions, d] along x [.., positions, d].
Shape strides_of_rows(const TensorArg& x) {
  Shape strides(x.shape.size());
  strides[x.shape.size() - 2] = x.shape.back();
  strides.back() = 1;
  return strides;
}

constexpr int kPositionThreads = 256;

/// The row of the table for each row of x [b, t, d], with a third input: documents [b, t] or first positions [b].
struct PlacedRows {
  const int32_t* places;
  bool are_starts;
  int64_t rows, t, d, first, last;
  RowOrder order;

  PlacedRows(const CudaKernelCall& call, const TensorArg& third, int64_t table_rows)
      : PlacedRows(call.in[0], third, table_rows) {
    order = RowOrder::of(call.attrs, call.in[0].global_shape[1]);
  }
  __device__ int64_t row_of(int64_t row) const {
    const int64_t in_sample = order.position(first + row % t);
    const int64_t position = are_starts ? places[row / t] + in_sample : in_sample - places[row];
    return position < 0 ? 0 : position < last ? position : last;
  }

 private:
  PlacedRows(const TensorArg& x, const TensorArg& third, int64_t table_rows)
      : places(third.as<int32_t>()),
        are_starts(third.shape.size() == 1),
        rows(x.shape[0] * x.shape[1]),
        t(x.shape[1]),
        d(x.shape[2]),
        first(x.offset[1]),
        last(table_rows - 1) {}
};

template <class T>
__global__ void placed_positions_kernel(PlacedRows p, const T* x, const T* table, T* y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kPositionThreads + threadIdx.x;
  if (i >= p.rows * p.d) return;
  y[i] = from_f32<T>(to_f32(x[i]) + to_f32(table[p.row_of(i / p.d) * p.d + i % p.d]));
}

CudaKernel prepare_placed_positions(const CudaKernelCall& call) {
  const PlacedRows p(call, call.in[2], call.in[1].shape[0]);
  return with_any_float_type(call.out[0].dtype, [&](auto type) -> CudaKernel {
    using T = decltype(type);
    return [=, x = call.in[0].as<T>(), table = call.in[1].as<T>(), y = call.out[0].as<T>()](CudaStream stream) {
      if (p.rows * p.d == 0) return;
      launch(placed_positions_kernel<T>, static_cast<unsigned>(ceil_div(p.rows * p.d, kPositionThreads)),
             kPositionThreads, 0, stream, "position_embedding", p, x, table, y);
    };
  });
}

/// A block sums some columns of one row of the table. It looks for the rows of dy at that position, one row per thread,
/// and adds those it finds in their order.
template <class T, class To>
__global__ void placed_positions_grad_kernel(PlacedRows p, const T* dy, To* table, bool adds) {
  constexpr int kWarp = 32;
  __shared__ unsigned found[kPositionThreads / kWarp];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t position = blockIdx.x;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kPositionThreads + threadIdx.x;
  float sum = 0;
  for (int64_t begin = 0; begin < p.rows; begin += kPositionThreads) {
    const int64_t row = begin + threadIdx.x;
    const unsigned votes = __ballot_sync(0xffffffffu, row < p.rows && p.row_of(row) == position);
    if (threadIdx.x % kWarp == 0) found[threadIdx.x / kWarp] = votes;
    __syncthreads();
    for (int warp = 0; warp < kPositionThreads / kWarp; ++warp)
      for (unsigned left = found[warp]; left != 0; left &= left - 1) {
        const int64_t at = begin + warp * kWarp + __popc((left & -left) - 1);  // the lowest bit
        if (column < p.d) sum += to_f32(dy[at * p.d + column]);
      }
    __syncthreads();
  }
  if (column >= p.d) return;
  To& to = table[position * p.d + column];
  to = from_f32<To>((adds ? to_f32(to) : 0.0f) + sum);
}

CudaKernel prepare_placed_positions_grad(const CudaKernelCall& call) {
  const TensorArg& table = call.out[0];
  const PlacedRows p(call, call.in[1], table.shape[0]);
  const dim3 blocks(static_cast<unsigned>(table.shape[0]), static_cast<unsigned>(ceil_div(p.d, kPositionThreads)));
  return with_any_float_type(call.in[0].dtype, [&](auto type) -> CudaKernel {
    using T = decltype(type);
    return with_any_float_type(table.dtype, [&](auto result) -> CudaKernel {
      using To = decltype(result);
      return [=, dy = call.in[0].as<T>(), to = table.as<To>(), adds = table.accumulate](CudaStream stream) {
        if (blocks.x * blocks.y == 0) return;
        launch(placed_positions_grad_kernel<T, To>, blocks, kPositionThreads, 0, stream, "position_embedding_grad", p,
               dy, to, adds);
      };
    });
  });
}

/// Rows that are not stored by position: x as [batches, count, d].
struct OrderedPositions {
  RowOrder order;
  int64_t batches, count, d, first;

  explicit OrderedPositions(const CudaKernelCall& call) : batches(0) {
    const TensorArg& x = call.in[0];
    const size_t t = x.shape.size() - 2;
    order = RowOrder::of(call.attrs, x.global_shape[t]);
    count = x.shape[t], d = x.shape.back(), first = x.offset[t];
    if (count * d > 0) batches = x.size() / (count * d);
  }
};

template <class T>
__global__ void ordered_positions_kernel(OrderedPositions p, const T* x, const T* table, T* y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kPositionThreads + threadIdx.x;
  if (i >= p.batches * p.count * p.d) return;
  const int64_t position = p.order.position(p.first + i / p.d % p.count);
  y[i] = from_f32<T>(to_f32(x[i]) + to_f32(table[position * p.d + i % p.d]));
}

CudaKernel prepare_ordered_positions(const CudaKernelCall& call, const OrderedPositions& p) {
  const int64_t size = p.batches * p.count * p.d;
  return with_any_float_type(call.out[0].dtype, [&](auto type) -> CudaKernel {
    using T = decltype(type);
    return [=, x = call.in[0].as<T>(), table = call.in[1].as<T>(), y = call.out[0].as<T>()](CudaStream stream) {
      if (size == 0) return;
      launch(ordered_positions_kernel<T>, static_cast<unsigned>(ceil_div(size, kPositionThreads)), kPositionThreads, 0,
             stream, "position_embedding", p, x, table, y);
    };
  });
}

/// A thread sums one element of a row over the samples, in their order.
__global__ void ordered_positions_grad_kernel(OrderedPositions p, Ref<Mixed> dy, Ref<Mixed> table, bool add) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kPositionThreads + threadIdx.x;
  if (i >= p.count * p.d) return;
  const int64_t at = p.order.position(p.first + i / p.d) * p.d + i % p.d;
  float total = add ? value(table, at) : 0.0f;
  for (int64_t b = 0; b < p.batches; ++b) total += value(dy, b * p.count * p.d + i);
  set(table, at, total);
}

CudaKernel prepare_ordered_positions_grad(const CudaKernelCall& call, const OrderedPositions& p) {
  const TensorArg& table = call.out[0];
  const int64_t size = p.count * p.d, bytes = table.size() * byte_size(table.dtype);
  return [=, dy = ref<Mixed>(call.in[0]), to = ref<Mixed>(table), all = table.data,
          add = table.accumulate](CudaStream stream) {
    if (!add) cuda_check(cudaMemsetAsync(all, 0, static_cast<size_t>(bytes), stream), "position_embedding_grad");
    if (size == 0) return;
    launch(ordered_positions_grad_kernel, static_cast<unsigned>(ceil_div(size, kPositionThreads)), kPositionThreads, 0,
           stream, "position_embedding_grad", p, dy, to, add);
  };
}

CudaKernel prepare_position_embedding(const CudaKernelCall& call) {
  if (call.in.size() == 3) return prepare_placed_positions(call);
  if (const OrderedPositions p(call); p.order.piece > 0) return prepare_ordered_positions(call, p);
  const TensorArg &x = call.in[0], rows = rows_of_positions(call.in[1], x);
  return map_strided<1, 1>({&x}, {&rows}, call.out[0], x.shape, {strides_of_rows(x)}, Plus{}, "position_embedding");
}

CudaKernel prepare_position_embedding_grad(const CudaKernelCall& call) {
  if (call.in.size() == 2) return prepare_placed_positions_grad(call);
  if (const OrderedPositions p(call); p.order.piece > 0) return prepare_ordered_positions_grad(call, p);
  const TensorArg &dy = call.in[0], &table = call.out[0];
  CudaKernelCall of_positions = call;
  of_positions.out[0] = rows_of_positions(table, dy);
  const CudaKernel sum = prepare_plain_sum(of_positions, strides_of_rows(dy), 1.0, "position_embedding_grad");
  if (table.accumulate) return sum;
  const int64_t element = byte_size(table.dtype);
  auto* const first = of_positions.out[0].as<std::byte>();
  auto* const end = first + of_positions.out[0].size() * element;
  const auto before = static_cast<size_t>(first - table.as<std::byte>());
  const auto after = static_cast<size_t>(table.as<std::byte>() + table.size() * element - end);
  return [=, all = table.data](CudaStream stream) {
    if (before > 0) cuda_check(cudaMemsetAsync(all, 0, before, stream), "position_embedding_grad");
    if (after > 0) cuda_check(cudaMemsetAsync(end, 0, after, stream), "position_embedding_grad");
    sum(stream);
  };
}

}  // namespace

extern const CudaKernels position_embedding_cuda = {
    {"position_embedding", prepare_position_embedding, kTakesF16},
    {"position_embedding_grad", prepare_position_embedding_grad, kTakesF16}};

}  // namespace trainctl
