// The same elements under another shape: a copy, if the compiler could not leave them in place.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/moves_cuda.cuh"

namespace trainctl {
namespace {

CudaKernel prepare_reshape(const CudaKernelCall& call) {
  const TensorArg &in = call.in[0], &out = call.out[0];
  check(in.size() == out.size() && in.dtype == out.dtype, "reshape: input and output differ in size or dtype");
  if (in.data == out.data) return [](CudaStream) {};
  const int64_t bytes = out.size() * byte_size(out.dtype);
  // A row's words are counted in 31 bits, so a tensor is copied as rows of 64 KB if that divides it.
  constexpr int64_t kRow = 65536;
  cpu::Loops<2> rows;
  if (bytes % kRow != 0) return prepare_copy_rows(in.data, out.data, bytes, rows, "reshape");
  rows.ndim = 1;
  rows.size[0] = bytes / kRow;
  rows.stride[0] = {kRow, kRow};
  return prepare_copy_rows(in.data, out.data, kRow, rows, "reshape");
}

}  // namespace

extern const CudaKernels reshape_cuda = {{"reshape", prepare_reshape, kTakesF16}};

}  // namespace trainctl
