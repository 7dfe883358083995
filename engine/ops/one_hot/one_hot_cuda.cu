// y[t, c] = 1 where c = ids[t], else 0, for this rank's classes.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/data_check_cuda.cuh"
#include "engine/ops/cuda/strided_cuda.cuh"

namespace trainctl {
namespace {

/// This rank's part of the classes.
struct Classes {
  int64_t first = 0, all = 0;
  Divisor packs;  ///< packs per row of this rank's classes
};

// Kernels

constexpr int kOneHotUnroll = 4;

/// y [rows, classes of this rank], in packs of V classes.
template <int V, class T>
__global__ void __launch_bounds__(kMapThreads)
    one_hot_kernel(Classes classes, const int32_t* ids, Ref<T> y, int64_t packs) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t base = static_cast<int64_t>(blockIdx.x) * (kOneHotUnroll * kMapThreads);
  const int64_t base_row = base / classes.packs.by;
  const auto base_pack = static_cast<uint32_t>(base - base_row * classes.packs.by);
#pragma unroll
  for (int u = 0; u < kOneHotUnroll; ++u) {
    const uint32_t local = threadIdx.x + u * kMapThreads;
    if (base + local >= packs) continue;
    const uint32_t row = classes.packs.quotient(base_pack + local);
    const int64_t column = int64_t{base_pack + local - row * classes.packs.by} * V;
    const int32_t id = ids[base_row + row];
    if (id < 0 || id >= classes.all)
      data_is_wrong(
          "one_hot: the data contains a class that is out of range; set classes to a number greater than "
          "the largest class");
    const int64_t place = id - classes.first - column;
    float v[V];
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = j == place ? 1.0f : 0.0f;
    store(y, (base + local) * V, v);
  }
}

// Launchers

CudaKernel prepare_one_hot(const CudaKernelCall& call) {
  const TensorArg& y = call.out[0];
  const int64_t width = y.shape.back();
  if (y.size() == 0) return [](CudaStream) {};
  return with_any_float_type(y.dtype, [&](auto t) {
    using T = decltype(t);
    const auto prepare = [&](auto pack) {
      const int64_t packs = y.size() / pack;
      const auto blocks = static_cast<unsigned>(ceil_div(packs, kOneHotUnroll * kMapThreads));
      const Classes classes{y.offset.back(), y.global_shape.back(), Divisor(width / pack)};
      return CudaKernel(
          [=, ids = static_cast<const int32_t*>(call.in[0].as<int32_t>()), to = ref<T>(y)](CudaStream stream) {
            launch(one_hot_kernel<pack, T>, blocks, kMapThreads, 0, stream, "one_hot", classes, ids, to, packs);
          });
    };
    if (width % kPack<T> == 0 && packs_are_aligned({&y})) return prepare(std::integral_constant<int, kPack<T>>{});
    return prepare(std::integral_constant<int, 1>{});
  });
}

}  // namespace

extern const CudaKernels one_hot_cuda = {{"one_hot", prepare_one_hot, kTakesF16}};

}  // namespace trainctl
