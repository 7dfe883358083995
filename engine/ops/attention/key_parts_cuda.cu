// Gradients of keys or values, one part for each query head of a group, that are added in their order.
#include "engine/ops/attention/key_parts_cuda.h"
#include "engine/ops/cuda/vector_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kThreads = 256, kPackOf = kPack<bf16>;

/// One thread per pack of 8 features.
__global__ void __launch_bounds__(kThreads)
    add_key_parts_kernel(Ref<bf16> from, KeyParts parts, Ref<bf16> to, Heads heads, int64_t packs) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= packs) return;
  const int64_t of_row = parts.d / kPackOf, row = i / of_row, key = row % parts.keys, head = row / parts.keys;
  float sum[kPackOf] = {};
  for (int64_t part = 0; part < parts.count; ++part) {
    float v[kPackOf];
    load(from, part * (parts.bytes / 2) + i * kPackOf, v);
#pragma unroll
    for (int e = 0; e < kPackOf; ++e) sum[e] += v[e];
  }
  const int64_t at = head / parts.g * heads.batch + head % parts.g * heads.group + key * heads.row;
  store(to, at + (i - row * of_row) * kPackOf, sum);
}

}  // namespace

void add_key_parts(CudaStream stream, const void* from, const KeyParts& parts, void* to, const Heads& heads) {
  const int64_t packs = parts.b * parts.g * parts.keys * (parts.d / kPackOf);
  const Ref<bf16> in{static_cast<bf16*>(const_cast<void*>(from))}, out{static_cast<bf16*>(to)};
  launch(add_key_parts_kernel, static_cast<unsigned>(ceil_div(packs, kThreads)), kThreads, 0, stream, "attention_grad",
         in, parts, out, heads, packs);
}

}  // namespace trainctl
