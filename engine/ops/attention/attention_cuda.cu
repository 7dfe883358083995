// Attention on GPUs. In bf16 the gradients for Hopper apply first, then cuDNN. Own tiles, chosen by the size of the
// heads, compute everything else, and all calls whose scores have additional terms.
#include "engine/ops/attention/attention_cudnn_cuda.h"
#include "engine/ops/attention/attention_grad_groups_cuda.h"
#include "engine/ops/attention/attention_grad_one_pass_cuda.h"
#include "engine/ops/attention/attention_grad_wide_cuda.h"
#include "engine/ops/attention/attention_launch_cuda.cuh"
#include "engine/ops/attention/attention_sinks_cuda.h"
#include "engine/ops/attention/attention_terms_cuda.h"
#include "engine/ops/row_order.h"

namespace trainctl {
namespace {

using namespace attention;

CudaKernel attention_without_sinks(const CudaKernelCall& call, const AttentionCall& a) {
  if (a.starts_at_first_key())
    if (CudaKernel by_library = cudnn_attention(call, a)) return by_library;
  return a.terms.any ? attention_with_terms(call, a) : attention_by_tiles(call, a, NoTerms{});
}

CudaKernel prepare_attention(const CudaKernelCall& call) {
  const AttentionCall a = attention_of(call);
  CudaKernel attention = attention_without_sinks(call, a);
  return a.has_sinks ? with_sinks(call, a, std::move(attention)) : attention;
}

CudaKernel prepare_attention_grad(const CudaKernelCall& call) {
  const AttentionCall a = attention_of_grad(call);
  if (a.starts_at_first_key() && !a.terms.any) {
    if (CudaKernel in_one_pass = attention_grad_in_one_pass(call, a)) return in_one_pass;
    if (CudaKernel by_groups = attention_grad_by_groups(call, a)) return by_groups;
    if (CudaKernel of_wide_heads = attention_grad_of_wide_heads(call, a)) return of_wide_heads;
  }
  if (a.starts_at_first_key())
    if (CudaKernel by_library = cudnn_attention_grad(call, a)) return by_library;
  return a.terms.any ? attention_grad_with_terms(call, a) : attention_grad_by_tiles(call, a, NoTerms{});
}

/// The rows of two blocks of keys, each with the log of its sum of exponentials.
struct MergedRows {
  int64_t rows, t, heads, e;
  float no_keys;
};

/// `group` threads of a warp for each row, each for packs of V features. They have read both logs before one is
/// written, so outputs may take the place of the first inputs.
template <int V, class T>
__global__ void __launch_bounds__(kThreads) merge_kernel(MergedRows m, int group, Ref<T> a, const float* log_a,
                                                         Ref<T> b, const float* log_b, Ref<T> out, float* logs) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, row = thread / group;
  const int lane = static_cast<int>(threadIdx.x) % group;
  const bool valid = row < m.rows;
  float of_a = kNoKeys, of_b = kNoKeys;
  if (valid) of_a = log_a[row], of_b = log_b[row];
  const float top = fmaxf(of_a, of_b);
  const bool sees = !(top <= kNoKeys);
  const float weight_a = sees ? expf(of_a - top) : 0.0f, weight_b = sees ? expf(of_b - top) : 0.0f;
  const float total = weight_a + weight_b;
  const int64_t head = row / m.t, first = ((head / m.heads * m.t + row % m.t) * m.heads + head % m.heads) * m.e;
  for (int64_t at = lane * V; valid && at < m.e; at += group * V) {
    float x[V], y[V];
    load(a, first + at, x);
    load(b, first + at, y);
#pragma unroll
    for (int j = 0; j < V; ++j) x[j] = sees ? (weight_a * x[j] + weight_b * y[j]) / total : 0.0f;
    store(out, first + at, x);
  }
  __syncwarp();
  if (valid && lane == 0) logs[row] = sees ? top + logf(total) : m.no_keys;
}

CudaKernel prepare_attention_merge(const CudaKernelCall& call) {
  const TensorArg &a = call.in[0], &b = call.in[2], &out = call.out[0];
  const Shape& shape = call.in[1].shape;  // [b, g, r, t]
  MergedRows m{num_elements(shape), shape[3], shape[1] * shape[2], 0, call.attrs.flag("last") ? 0.0f : kNoKeys};
  m.e = a.shape[2] / m.heads;
  const auto fit = [&](int pack) { return m.e % pack == 0 && packs_are_aligned({&a, &b, &out}); };
  return with_access({&a, &b, &out}, fit, [&](auto access) -> CudaKernel {
    using T = decltype(element_of(access));
    constexpr int V = access.V;
    int group = 1;
    while (group < 32 && group * V < m.e) group *= 2;
    return [m, group, from_a = ref<T>(a), log_a = call.in[1].as<float>(), from_b = ref<T>(b),
            log_b = call.in[3].as<float>(), to = ref<T>(out), logs = call.out[1].as<float>()](CudaStream stream) {
      launch(merge_kernel<V, T>, blocks(ceil_div(m.rows * group, kThreads)), kThreads, 0, stream, "attention_merge", m,
             group, from_a, log_a, from_b, log_b, to, logs);
    };
  });
}

struct ReorderedRows {
  RowOrder order;
  int64_t rows, words, count;  ///< rows of a sample; words of a row; all words
  bool to_order;
};

/// A thread for each word of 2 bytes.
__global__ void __launch_bounds__(kThreads) reorder_kernel(ReorderedRows r, const uint16_t* x, uint16_t* y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= r.count) return;
  const int64_t row = i / r.words, stored = (row / r.rows * r.rows + row % r.rows) * r.words + i % r.words;
  const int64_t ordered = (row / r.rows * r.rows + r.order.position(row % r.rows)) * r.words + i % r.words;
  y[r.to_order ? stored : ordered] = x[r.to_order ? ordered : stored];
}

CudaKernel prepare_reorder_rows(const CudaKernelCall& call) {
  const TensorArg& x = call.in[0];
  const int64_t count = x.size() * byte_size(x.dtype) / 2, rows = x.shape[1];
  const ReorderedRows r{RowOrder::of(call.attrs, rows), rows, count / (x.shape[0] * rows), count,
                        call.attrs.flag("to_order")};
  return [r, from = x.as<uint16_t>(), to = call.out[0].as<uint16_t>()](CudaStream stream) {
    launch(reorder_kernel, blocks(ceil_div(r.count, kThreads)), kThreads, 0, stream, "reorder_rows", r, from, to);
  };
}

}  // namespace

extern const CudaKernels attention_cuda = {{"attention", prepare_attention},
                                           {"attention_grad", prepare_attention_grad},
                                           {"attention_sinks_grad", prepare_attention_sinks_grad},
                                           {"attention_score_bias_grad", prepare_attention_score_bias_grad},
                                           {"attention_merge", prepare_attention_merge},
                                           {"reorder_rows", prepare_reorder_rows}};

}  // namespace trainctl
