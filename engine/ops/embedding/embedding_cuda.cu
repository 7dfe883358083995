// y[t, :] = table[ids[t], :]. If the table is cut by rows, rows of other ranks give 0, and the ranks' sum is y.
#include "engine/ops/cuda/strided_cuda.cuh"
#include "engine/ops/embedding/embedding_grad_cuda.h"
#include "engine/ops/embedding/table_rows_cuda.cuh"

namespace trainctl {
namespace {

// Kernels

/// y[token] = table[ids[token]], or 0 if another rank has that row.
template <int V, class T>
__global__ void __launch_bounds__(kMapThreads)
    embedding_kernel(TableRows rows, const int32_t* ids, Ref<T> table, Ref<T> y, Divisor row_packs, int64_t packs) {
  constexpr int kUnroll = 2;
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t base = static_cast<int64_t>(blockIdx.x) * (kUnroll * kMapThreads);
  const int64_t base_token = base / row_packs.by;
  const auto base_pack = static_cast<uint32_t>(base - base_token * row_packs.by);
  float v[kUnroll][V] = {};
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t local = threadIdx.x + u * kMapThreads;
    if (base + local >= packs) continue;
    const uint32_t token = row_packs.quotient(base_pack + local);
    const int64_t row = rows.local(ids[base_token + token]);
    const int64_t column = static_cast<int64_t>(base_pack + local - token * row_packs.by) * V;
    if (row >= 0) load(table, row * row_packs.by * V + column, v[u]);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t local = threadIdx.x + u * kMapThreads;
    if (base + local < packs) store(y, (base + local) * V, v[u]);
  }
}

// Launchers

CudaKernel prepare_embedding(const CudaKernelCall& call) {
  const TensorArg &table = call.in[1], &y = call.out[0];
  const int64_t width = table.shape[1];
  if (y.size() == 0) return [](CudaStream) {};
  const auto fit = [&](int pack) { return width % pack == 0 && packs_are_aligned({&table, &y}); };
  return with_access({&table, &y}, fit, [&](auto access) {
    using T = decltype(element_of(access));
    constexpr int V = access.V;
    const int64_t packs = y.size() / V;
    const auto blocks = static_cast<unsigned>(ceil_div(packs, 2 * kMapThreads));
    return CudaKernel([=, rows = TableRows(table), ids = static_cast<const int32_t*>(call.in[0].as<int32_t>()),
                       from = ref<T>(table), to = ref<T>(y), row_packs = Divisor(width / V)](CudaStream stream) {
      launch(embedding_kernel<V, T>, blocks, kMapThreads, 0, stream, "embedding", rows, ids, from, to, row_packs,
             packs);
    });
  });
}

}  // namespace

extern const CudaKernels embedding_cuda = {{"embedding", prepare_embedding, kTakesF16},
                                           {"embedding_grad", prepare_embedding_grad, kTakesF16}};

}  // namespace trainctl
