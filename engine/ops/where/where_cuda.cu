// where: y = condition ? a : b.  masked_fill: y = mask ? value : x, or the reverse. numpy broadcasting.
#include "engine/ops/cuda/broadcast_cuda.cuh"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {
namespace {

struct WhereOfSides {
  __device__ float operator()(std::array<float, 0>, std::array<float, 3> in) const {
    return Where{}(in[0], in[1], in[2]);
  }
};

CudaKernel prepare_where(const CudaKernelCall& call) {
  const TensorArg& out = call.out[0];
  std::array<const TensorArg*, 3> in;
  std::array<Shape, 3> strides;
  for (size_t k = 0; k < 3; ++k) {
    in[k] = &call.in[k];
    strides[k] = cpu::broadcast_strides(in[k]->shape, out.shape);
  }
  return map_strided<0, 3>({}, in, out, out.shape, strides, WhereOfSides{}, "where");
}

CudaKernel prepare_masked_fill(const CudaKernelCall& call) {
  const MaskedFill fill{static_cast<float>(call.attrs.number("value", 0)), call.attrs.flag("invert")};
  return map_broadcast(call, fill, "masked_fill");
}

}  // namespace

extern const CudaKernels where_cuda = {{"where", prepare_where, kTakesF16},
                                       {"masked_fill", prepare_masked_fill, kTakesF16}};

}  // namespace trainctl
