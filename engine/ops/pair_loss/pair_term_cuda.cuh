// loss[1] (+)= scale * sum of f(prediction, label) over all elements, the gradient of each, or both in one pass; the
// gradient may overwrite the prediction.
#pragma once

#include "engine/ops/cuda/sums_cuda.cuh"

namespace trainctl {

/// F: `float loss(p, l)` of an element, and its scaled slope `float grad(p, l)`.
template <class T, class F>
struct PairTerm {
  static constexpr int kSums = 1, kUnroll = 2;  // the code of some losses is long
  Ref<T> prediction;
  Ref<T> gradient;  ///< null: only the loss is wanted
  Ref<Mixed> label;
  bool label_packs, wants_loss;
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
    float p[V];
    unpack(fetched.prediction, p);
#pragma unroll
    for (int j = 0; j < V; ++j) v[0][j] = 0;
    if (wants_loss) {
#pragma unroll
      for (int j = 0; j < V; ++j) v[0][j] = f.loss(p[j], fetched.label[j]);
    }
    if (gradient.p == nullptr) return;
#pragma unroll
    for (int j = 0; j < V; ++j) p[j] = f.grad(p[j], fetched.label[j]);
    store(gradient, at, p);
  }
  __device__ void finish(int64_t k, const double (&total)[1]) const {
    if (wants_loss) out.write(k, total[0]);
  }
};

/// A kernel for the loss, its gradient, or both; the outputs are in this order.
template <class F>
CudaKernel prepare_pair_loss(const CudaKernelCall& call, F f, bool wants_loss, bool wants_gradient, const char* name) {
  const TensorArg &p = call.in[0], &l = call.in[1], &dp = wants_gradient ? call.out.back() : p;
  check(p.size() == l.size() && dp.size() == p.size(), "a loss has as many labels as predictions");
  const SumOutput loss = wants_loss ? SumOutput::of(call, 0, call.attrs.number("scale", 1.0)) : SumOutput{};
  const auto term_of = [&]<class T>(T) {
    // Labels are f32 for any dtype of the prediction: packs of the label begin where the prediction's do.
    const int64_t head = elements_before_packs({&p, &dp}, kPack<T>);
    const bool label_packs = head >= 0 && packs_are_aligned({&l}, head);
    return PairTerm<T, F>{ref<T>(p), wants_gradient ? ref<T>(dp) : Ref<T>{}, ref<Mixed>(l), label_packs, wants_loss, f,
                          loss};
  };
  // There are many losses, and each reads few numbers: those in f16 are read one at a time.
  return prepare_total<false>(call, p.size(), {&p, &dp}, term_of, name);
}

}  // namespace trainctl
