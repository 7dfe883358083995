// loss[1] (+)= scale * sum of f(prediction, label) over all elements and, if asked for, the gradient of each in the
// same pass; the gradient may overwrite the prediction.
#pragma once

#include "engine/ops/cuda/sums_cuda.cuh"

namespace trainctl {

/// F: `float loss(p, l)` of an element, and its scaled slope `float grad(p, l)`.
template <class T, class F, bool kGrad>
struct PairTerm {
  static constexpr int kSums = 1;
  Ref<T> prediction, gradient;
  Ref<Mixed> label;
  bool label_packs;
  F f;
  SumOutput out;

  template <int V>
  __device__ int begin(int64_t) const {
    return 0;
  }
  template <int V>
  struct Fetched {
    Raw<T, V> prediction;
    float label[V];
  };
  template <int V>
  __device__ Fetched<V> fetch(int64_t at, uint32_t) const {
    Fetched<V> fetched;
    fetched.prediction = trainctl::fetch<V>(prediction, at);
    load_side(label, label_packs ? Along::packs : Along::elements, 0, at, fetched.label);
    return fetched;
  }
  template <int V>
  __device__ void terms(int64_t at, const Fetched<V>& fetched, int, float (&v)[1][V]) const {
    float slope[V];
    unpack(fetched.prediction, v[0]);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float p = v[0][j], l = fetched.label[j];
      v[0][j] = f.loss(p, l);
      slope[j] = f.grad(p, l);
    }
    if constexpr (kGrad) store(gradient, at, slope);
  }
  __device__ void finish(int64_t k, const double (&total)[1]) const { out.write(k, total[0]); }
};

template <bool kGrad, class F>
CudaKernel prepare_pair_loss(const CudaKernelCall& call, F f, const char* name) {
  const TensorArg &p = call.in[0], &l = call.in[1], &dp = kGrad ? call.out[1] : p;
  check(p.size() == l.size() && dp.size() == p.size(), "a loss has as many labels as predictions");
  return with_common_type({&p, &dp}, [&](auto t) {
    using T = decltype(t);
    // Labels are f32 for any dtype of the prediction: packs of the label begin where the prediction's do.
    const int64_t head = elements_before_packs({&p, &dp}, kPack<T>);
    const bool label_packs = head >= 0 && packs_are_aligned({&l}, head);
    const PairTerm<T, F, kGrad> term{ref<T>(p),   ref<T>(dp), ref<Mixed>(l),
                                     label_packs, f,          SumOutput::of(call, 0, call.attrs.number("scale", 1.0))};
    return prepare_total<kPack<T>>(call, p.size(), {&p, &dp}, term, name);
  });
}

}  // namespace trainctl
