// Attention sinks on GPUs (sinks.h): the term of the sink is added to rows that attention has written, and a block
// computes the gradient of one head's sink.
#include "engine/ops/attention/attention_sinks_cuda.h"
#include "engine/ops/cuda/sums_cuda.cuh"
#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/row_order.h"

namespace trainctl {
namespace {

constexpr int kSinkThreads = 256;

/// Rows of query heads: logs are [samples, heads, t], features [samples, t, heads, e].
struct SinkRows {
  int64_t samples = 0, t = 0, heads = 0, e = 0;
};

/// A warp computes one row.
__global__ void __launch_bounds__(kSinkThreads)
    add_sinks_kernel(SinkRows n, Ref<Mixed> sinks, Ref<Mixed> out, float* logs) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kSinkThreads / 32) + threadIdx.x / 32;
  if (row >= n.samples * n.heads * n.t) return;
  const int64_t head = row / n.t % n.heads, at = ((row / n.t / n.heads * n.t + row % n.t) * n.heads + head) * n.e;
  const float sink = value(sinks, head), log = logs[row];
  const bool sees = !(log <= kNoKeys);
  const float top = sees ? fmaxf(log, sink) : sink;
  const float of_keys = sees ? expf(log - top) : 0.0f, total = of_keys + expf(sink - top), factor = of_keys / total;
  __syncwarp();  // all lanes have read the log
  if (threadIdx.x % 32 == 0) logs[row] = sees ? top + logf(total) : sink;
  for (int64_t i = threadIdx.x % 32; i < n.e; i += 32) set(out, at + i, factor * value(out, at + i));
}

/// A block sums over the rows of one head; each thread has some of its rows.
__global__ void __launch_bounds__(kSinkThreads)
    sinks_grad_kernel(SinkRows n, RowOrder of_logs, Ref<Mixed> dy, Ref<Mixed> out, const float* logs, Ref<Mixed> sinks,
                      Ref<Mixed> dsinks, bool adds) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t head = blockIdx.x;
  const float sink = value(sinks, head);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  double sum = 0;
  for (int64_t row = warp; row < n.samples * n.t; row += kSinkThreads / 32) {
    const int64_t at = (row * n.heads + head) * n.e;
    float dot = 0;
    for (int64_t i = lane; i < n.e; i += 32) dot += value(dy, at + i) * value(out, at + i);
    const float log = logs[(row / n.t * n.heads + head) * n.t + of_logs.position(row % n.t)];
    sum -= expf(sink - log) * dot;
  }
  sum = sum_of_group(sum, kSinkThreads);
  if (threadIdx.x == 0) set(dsinks, head, static_cast<float>(sum) + (adds ? value(dsinks, head) : 0.0f));
}

}  // namespace

CudaKernel with_sinks(const CudaKernelCall& call, const AttentionCall& a, CudaKernel attention) {
  const SinkRows n{a.size.b, a.size.t, a.size.heads(), a.size.e};
  const int64_t rows = n.samples * n.heads * n.t;
  return [=, attention = std::move(attention), sinks = ref<Mixed>(call.in[a.sinks_at]), out = ref<Mixed>(call.out[0]),
          logs = call.out[1].as<float>()](CudaStream stream) {
    attention(stream);
    launch(add_sinks_kernel, static_cast<unsigned>(ceil_div(rows, kSinkThreads / 32)), kSinkThreads, 0, stream,
           "attention", n, sinks, out, logs);
  };
}

CudaKernel prepare_attention_sinks_grad(const CudaKernelCall& call) {
  const TensorArg& dy = call.in[0];
  SinkRows n{dy.shape[0], dy.shape[1], call.in[3].shape[0], 0};
  n.e = dy.shape[2] / n.heads;
  const RowOrder of_logs = n.t == dy.global_shape[1] ? RowOrder::of(call.attrs, n.t) : RowOrder{};
  return [=, slopes = ref<Mixed>(dy), out = ref<Mixed>(call.in[1]), logs = call.in[2].as<float>(),
          sinks = ref<Mixed>(call.in[3]), dsinks = ref<Mixed>(call.out[0]),
          adds = call.out[0].accumulate](CudaStream stream) {
    launch(sinks_grad_kernel, static_cast<unsigned>(n.heads), kSinkThreads, 0, stream, "attention_sinks_grad", n,
           of_logs, slopes, out, logs, sinks, dsinks, adds);
  };
}

}  // namespace trainctl
