// loss[1] (+)= scale * sum of f(prediction - label) over all elements.
#pragma once

#include "engine/ops/sums_cuda.cuh"

namespace trainctl {

template <class T, class F>
struct PairTerm {
  static constexpr int kSums = 1;
  Ref<T> prediction, label;
  F f;
  SumOutput out;

  template <int V>
  __device__ int begin(int64_t) const {
    return 0;
  }
  template <int V>
  __device__ void load(int64_t at, uint32_t, int, float (&v)[1][V]) const {
    float l[V];
    trainctl::load(prediction, at, v[0]);
    trainctl::load(label, at, l);
#pragma unroll
    for (int j = 0; j < V; ++j) v[0][j] = f(v[0][j] - l[j]);
  }
  __device__ void finish(int64_t k, const double (&total)[1]) const { out.write(k, total[0]); }
};

template <class F>
CudaKernel prepare_pair_loss(const CudaKernelCall& call, F f, const char* name) {
  const TensorArg &p = call.in[0], &l = call.in[1];
  check(p.size() == l.size(), "a loss of a pair has as many labels as predictions");
  return with_common_type({&p, &l}, [&](auto t) {
    using T = decltype(t);
    const PairTerm<T, F> term{ref<T>(p), ref<T>(l), f, SumOutput::of(call, 0, call.attrs.number("scale", 1.0))};
    return prepare_sums<kPack<T>>(call, {p.size()}, {0}, {&p, &l}, term, name);
  });
}

}  // namespace trainctl
