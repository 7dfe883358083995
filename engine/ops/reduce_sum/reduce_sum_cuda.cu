// y = scale * sum of x over dims (scale = 1/count makes it the mean); broadcast_to is its backward.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/sums_cuda.cuh"

namespace trainctl {
namespace {

struct Scaled {
  float scale;
  __device__ float operator()(std::array<float, 0>, std::array<float, 1> x) const { return scale * x[0]; }
};

CudaKernel prepare_reduce_sum(const CudaKernelCall& call) {
  const Shape strides = cpu::kept_strides(call.in[0].shape, call.out[0].shape, call.attrs.ints("dims"));
  return prepare_plain_sum(call, strides, call.attrs.number("scale", 1.0), "reduce_sum");
}

CudaKernel prepare_broadcast_to(const CudaKernelCall& call) {
  const TensorArg &in = call.in[0], &out = call.out[0];
  const Shape strides = cpu::kept_strides(out.shape, in.shape, call.attrs.ints("dims"));
  const Scaled op{static_cast<float>(call.attrs.number("scale", 1.0))};
  return map_strided<0, 1>({}, {&in}, out, out.shape, {strides}, op, "broadcast_to");
}

}  // namespace

extern const CudaKernels reduce_sum_cuda = {{"reduce_sum", prepare_reduce_sum, kTakesF16},
                                            {"broadcast_to", prepare_broadcast_to, kTakesF16}};

}  // namespace trainctl
