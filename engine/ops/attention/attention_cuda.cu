// In bf16 the engine's gradients for Hopper apply first, then cuDNN. The engine's own tiles, chosen by the size of the
// heads, compute everything else.
#include "engine/ops/attention/attention_cudnn_cuda.h"
#include "engine/ops/attention/attention_grad_groups_cuda.h"
#include "engine/ops/attention/attention_grad_one_pass_cuda.h"
#include "engine/ops/attention/attention_grad_wide_cuda.h"
#include "engine/ops/attention/attention_sinks_cuda.h"
#include "engine/ops/attention/attention_tiles_cuda.cuh"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/rows_cuda.cuh"
#include "engine/ops/row_order.h"

namespace trainctl {
namespace {

using namespace attention;

MaskType mask_type(const KernelCall& call, const AttentionCall& a) {
  if (!a.masked) return MaskType::none;
  if (a.documents) return MaskType::documents;
  switch (call.in[a.mask_at].dtype) {
    case DType::i32:
      return MaskType::ints;
    case DType::f32:
      return MaskType::floats;
    case DType::bf16:
      return MaskType::halves;
    case DType::f16:
      break;  // the executor has widened it
  }
  return MaskType::none;
}

Operands operands_of(const KernelCall& call, const AttentionCall& a) {
  return {a.size,
          a.q,
          a.k,
          a.v,
          a.out,
          ref<Mixed>(call.in[a.q_at]),
          ref<Mixed>(call.in[a.k_at]),
          ref<Mixed>(call.in[a.v_at]),
          a.masked ? call.in[a.mask_at].data : nullptr,
          mask_type(call, a),
          a.causal,
          a.window,
          a.first_row,
          a.scale,
          a.softcap,
          a.first_key,
          a.mask_rows,
          a.part || a.has_sinks};
}

template <int N>
using Int = std::integral_constant<int, N>;

/// Calls run(the features that a tile has room for).
template <class Run>
auto with_features(int64_t d, Run run) {
  if (d <= 32) return run(Int<32>{});
  if (d <= 64) return run(Int<64>{});
  if (d <= 128) return run(Int<128>{});
  check(d <= 256, "attention supports heads of up to 256 features");
  return run(Int<256>{});
}

/// Rows of a tile, such that its floats fit into the shared memory of a block.
template <int D>
inline constexpr int kForwardTile = D <= 128 ? 64 : 32;
template <int D>
inline constexpr int kBackwardTile = D <= 64    ? 64
                                     : D <= 128 ? 32
                                                : 16;

unsigned blocks(int64_t count) {
  check(count <= INT32_MAX, "attention: too many blocks for one launch");
  return static_cast<unsigned>(count);
}

CudaKernel attention_without_sinks(const CudaKernelCall& call, const AttentionCall& a) {
  if (a.starts_at_first_key())
    if (CudaKernel by_library = cudnn_attention(call, a)) return by_library;
  return with_features(std::max(a.size.d, a.size.e), [&](auto features) -> CudaKernel {
    constexpr int kD = features, kB = kForwardTile<kD>;
    constexpr size_t kBytes = kForwardFloats<kB, kD> * sizeof(float);
    ask_for_shared(forward_kernel<kB, kD>, kBytes, "attention");
    return [n = a.size, operands = operands_of(call, a), out = ref<Mixed>(call.out[0]),
            logs = call.out[1].as<float>()](CudaStream stream) {
      const int64_t tiles = ceil_div(n.t, kB);
      launch(forward_kernel<kB, kD>, blocks(n.b * n.heads() * tiles), kThreads, kBytes, stream, "attention", operands,
             out, logs, tiles);
    };
  });
}

CudaKernel prepare_attention(const CudaKernelCall& call) {
  const AttentionCall a = attention_of(call);
  CudaKernel attention = attention_without_sinks(call, a);
  return a.has_sinks ? with_sinks(call, a, std::move(attention)) : attention;
}

CudaKernel prepare_attention_grad(const CudaKernelCall& call) {
  const AttentionCall a = attention_of_grad(call);
  if (a.starts_at_first_key()) {
    if (CudaKernel by_groups = attention_grad_by_groups(call, a)) return by_groups;
    if (CudaKernel in_one_pass = attention_grad_in_one_pass(call, a)) return in_one_pass;
    if (CudaKernel of_wide_heads = attention_grad_of_wide_heads(call, a)) return of_wide_heads;
    if (CudaKernel by_library = cudnn_attention_grad(call, a)) return by_library;
  }
  const int64_t rows = a.size.b * a.size.heads() * a.size.t;
  call.scratch->need(rows * static_cast<int64_t>(sizeof(float)));
  return with_features(std::max(a.size.d, a.size.e), [&](auto features) -> CudaKernel {
    constexpr int kD = features, kB = kBackwardTile<kD>;
    constexpr size_t kBytes = kBackwardFloats<kB, kD> * sizeof(float);
    ask_for_shared(keys_grad_kernel<kB, kD>, kBytes, "attention_grad");
    ask_for_shared(queries_grad_kernel<kB, kD>, kBytes, "attention_grad");
    return [n = a.size, operands = operands_of(call, a), dy = ref<Mixed>(call.in[0]),
            y = ref<Mixed>(call.in[call.in.size() - 2]), logs = call.in.back().as<float>(),
            dq = ref<Mixed>(call.out[0]), dk = ref<Mixed>(call.out[a.packed ? 0 : 1]),
            dv = ref<Mixed>(call.out[a.packed ? 0 : 2]), rows, scratch = call.scratch](CudaStream stream) {
      auto* const means = static_cast<float*>(scratch->memory());
      const GradOperands grad{dy, logs, means};
      const int64_t key_tiles = ceil_div(n.s, kB), tiles = ceil_div(n.t, kB);
      launch(means_kernel, blocks(ceil_div(rows, kThreads / 32)), kThreads, 0, stream, "attention_grad", operands, dy,
             y, means);
      launch(keys_grad_kernel<kB, kD>, blocks(n.b * n.g * key_tiles), kThreads, kBytes, stream, "attention_grad",
             operands, grad, dk, dv, key_tiles);
      launch(queries_grad_kernel<kB, kD>, blocks(n.b * n.heads() * tiles), kThreads, kBytes, stream, "attention_grad",
             operands, grad, dq, tiles);
    };
  });
}

/// The rows of two blocks of keys, each with the log of its sum of exponentials.
struct MergedRows {
  int64_t rows, t, heads, e;
  float no_keys;
};

/// A warp for each row. It has read both logs before it writes one, so outputs may take the place of the first inputs.
__global__ void __launch_bounds__(kThreads) merge_kernel(MergedRows m, Ref<Mixed> a, const float* log_a, Ref<Mixed> b,
                                                         const float* log_b, Ref<Mixed> out, float* logs) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= m.rows) return;
  const int64_t head = row / m.t, first = ((head / m.heads * m.t + row % m.t) * m.heads + head % m.heads) * m.e;
  const float of_a = log_a[row], of_b = log_b[row], top = fmaxf(of_a, of_b);
  const bool sees = !(top <= kNoKeys);
  const float weight_a = sees ? expf(of_a - top) : 0.0f, weight_b = sees ? expf(of_b - top) : 0.0f;
  const float total = weight_a + weight_b;
  for (int64_t at = first + lane; at < first + m.e; at += 32)
    set(out, at, sees ? (weight_a * value(a, at) + weight_b * value(b, at)) / total : 0.0f);
  __syncwarp();
  if (lane == 0) logs[row] = sees ? top + logf(total) : m.no_keys;
}

CudaKernel prepare_attention_merge(const CudaKernelCall& call) {
  const Shape& shape = call.in[1].shape;  // [b, g, r, t]
  MergedRows m{num_elements(shape), shape[3], shape[1] * shape[2], 0, call.attrs.flag("last") ? 0.0f : kNoKeys};
  m.e = call.in[0].shape[2] / m.heads;
  return [m, a = ref<Mixed>(call.in[0]), log_a = call.in[1].as<float>(), b = ref<Mixed>(call.in[2]),
          log_b = call.in[3].as<float>(), out = ref<Mixed>(call.out[0]),
          logs = call.out[1].as<float>()](CudaStream stream) {
    launch(merge_kernel, blocks(ceil_div(m.rows * 32, kThreads)), kThreads, 0, stream, "attention_merge", m, a, log_a,
           b, log_b, out, logs);
  };
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
                                           {"attention_merge", prepare_attention_merge},
                                           {"reorder_rows", prepare_reorder_rows}};

}  // namespace trainctl
