// out[1] = sum of in^2: this rank's term of the squared global norm.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/sums_cuda.cuh"

namespace trainctl {
namespace {

template <class T>
struct SquareTerm {
  static constexpr int kSums = 1;
  Ref<T> x;
  SumOutput out;

  template <int V>
  __device__ int begin(int64_t) const {
    return 0;
  }
  template <int V>
  __device__ Raw<T, V> fetch(int64_t at, uint32_t) const {
    return trainctl::fetch<V>(x, at);
  }
  template <int V>
  __device__ void terms(int64_t, const Raw<T, V>& raw, int, float (&v)[1][V]) const {
    unpack(raw, v[0]);
#pragma unroll
    for (int j = 0; j < V; ++j) v[0][j] *= v[0][j];
  }
  __device__ void finish(int64_t k, const double (&total)[1]) const { out.write(k, total[0]); }
};

CudaKernel prepare_sum_squares(const CudaKernelCall& call) {
  const TensorArg& x = call.in[0];
  const auto term_of = [&]<class T>(T) { return SquareTerm<T>{ref<T>(x), SumOutput::of(call, 0, 1.0)}; };
  return prepare_total(call, x.size(), {&x}, term_of, "sum_squares");
}

__global__ void not_finite_kernel_cuda(const float* x, float* out) {
  wait_for_kernel_before();
  let_next_kernel_start();
  *out = isfinite(*x) ? 0.0f : 1.0f;
}

CudaKernel prepare_not_finite(const CudaKernelCall& call) {
  return [x = call.in[0].as<const float>(), out = call.out[0].as<float>()](CudaStream stream) {
    launch(not_finite_kernel_cuda, 1, 1, 0, stream, "count_not_finite", x, out);
  };
}

}  // namespace

extern const CudaKernels sum_squares_cuda = {{"sum_squares", prepare_sum_squares}, {"count_not_finite", prepare_not_finite}};

}  // namespace trainctl
