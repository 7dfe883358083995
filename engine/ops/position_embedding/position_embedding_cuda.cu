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

struct PositionsFrom {
  const int32_t* starts;
  int64_t size, t, d, first, last;
};

template <class T>
__global__ void positions_from_kernel(PositionsFrom p, const T* x, const T* table, T* y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kPositionThreads + threadIdx.x;
  if (i >= p.size) return;
  const int64_t row = i / p.d, wanted = p.starts[row / p.t] + p.first + row % p.t;
  const int64_t position = wanted < p.last ? wanted : p.last;
  y[i] = from_f32<T>(to_f32(x[i]) + to_f32(table[position * p.d + i % p.d]));
}

/// With the position of the first row of each sample.
CudaKernel prepare_positions_from(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &table = call.in[1];
  const PositionsFrom p{call.in[2].as<int32_t>(), x.size(), x.shape[1], x.shape[2], x.offset[1], table.shape[0] - 1};
  return with_float_type(call.out[0].dtype, [&](auto type) -> CudaKernel {
    using T = decltype(type);
    return [=, x = call.in[0].as<T>(), table = call.in[1].as<T>(), y = call.out[0].as<T>()](CudaStream stream) {
      if (p.size == 0) return;
      launch(positions_from_kernel<T>, static_cast<unsigned>(ceil_div(p.size, kPositionThreads)), kPositionThreads, 0,
             stream, "position_embedding", p, x, table, y);
    };
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
  return with_float_type(call.out[0].dtype, [&](auto type) -> CudaKernel {
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
  if (call.in.size() == 3) return prepare_positions_from(call);
  if (const OrderedPositions p(call); p.order.piece > 0) return prepare_ordered_positions(call, p);
  const TensorArg &x = call.in[0], rows = rows_of_positions(call.in[1], x);
  return map_strided<1, 1>({&x}, {&rows}, call.out[0], x.shape, {strides_of_rows(x)}, Plus{}, "position_embedding");
}

CudaKernel prepare_position_embedding_grad(const CudaKernelCall& call) {
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

extern const CudaKernels position_embedding_cuda = {{"position_embedding", prepare_position_embedding},
                                                    {"position_embedding_grad", prepare_position_embedding_grad}};

}  // namespace trainctl
