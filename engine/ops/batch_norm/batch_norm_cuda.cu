// Batch normalisation of x [n, c, s], where c is attr dim: s is 1 if channels are last. mean and var are separate
// nodes, so that ranks that share a batch sum them before y = (x - mean) / sqrt(var + eps) * gamma + beta.
//   dbeta = sum dy    dgamma = sum dy * xhat    dx = gamma / sqrt(var + eps) * (dy - (dbeta + xhat * dgamma) / count)
#include "engine/ops/batch_norm/feature_map_cuda.cuh"
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

template <class T>
struct GradStatsTerm {
  static constexpr int kSums = 2;
  Ref<T> dy, x;
  Ref<Mixed> mean, var, dbeta, dgamma;
  float eps;

  template <int W>
  __device__ Centre<W> begin(int64_t k) const {
    return centre_of<W>(mean, k);
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
  __device__ void terms(int64_t, const Fetched<V>& fetched, const Centre<W>& centre, float (&v)[2][V]) const {
    unpack(fetched.dy, v[0]);
    unpack(fetched.x, v[1]);
#pragma unroll
    for (int j = 0; j < V; ++j) v[1][j] = v[0][j] * (v[1][j] - centre.at(j));
  }
  __device__ void finish(int64_t k, const double (&total)[2]) const {
    set(dbeta, k, static_cast<float>(total[0]));
    set(dgamma, k, static_cast<float>(total[1]) * inverse_std(value(var, k), eps));
  }
};

/// A feature's inputs: mean, var, (gamma, beta).
struct Normalise {
  float eps;
  struct Feature {
    float mean, scale, shift;
  };
  __device__ Feature of(std::array<float, 2> s) const { return {s[0], inverse_std(s[1], eps), 0.0f}; }
  __device__ Feature of(std::array<float, 4> s) const { return {s[0], inverse_std(s[1], eps) * s[2], s[3]}; }
  __device__ float operator()(const Feature& f, float x) const { return (x - f.mean) * f.scale + f.shift; }
};

/// A feature's inputs: mean, var, dbeta, dgamma, (gamma).
struct NormaliseGrad {
  float eps, share;
  struct Feature {
    float mean, scale, shift, slope;
  };
  __device__ Feature of(std::array<float, 4> s) const { return of(std::array<float, 5>{s[0], s[1], s[2], s[3], 1.0f}); }
  __device__ Feature of(std::array<float, 5> s) const {
    const float r = inverse_std(s[1], eps);
    return {s[0], r * s[4], share * s[2], share * s[3] * r};
  }
  __device__ float operator()(const Feature& f, float dy, float x) const {
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
  return with_float_type(x.dtype, [&](auto t) {
    using T = decltype(t);
    const VarTerm<T> term{ref<T>(x), ref<Mixed>(call.in[1]), SumOutput::of(call, 0, share_of(call))};
    return prepare_sums<kPack<T>>(call, dims_of(call), kPerFeature, {&x}, term, "batch_norm_var");
  });
}

CudaKernel prepare_batch_norm(const CudaKernelCall& call) {
  const Normalise op{eps_of(call)};
  if (call.in.size() > 3) return map_features<1, 2, 2>(call, dims_of(call), op, "batch_norm");
  return map_features<1, 2, 0>(call, dims_of(call), op, "batch_norm");
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

CudaKernel prepare_batch_norm_grad_stats(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1];
  return with_common_type({&dy, &x}, [&](auto t) {
    using T = decltype(t);
    const GradStatsTerm<T> term{ref<T>(dy),
                                ref<T>(x),
                                ref<Mixed>(call.in[2]),
                                ref<Mixed>(call.in[3]),
                                ref<Mixed>(call.out[0]),
                                ref<Mixed>(call.out[1]),
                                eps_of(call)};
    return prepare_sums<kPack<T>>(call, dims_of(call), kPerFeature, {&dy, &x}, term, "batch_norm_grad_stats");
  });
}

CudaKernel prepare_batch_norm_grad(const CudaKernelCall& call) {
  const NormaliseGrad op{eps_of(call), static_cast<float>(share_of(call))};
  if (call.in.size() > 6) return map_features<2, 4, 1>(call, dims_of(call), op, "batch_norm_grad");
  return map_features<2, 4, 0>(call, dims_of(call), op, "batch_norm_grad");
}

}  // namespace

extern const CudaKernels batch_norm_cuda = {{"batch_norm_mean", prepare_batch_norm_mean},
                                            {"batch_norm_var", prepare_batch_norm_var},
                                            {"batch_norm", prepare_batch_norm},
                                            {"batch_norm_running", prepare_batch_norm_running},
                                            {"batch_norm_grad_stats", prepare_batch_norm_grad_stats},
                                            {"batch_norm_grad", prepare_batch_norm_grad}};

}  // namespace trainctl
