// Batch normalisation of x [n, c, s], where c is attr dim: s is 1 if channels are last. mean and var are separate
// nodes, so that ranks that share a batch sum them before y = (x - mean) / sqrt(var + eps) * gamma + beta.
//   dbeta = sum dy    dgamma = sum dy * xhat    dx = gamma / sqrt(var + eps) * (dy - (dbeta + xhat * dgamma) / count)
#include <algorithm>
#include <type_traits>

#include "engine/ops/batch_norm/feature_map_cuda.cuh"
#include "engine/ops/cuda/activations_cuda.cuh"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/sums_cuda.cuh"

namespace trainctl {
namespace {

__device__ float inverse_std(float var, float eps) { return rsqrtf(var + eps); }

// Kernels

/// The means that centre a pack of terms: W features' means, or one for all elements.
template <int W>
struct Centre {
  float mean[W];
  __device__ float at(int j) const { return mean[W == 1 ? 0 : j]; }
};
template <int W>
__device__ Centre<W> centre_of(Ref<Mixed> mean, int64_t k) {
  Centre<W> centre;
  for (int j = 0; j < W; ++j) centre.mean[j] = value(mean, k + j);
  return centre;
}

template <class T>
struct VarTerm {
  static constexpr int kSums = 1;
  Ref<T> x;
  Ref<Mixed> mean;
  SumOutput out;

  template <int W>
  __device__ Centre<W> begin(int64_t k) const {
    return centre_of<W>(mean, k);
  }
  template <int V>
  __device__ Raw<T, V> fetch(int64_t at, uint32_t) const {
    return trainctl::fetch<V>(x, at);
  }
  template <int V, int W>
  __device__ void terms(int64_t, const Raw<T, V>& raw, const Centre<W>& centre, float (&v)[1][V]) const {
    unpack(raw, v[0]);
#pragma unroll
    for (int j = 0; j < V; ++j) v[0][j] = (v[0][j] - centre.at(j)) * (v[0][j] - centre.at(j));
  }
  __device__ void finish(int64_t k, const double (&total)[1]) const { out.write(k, total[0]); }
};

/// Mean and variance in one pass: the sums of x - p and of (x - p)^2, p the feature's first element. Where p is d
/// standard deviations from the mean, rounding (x - p)^2 costs up to d^2 units in the last place of the variance,
/// whatever the mean.
template <class T>
struct MomentsTerm {
  static constexpr int kSums = 2;
  Ref<T> x;
  int64_t stride;  ///< from the first element of a feature to that of the next; -1: there are no elements
  double share;
  Ref<Mixed> mean, var;

  __device__ float pivot(int64_t k) const { return stride < 0 ? 0.0f : value(x, k * stride); }
  template <int W>
  __device__ Centre<W> begin(int64_t k) const {
    Centre<W> centre;
    for (int j = 0; j < W; ++j) centre.mean[j] = pivot(k + j);
    return centre;
  }
  template <int V>
  __device__ Raw<T, V> fetch(int64_t at, uint32_t) const {
    return trainctl::fetch<V>(x, at);
  }
  template <int V, int W>
  __device__ void terms(int64_t, const Raw<T, V>& raw, const Centre<W>& centre, float (&v)[2][V]) const {
    unpack(raw, v[0]);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      v[0][j] -= centre.at(j);
      v[1][j] = v[0][j] * v[0][j];
    }
  }
  __device__ void finish(int64_t k, const double (&total)[2]) const {
    const double from_pivot = total[0] * share;
    set(mean, k, static_cast<float>(pivot(k) + from_pivot));
    set(var, k, static_cast<float>(fmax(total[1] * share - from_pivot * from_pivot, 0.0)));
  }
};

/// The centre of W features, or of one; if the gradient is behind a relu, also the scale and shift that give relu's
/// input.
template <int W, bool kBehindRelu>
struct GradCentre : Centre<W> {};
template <int W>
struct GradCentre<W, true> : Centre<W> {
  float scale[W], shift[W];
  __device__ bool passes(int j, float x) const {
    const int w = W == 1 ? 0 : j;
    return (x - this->mean[w]) * scale[w] + shift[w] > 0.0f;
  }
};

template <class T, bool kBehindRelu>
struct GradStatsTerm {
  static constexpr int kSums = 2;
  Ref<T> dy, x;
  Ref<Mixed> mean, var, dbeta, dgamma;
  Ref<Mixed> gamma, beta;  ///< behind a relu, unless not affine
  bool affine;
  float eps;

  template <int W>
  __device__ GradCentre<W, kBehindRelu> begin(int64_t k) const {
    GradCentre<W, kBehindRelu> centre;
    for (int j = 0; j < W; ++j) {
      centre.mean[j] = value(mean, k + j);
      if constexpr (kBehindRelu) {
        const float r = inverse_std(value(var, k + j), eps);
        centre.scale[j] = affine ? r * value(gamma, k + j) : r;
        centre.shift[j] = affine ? value(beta, k + j) : 0.0f;
      }
    }
    return centre;
  }
  template <int V>
  struct Fetched {
    Raw<T, V> dy, x;
  };
  template <int V>
  __device__ Fetched<V> fetch(int64_t at, uint32_t) const {
    return {trainctl::fetch<V>(dy, at), trainctl::fetch<V>(x, at)};
  }
  template <int V, int W>
  __device__ void terms(int64_t, const Fetched<V>& fetched, const GradCentre<W, kBehindRelu>& centre,
                        float (&v)[2][V]) const {
    unpack(fetched.dy, v[0]);
    unpack(fetched.x, v[1]);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if constexpr (kBehindRelu) v[0][j] = centre.passes(j, v[1][j]) ? v[0][j] : 0.0f;
      v[1][j] = v[0][j] * (v[1][j] - centre.at(j));
    }
  }
  __device__ void finish(int64_t k, const double (&total)[2]) const {
    set(dbeta, k, static_cast<float>(total[0]));
    set(dgamma, k, static_cast<float>(total[1]) * inverse_std(value(var, k), eps));
  }
};

/// A feature's inputs: mean, var, gamma, beta. Then the residual is added, if there is one.
struct Normalise {
  float eps;
  bool relu;
  struct Feature {
    float mean, scale, shift;
  };
  __device__ Feature of(std::array<float, 4> s) const { return {s[0], inverse_std(s[1], eps) * s[2], s[3]}; }
  __device__ float activated(float y) const { return relu ? Relu{}(y) : y; }
  __device__ float operator()(const Feature& f, float x) const { return activated((x - f.mean) * f.scale + f.shift); }
  __device__ float operator()(const Feature& f, float x, float residual) const {
    return activated((x - f.mean) * f.scale + f.shift + residual);
  }
};

/// A feature's inputs: mean, var, dbeta, dgamma, gamma, and beta, which only a gradient behind a relu needs.
/// The choice between relu and none is made at compile time: the comparison costs planes of images up to 10 %.
template <bool kBehindRelu>
struct NormaliseGrad {
  float eps, share;
  struct Feature {
    float mean, scale, shift, slope, beta;
  };
  __device__ Feature of(const std::array<float, 6>& s) const {
    const float r = inverse_std(s[1], eps);
    return {s[0], r * s[4], share * s[2], share * s[3] * r, s[5]};
  }
  __device__ float operator()(const Feature& f, float dy, float x) const {
    if constexpr (kBehindRelu) dy = (x - f.mean) * f.scale + f.beta > 0.0f ? dy : 0.0f;
    return f.scale * (dy - f.shift - (x - f.mean) * f.slope);
  }
};

__global__ void running_kernel(int64_t c, Ref<Mixed> mean, Ref<Mixed> var, Ref<Mixed> running_mean,
                               Ref<Mixed> running_var, float momentum, float unbias) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= c) return;
  const float m = value(running_mean, i), v = value(running_var, i);
  set(running_mean, i, m + momentum * (value(mean, i) - m));
  set(running_var, i, v + momentum * (value(var, i) * unbias - v));
}

/// in: [parts, 2, c]
__global__ void merge_kernel(int64_t parts, int64_t c, Ref<Mixed> in, Ref<Mixed> mean, Ref<Mixed> var) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= c) return;
  const double share = 1.0 / static_cast<double>(parts);
  double of_means = 0, of_vars = 0;
  for (int64_t p = 0; p < parts; ++p) of_means += static_cast<double>(value(in, 2 * p * c + i));
  of_means *= share;
  for (int64_t p = 0; p < parts; ++p) {
    const double away = static_cast<double>(value(in, 2 * p * c + i)) - of_means;
    of_vars += static_cast<double>(value(in, (2 * p + 1) * c + i)) + away * away;
  }
  set(mean, i, static_cast<float>(of_means));
  set(var, i, static_cast<float>(share * of_vars));
}

// Launchers

/// in[0] as [dims before, features, dims after], and the strides of a [features] tensor along it.
Shape dims_of(const CudaKernelCall& call) {
  const Shape& x = call.in[0].shape;
  const int64_t dim = call.attrs.integer("dim", 1);
  Shape d{1, x[static_cast<size_t>(dim)], 1};
  for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i)
    if (i != dim) d[i < dim ? 0 : 2] *= x[static_cast<size_t>(i)];
  return d;
}
const Shape kPerFeature{0, 1, 0};

float eps_of(const CudaKernelCall& call) { return static_cast<float>(call.attrs.number("eps", 1e-5)); }
double share_of(const CudaKernelCall& call) { return 1.0 / static_cast<double>(call.attrs.integer("count")); }

CudaKernel prepare_batch_norm_mean(const CudaKernelCall& call) {
  CudaKernelCall flat = call;
  flat.in[0].shape = dims_of(call);
  return prepare_plain_sum(flat, kPerFeature, share_of(call), "batch_norm_mean");
}

CudaKernel prepare_batch_norm_var(const CudaKernelCall& call) {
  const TensorArg& x = call.in[0];
  const auto term_of = [&]<class T>(T) {
    return VarTerm<T>{ref<T>(x), ref<Mixed>(call.in[1]), SumOutput::of(call, 0, share_of(call))};
  };
  return prepare_sums(call, dims_of(call), kPerFeature, {&x}, term_of, "batch_norm_var");
}

CudaKernel prepare_batch_norm_mean_var(const CudaKernelCall& call) {
  const TensorArg& x = call.in[0];
  const Shape dims = dims_of(call);
  const auto term_of = [&]<class T>(T) {
    return MomentsTerm<T>{ref<T>(x), x.size() == 0 ? -1 : dims[2], share_of(call), ref<Mixed>(call.out[0]),
                          ref<Mixed>(call.out[1])};
  };
  return prepare_sums(call, dims, kPerFeature, {&x}, term_of, "batch_norm_mean_var");
}

/// use(true_type or false_type)
template <class Use>
CudaKernel with_flag(bool flag, const Use& use) {
  return flag ? use(std::true_type()) : use(std::false_type());
}

CudaKernel prepare_batch_norm(const CudaKernelCall& call) {
  const Epilogue epilogue = epilogue_of(call.attrs);
  check(epilogue.activation == Activation::none || epilogue.activation == Activation::relu,
        "relu is the only activation that can be fused into batch_norm");
  const Normalise op{eps_of(call), epilogue.activation == Activation::relu};
  const Shape dims = dims_of(call);
  if (!epilogue.residual) return map_features<1, 2>(call, dims, op, "batch_norm");
  CudaKernelCall adds = call;  // the residual is read like x
  std::rotate(adds.in.begin() + 1, adds.in.end() - 1, adds.in.end());
  return map_features<2, 2>(adds, dims, op, "batch_norm");
}

CudaKernel prepare_batch_norm_running(const CudaKernelCall& call) {
  const auto count = static_cast<double>(call.attrs.integer("count"));
  return [c = call.in[0].size(), mean = ref<Mixed>(call.in[0]), var = ref<Mixed>(call.in[1]),
          running_mean = ref<Mixed>(call.in[2]), running_var = ref<Mixed>(call.in[3]),
          momentum = static_cast<float>(call.attrs.number("momentum", 0.1)),
          unbias = static_cast<float>(count / std::max(1.0, count - 1.0))](CudaStream stream) {
    if (c == 0) return;
    launch(running_kernel, static_cast<unsigned>(ceil_div(c, 128)), 128, 0, stream, "batch_norm_running", c, mean, var,
           running_mean, running_var, momentum, unbias);
  };
}

CudaKernel prepare_batch_norm_merge(const CudaKernelCall& call) {
  return [parts = call.in[0].shape[0], c = call.in[0].shape[2], in = ref<Mixed>(call.in[0]),
          mean = ref<Mixed>(call.out[0]), var = ref<Mixed>(call.out[1])](CudaStream stream) {
    if (c == 0) return;
    launch(merge_kernel, static_cast<unsigned>(ceil_div(c, 128)), 128, 0, stream, "batch_norm_merge", parts, c, in,
           mean, var);
  };
}

CudaKernel prepare_batch_norm_grad_stats(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1];
  const bool affine = call.in.size() > 4;
  return with_flag(call.attrs.flag("behind_relu"), [&](auto relu) {
    const auto term_of = [&]<class T>(T) {
      return GradStatsTerm<T, relu>{ref<T>(dy),
                                    ref<T>(x),
                                    ref<Mixed>(call.in[2]),
                                    ref<Mixed>(call.in[3]),
                                    ref<Mixed>(call.out[0]),
                                    ref<Mixed>(call.out[1]),
                                    ref<Mixed>(call.in[affine ? 4 : 2]),
                                    ref<Mixed>(call.in[affine ? 5 : 2]),
                                    affine,
                                    eps_of(call)};
    };
    return prepare_sums(call, dims_of(call), kPerFeature, {&dy, &x}, term_of, "batch_norm_grad_stats");
  });
}

CudaKernel prepare_batch_norm_grad(const CudaKernelCall& call) {
  return with_flag(call.attrs.flag("behind_relu"), [&](auto relu) {
    const NormaliseGrad<relu> op{eps_of(call), static_cast<float>(share_of(call))};
    return map_features<2, 4>(call, dims_of(call), op, "batch_norm_grad");
  });
}

}  // namespace

extern const CudaKernels batch_norm_cuda = {{"batch_norm_mean", prepare_batch_norm_mean, kTakesF16},
                                            {"batch_norm_mean_var", prepare_batch_norm_mean_var, kTakesF16},
                                            {"batch_norm_var", prepare_batch_norm_var, kTakesF16},
                                            {"batch_norm", prepare_batch_norm, kTakesF16},
                                            {"batch_norm_running", prepare_batch_norm_running, kTakesF16},
                                            {"batch_norm_grad_stats", prepare_batch_norm_grad_stats, kTakesF16},
                                            {"batch_norm_grad", prepare_batch_norm_grad, kTakesF16},
                                            {"batch_norm_merge", prepare_batch_norm_merge, kTakesF16}};

}  // namespace trainctl
