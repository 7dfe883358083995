// Instances of the engine's own attention with terms of the scores, and the gradient of a bias: a block for each tile
// of the bias, which adds up the tiles of all samples and heads that it counts for, in a fixed order.
#include "engine/ops/attention/attention_launch_cuda.cuh"
#include "engine/ops/attention/attention_terms_cuda.h"

namespace trainctl {
namespace {

using namespace attention;

WithTerms terms_of_call(const CudaKernelCall& call, const AttentionCall& a) {
  return {a.terms, a.terms.has_bias ? ref<Mixed>(call.in[a.terms.bias_at]) : Ref<Mixed>{}, call.scalars};
}

/// The gradient of this rank's part of a bias.
struct BiasGrad {
  BiasDims dims;
  Ref<Mixed> to;
  bool adds;
  int64_t row_tiles, key_tiles;  ///< tiles of this rank's rows and keys
  bool sums_rows;                ///< one place counts for all rows
};

__global__ void __launch_bounds__(kThreads) zero_bias_kernel(Ref<Mixed> to, int64_t count) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) set(to, i, 0.0f);
}

__device__ inline void put(const BiasGrad& bias, int64_t at, float sum) {
  set(bias.to, at, sum + (bias.adds ? value(bias.to, at) : 0.0f));
}

template <int B, int D>
__global__ void __launch_bounds__(kThreads)
    bias_grad_kernel(Operands a, WithTerms terms, GradOperands grad, BiasGrad bias) {
  constexpr int kR = B / kSide;
  wait_for_kernel_before();
  let_next_kernel_start();
  extern __shared__ float4 attention_shared[];
  float* const keys = reinterpret_cast<float*>(attention_shared);
  float* const values = keys + B * kPitch<D>;
  float* const queries = values + B * kPitch<D>;
  float* const dys = queries + B * kPitch<D>;
  float* const square = dys + B * kPitch<D>;
  const int64_t tiles_of_rows = bias.sums_rows ? 1 : bias.row_tiles;
  const int64_t key0 = blockIdx.x % bias.key_tiles * B, tile = blockIdx.x / bias.key_tiles % tiles_of_rows;
  const int64_t place = blockIdx.x / bias.key_tiles / tiles_of_rows;
  const int64_t first_b = place / bias.dims.h, first_head = place % bias.dims.h;
  const int64_t end_b = bias.dims.b > 1 ? first_b + 1 : a.n.b;
  const int64_t end_head = bias.dims.h > 1 ? first_head + 1 : a.n.g * a.n.r;
  const int64_t first_row = tile * B, end_row = bias.sums_rows ? a.n.t : first_row + 1;
  float sum[kR][kR] = {};
  for (int64_t b = first_b; b < end_b; ++b) {
    for (int64_t head = first_head; head < end_head; ++head) {
      for (int64_t row0 = first_row; row0 < end_row; row0 += B) {
        if (a.first_key_of(b, row0, row0 + B) >= key0 + B || a.keys_of(row0 + B) <= key0) continue;
        const Place at{b, head / a.n.r, head % a.n.r, row0};
        __syncthreads();
        load_tile<B, D>(keys, from(a.k_data, offset_of(a.k, b, at.g, 0, key0)), a.k.row, a.n.s - key0, a.n.d);
        load_tile<B, D>(values, from(a.v_data, offset_of(a.v, b, at.g, 0, key0)), a.v.row, a.n.s - key0, a.n.e);
        load_tile<B, D>(queries, from(a.q_data, offset_of(a.q, b, at.g, at.r, row0)), a.q.row, a.n.t - row0, a.n.d);
        load_tile<B, D>(dys, from(grad.dy, offset_of(a.out, b, at.g, at.r, row0)), a.out.row, a.n.t - row0, a.n.e);
        __syncthreads();
        float p[kR][kR], g[kR][kR];
        slopes<B, D, true>(a, terms, grad, at, row0, key0, queries, keys, dys, values, p, g);
#pragma unroll
        for (int i = 0; i < kR; ++i) {
#pragma unroll
          for (int j = 0; j < kR; ++j) sum[i][j] += g[i][j];
        }
      }
    }
  }
  const int64_t at_place = first_b * terms.terms.batch + first_head * terms.terms.head + terms.terms.first_key + key0;
  if (!bias.sums_rows) {
#pragma unroll
    for (int i = 0; i < kR; ++i) {
      const int64_t row = first_row + row_of(i);
#pragma unroll
      for (int j = 0; j < kR; ++j)
        if (row < a.n.t && key0 + column_of(j) < a.n.s)
          put(bias, at_place + (terms.terms.first_row + row) * terms.terms.row + column_of(j), sum[i][j]);
    }
    return;
  }
  store_square<B>(square, sum);
  __syncthreads();
  if (threadIdx.x >= B || key0 + threadIdx.x >= a.n.s) return;
  float total = 0;
  for (int row = 0; row < B; ++row) total += square[row * (B + 1) + threadIdx.x];
  put(bias, at_place + threadIdx.x, total);
}

}  // namespace

CudaKernel attention_with_terms(const CudaKernelCall& call, const AttentionCall& a) {
  return attention_by_tiles(call, a, terms_of_call(call, a));
}

CudaKernel attention_grad_with_terms(const CudaKernelCall& call, const AttentionCall& a) {
  return attention_grad_by_tiles(call, a, terms_of_call(call, a));
}

/// The gradient of the bias of the scores. Places of the bias that this rank's rows and keys do not reach become 0.
CudaKernel prepare_attention_score_bias_grad(const CudaKernelCall& call) {
  const AttentionCall a = attention_of_grad(call);
  const TensorArg& out = call.out[0];
  const int64_t rows = a.size.b * a.size.heads() * a.size.t;
  call.scratch->need(rows * static_cast<int64_t>(sizeof(float)));
  const BiasDims dims = BiasDims::of(out.shape, call.attrs.text(kScoreBias));
  return with_features<WithTerms>(std::max(a.size.d, a.size.e), [&](auto features) -> CudaKernel {
    constexpr int kD = features, kB = kBackwardTile<kD>;
    constexpr size_t kBytes = kBackwardFloats<kB, kD> * sizeof(float);
    ask_for_shared(bias_grad_kernel<kB, kD>, kBytes, "attention_score_bias_grad");
    const BiasGrad bias{dims,       ref<Mixed>(out), out.accumulate, ceil_div(a.size.t, kB), ceil_div(a.size.s, kB),
                        dims.r == 1};
    // Ranks that share the rows have places for all of them.
    const bool has_others = !bias.sums_rows && a.size.t < dims.r;
    const int64_t zeroed = !out.accumulate && (has_others || a.size.s < dims.k) ? out.size() : 0;
    return [n = a.size, operands = operands_of(call, a), terms = terms_of_call(call, a), bias, zeroed,
            dy = ref<Mixed>(call.in[0]), y = ref<Mixed>(call.in[call.in.size() - 2]), logs = call.in.back().as<float>(),
            rows, scratch = call.scratch](CudaStream stream) {
      auto* const means = static_cast<float*>(scratch->memory());
      const GradOperands grad{dy, logs, means};
      launch(means_kernel, blocks(ceil_div(rows, kThreads / 32)), kThreads, 0, stream, "attention_score_bias_grad",
             operands, dy, y, means);
      if (zeroed > 0)
        launch(zero_bias_kernel, blocks(ceil_div(zeroed, kThreads)), kThreads, 0, stream, "attention_score_bias_grad",
               bias.to, zeroed);
      const int64_t tiles = (bias.sums_rows ? 1 : bias.row_tiles) * bias.key_tiles;
      launch(bias_grad_kernel<kB, kD>, blocks(bias.dims.b * bias.dims.h * tiles), kThreads, kBytes, stream,
             "attention_score_bias_grad", operands, terms, grad, bias);
    };
  });
}

}  // namespace trainctl
