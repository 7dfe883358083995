// Launches of the engine's own attention (attention_tiles_cuda.cuh), with or without terms of scores.
#pragma once

#include <type_traits>

#include "engine/ops/attention/attention_tiles_cuda.cuh"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/rows_cuda.cuh"

namespace trainctl::attention {

inline MaskType mask_type(const KernelCall& call, const AttentionCall& a) {
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

inline Operands operands_of(const KernelCall& call, const AttentionCall& a) {
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
          a.is_partial || a.has_sinks};
}

template <int N>
using Int = std::integral_constant<int, N>;

/// Calls run(the features that a tile has room for). Kernels with terms, which few jobs use, have fewer sizes, because
/// each is compiled.
template <class Terms, class Run>
auto with_features(int64_t d, Run run) {
  if constexpr (!Terms::kAny)
    if (d <= 32) return run(Int<32>{});
  if (d <= 64) return run(Int<64>{});
  if constexpr (!Terms::kAny)
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

inline unsigned blocks(int64_t count) {
  check(count <= INT32_MAX, "attention: too many blocks for one launch");
  return static_cast<unsigned>(count);
}

template <class Terms>
CudaKernel attention_by_tiles(const CudaKernelCall& call, const AttentionCall& a, const Terms& terms) {
  return with_features<Terms>(std::max(a.size.d, a.size.e), [&](auto features) -> CudaKernel {
    constexpr int kD = features, kB = kForwardTile<kD>;
    constexpr size_t kBytes = kForwardFloats<kB, kD> * sizeof(float);
    ask_for_shared(forward_kernel<kB, kD, Terms>, kBytes, "attention");
    return [n = a.size, operands = operands_of(call, a), terms, out = ref<Mixed>(call.out[0]),
            logs = call.out[1].as<float>()](CudaStream stream) {
      const int64_t tiles = ceil_div(n.t, kB);
      launch(forward_kernel<kB, kD, Terms>, blocks(n.b * n.heads() * tiles), kThreads, kBytes, stream, "attention",
             operands, terms, out, logs, tiles);
    };
  });
}

/// dq, dk and dv in three launches: the means of rows, dk and dv by tiles of keys, dq by tiles of queries.
template <class Terms>
CudaKernel attention_grad_by_tiles(const CudaKernelCall& call, const AttentionCall& a, const Terms& terms) {
  const int64_t rows = a.size.b * a.size.heads() * a.size.t;
  call.scratch->need(rows * static_cast<int64_t>(sizeof(float)));
  return with_features<Terms>(std::max(a.size.d, a.size.e), [&](auto features) -> CudaKernel {
    constexpr int kD = features, kB = kBackwardTile<kD>;
    constexpr size_t kBytes = kBackwardFloats<kB, kD> * sizeof(float);
    ask_for_shared(keys_grad_kernel<kB, kD, Terms>, kBytes, "attention_grad");
    ask_for_shared(queries_grad_kernel<kB, kD, Terms>, kBytes, "attention_grad");
    return [n = a.size, operands = operands_of(call, a), terms, dy = ref<Mixed>(call.in[0]),
            y = ref<Mixed>(call.in[call.in.size() - 2]), logs = call.in.back().as<float>(),
            dq = ref<Mixed>(call.out[0]), dk = ref<Mixed>(call.out[a.packed ? 0 : 1]),
            dv = ref<Mixed>(call.out[a.packed ? 0 : 2]), rows, scratch = call.scratch](CudaStream stream) {
      auto* const means = static_cast<float*>(scratch->memory());
      const GradOperands grad{dy, logs, means};
      const int64_t key_tiles = ceil_div(n.s, kB), tiles = ceil_div(n.t, kB);
      launch(means_kernel, blocks(ceil_div(rows, kThreads / 32)), kThreads, 0, stream, "attention_grad", operands, dy,
             y, means);
      launch(keys_grad_kernel<kB, kD, Terms>, blocks(n.b * n.g * key_tiles), kThreads, kBytes, stream, "attention_grad",
             operands, terms, grad, dk, dv, key_tiles);
      launch(queries_grad_kernel<kB, kD, Terms>, blocks(n.b * n.heads() * tiles), kThreads, kBytes, stream,
             "attention_grad", operands, terms, grad, dq, tiles);
    };
  });
}

}  // namespace trainctl::attention
