// The plain sum of one operand, shared by reduce_sum, sum_to, bias_grad and batch_norm_mean.
#include "engine/ops/cuda/sums_cuda.cuh"

namespace trainctl {
namespace {

template <class T>
struct PlainTerm {
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
  }
  __device__ void finish(int64_t k, const double (&total)[1]) const { out.write(k, total[0]); }
};

}  // namespace

CudaKernel prepare_plain_sum(const CudaKernelCall& call, const Shape& out_strides, double scale, const char* name) {
  const TensorArg& x = call.in[0];
  const auto term_of = [&]<class T>(T) { return PlainTerm<T>{ref<T>(x), SumOutput::of(call, 0, scale)}; };
  return prepare_sums(call, x.shape, out_strides, {&x}, term_of, name);
}

}  // namespace trainctl
