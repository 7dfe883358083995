// y = keep ? x / (1 - p) : 0. keep depends only on the layer's key, the step and the element's index in the whole
// batch's tensor: the same bits as on the CPU. Backward: the same on dy.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/dropout_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kUnroll = 4;

// Kernels

/// y = x with the mask applied, and its scale; `place`: where this rank's elements are in the whole tensor.
template <int V, class T>
__global__ void __launch_bounds__(kMapThreads)
    dropout_kernel(MaskOfKernel mask, PlaceInWhole place, const StepScalars* scalars, Ref<T> x, Ref<T> y,
                   int64_t packs) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const uint32_t step = scalars->step;
  const int64_t base = static_cast<int64_t>(blockIdx.x) * (kUnroll * kMapThreads);
  Raw<T, V> raw[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t local = threadIdx.x + u * kMapThreads;
    if (base + local < packs) raw[u] = fetch<V>(x, (base + local) * V);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t local = threadIdx.x + u * kMapThreads;
    if (base + local >= packs) continue;
    float v[V];
    unpack(raw[u], v);
    mask.drop(step, place.of_pack<V>(base, local), v);
    store(y, (base + local) * V, v);
  }
}

}  // namespace

// Launchers

namespace {

CudaKernel prepare_dropout(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &y = call.out[0];
  if (y.size() == 0) return [](CudaStream) {};
  const MaskOfKernel mask{DropoutMask(call.seed, call.attrs.number("p"), call.attrs.integer("key"),
                                      BatchPlace::of(call.attrs), y, call.micro_batch)};
  PlaceInWhole place(y);
  const auto fit = [&](int pack) { return place.run % pack == 0 && mask.keeps_packs() && packs_are_aligned({&x, &y}); };
  return with_access({&x, &y}, fit, [&](auto access) {
    using T = decltype(element_of(access));
    constexpr int V = access.V;
    place.set_pack(V);
    const int64_t packs = y.size() / V;
    const auto blocks = static_cast<unsigned>(ceil_div(packs, kUnroll * kMapThreads));
    return CudaKernel([=, from = ref<T>(x), to = ref<T>(y), scalars = call.scalars](CudaStream stream) {
      launch(dropout_kernel<V, T>, blocks, kMapThreads, 0, stream, "dropout", mask, place, scalars, from, to, packs);
    });
  });
}

}  // namespace

extern const CudaKernels dropout_cuda = {{"dropout", prepare_dropout, kTakesF16}};

}  // namespace trainctl
