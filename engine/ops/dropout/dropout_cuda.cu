// y = keep ? x / (1 - p) : 0. keep depends on the layer's key, the element's index in the whole tensor, the
// step and the micro-batch alone: the same bits as on the CPU. Backward: the same on dy.
#include "engine/ops/cuda_kernels.h"
#include "engine/ops/random.h"
#include "engine/ops/strided_cuda.cuh"

namespace trainctl {
namespace {

struct Mask {
  uint64_t key = 0;
  uint64_t micro_batch = 0;
  const uint32_t* step = nullptr;
  float p = 0, scale = 0;
  Nest<1> outer;      ///< over runs that are contiguous in the whole tensor too: where each begins there
  Divisor run_packs;  ///< packs of a run
  int64_t first = 0;  ///< of this part, in the whole tensor
  int64_t packs = 0;
};

// Kernels

/// v = v or 0, element by element; a Philox block makes the numbers of four neighbours.
template <int V>
__device__ void drop(const Mask& mask, uint64_t high, uint64_t index, float (&v)[V]) {
  Philox4 bits{};
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const uint64_t at = index + j;
    if (j == 0 || (at & 3) == 0) bits = philox(mask.key, at >> 2, high);
    const uint32_t lane = at & 3;
    const uint32_t word = lane < 2 ? (lane == 0 ? bits.v[0] : bits.v[1]) : (lane == 2 ? bits.v[2] : bits.v[3]);
    const float uniform = static_cast<float>(word >> 8) * 0x1p-24f;
    v[j] = uniform >= mask.p ? v[j] * mask.scale : 0.0f;
  }
}

template <int V, class T>
__global__ void __launch_bounds__(kMapThreads) dropout_kernel(Mask mask, Ref<T> x, Ref<T> y) {
  constexpr int kUnroll = 2;
  wait_for_kernel_before();
  let_next_kernel_start();
  const uint64_t high = (uint64_t{*mask.step} << 20) | mask.micro_batch;
  const int64_t base = static_cast<int64_t>(blockIdx.x) * (kUnroll * kMapThreads);
  const int64_t base_run = base / mask.run_packs.by;
  const auto base_pack = static_cast<uint32_t>(base - base_run * mask.run_packs.by);
  float v[kUnroll][V];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t local = threadIdx.x + u * kMapThreads;
    if (base + local < mask.packs) load(x, (base + local) * V, v[u]);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t local = threadIdx.x + u * kMapThreads;
    if (base + local >= mask.packs) continue;
    const uint32_t runs = mask.run_packs.quotient(base_pack + local);
    int64_t at[1] = {mask.first + static_cast<int64_t>(base_pack + local - runs * mask.run_packs.by) * V};
    mask.outer.add_offsets(static_cast<uint32_t>(base_run) + runs, at);
    drop(mask, high, static_cast<uint64_t>(at[0]), v[u]);
    store(y, (base + local) * V, v[u]);
  }
}

// Launchers

template <int V, class T>
CudaKernel launch_dropout(const CudaKernelCall& call, Mask mask, int64_t run) {
  mask.run_packs = Divisor(run / V);
  mask.packs = mask.outer.count * (run / V);
  const auto blocks = static_cast<unsigned>(ceil_div(mask.packs, 2 * kMapThreads));
  return [=, x = ref<T>(call.in[0]), y = ref<T>(call.out[0])](CudaStream stream) {
    launch(dropout_kernel<V, T>, blocks, kMapThreads, 0, stream, "dropout", mask, x, y);
  };
}

}  // namespace

CudaKernel prepare_dropout_cuda(const CudaKernelCall& call) {
  const TensorArg& out = call.out[0];
  if (out.size() == 0) return [](CudaStream) {};
  const double p = call.attrs.number("p");
  Mask mask;
  mask.key = stream_key(call.seed, static_cast<uint64_t>(call.attrs.integer("key")));
  mask.micro_batch = static_cast<uint64_t>(call.micro_batch);
  mask.step = &call.scalars->step;
  mask.p = static_cast<float>(p);
  mask.scale = p < 1.0 ? static_cast<float>(1.0 / (1.0 - p)) : 0.0f;
  const Shape local = cpu::strides_of(out.shape), whole = cpu::strides_of(out.global_shape);
  cpu::Loops<2> loops;
  for (size_t d = 0; d < out.shape.size(); ++d) {
    mask.first += out.offset[d] * whole[d];
    loops.add(out.shape[d], {local[d], whole[d]});
  }
  int64_t run = 1;
  if (loops.ndim > 0 && loops.stride[loops.ndim - 1][1] == 1) {
    std::array<int64_t, 2> step{};
    run = loops.take_inner(step);
  }
  cpu::Loops<1> outer;
  for (int d = 0; d < loops.ndim; ++d) outer.add(loops.size[d], {loops.stride[d][1]});
  mask.outer = Nest<1>(outer);
  return with_common_type({&call.in[0], &out}, [&](auto t) {
    using T = decltype(t);
    if (run % kPack<T> == 0 && packs_are_aligned({&call.in[0], &out}))
      return launch_dropout<kPack<T>, T>(call, mask, run);
    return launch_dropout<1, T>(call, mask, run);
  });
}

}  // namespace trainctl
