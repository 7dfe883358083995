// Normalises each row (the last dim, n): y = xhat * gamma + beta, xhat = (x - mean) * rstd.
//   g = dy * gamma    dx = rstd * (g - mean(g) - xhat * mean(g * xhat))    dgamma = sum dy * xhat    dbeta = sum dy
#include "engine/ops/cuda_kernels.h"
#include "engine/ops/rows_cuda.cuh"
#include "engine/ops/sums_cuda.cuh"

namespace trainctl {
namespace {

/// gamma or beta, [n]; `otherwise` where there is none.
struct Parameter {
  Ref<Mixed> p;
  Along along = Along::same;

  template <int V>
  __device__ void load(int64_t at, float otherwise, float (&v)[V]) const {
    if (p.p != nullptr) return load_side(p, along, 0, at, v);
    for (int j = 0; j < V; ++j) v[j] = otherwise;
  }
};

// Kernels

template <int V, class T>
__global__ void __launch_bounds__(kMaxRowThreads)
    layer_norm_kernel(Rows rows, Ref<T> x, Parameter gamma, Parameter beta, Ref<T> y, Ref<Mixed> means,
                      Ref<Mixed> rstds, float eps) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  const Stash stash(rows, group, 0, 1);
  const float share = 1.0f / static_cast<float>(rows.n);
  over_rows(group, rows, [&](int64_t row, bool valid) {
    StashedRow<V, T> from(x, row * rows.n, stash);
    float sum = 0;
    read_packs<4>(
        group, rows, [&](int p) { return from.first(p); },
        [&](int p, const Raw<T, V>& raw) {
          float v[V];
          unpack(raw, v);
          from.keep(p, v);
          for (int j = 0; j < V; ++j) sum += v[j];
        });
    const float mean = group.sum(sum) * share;
    float squares = 0;
    over_packs(group, rows, [&](int p) {
      float v[V];
      from.load_again(p, v);
      for (int j = 0; j < V; ++j) squares += (v[j] - mean) * (v[j] - mean);
    });
    const float rstd = 1.0f / sqrtf(group.sum(squares) * share + eps);
    over_packs(group, rows, [&](int p) {
      float v[V], g[V], b[V];
      from.load_again(p, v);
      gamma.load(static_cast<int64_t>(p) * V, 1.0f, g);
      beta.load(static_cast<int64_t>(p) * V, 0.0f, b);
      for (int j = 0; j < V; ++j) v[j] = (v[j] - mean) * rstd * g[j] + b[j];
      if (valid) store(y, row * rows.n + static_cast<int64_t>(p) * V, v);
    });
    if (!valid || group.lane() != 0) return;
    set(means, row, mean);
    set(rstds, row, rstd);
  });
}

template <int V, class T>
__global__ void __launch_bounds__(kMaxRowThreads)
    layer_norm_grad_kernel(Rows rows, Ref<T> dy, Ref<T> x, Ref<Mixed> means, Ref<Mixed> rstds, Parameter gamma,
                           Ref<T> dx) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  Stash stash_g(rows, group, 0, 2), stash_xhat(rows, group, 1, 2);
  const float share = 1.0f / static_cast<float>(rows.n);
  over_rows(group, rows, [&](int64_t row, bool valid) {
    const float mean = value(means, row), rstd = value(rstds, row);
    const auto read = [&](int p) {
      const int64_t at = row * rows.n + static_cast<int64_t>(p) * V;
      return RawPair{fetch<V>(dy, at), fetch<V>(x, at)};
    };
    const auto normalise = [&](int p, const RawPair<Raw<T, V>, Raw<T, V>>& raw, float(&g)[V], float(&xhat)[V]) {
      float scale[V];
      unpack(raw.a, g);
      unpack(raw.b, xhat);
      gamma.load(static_cast<int64_t>(p) * V, 1.0f, scale);
      for (int j = 0; j < V; ++j) {
        g[j] *= scale[j];
        xhat[j] = (xhat[j] - mean) * rstd;
      }
    };
    float sum = 0, product = 0;
    read_packs<2>(group, rows, read, [&](int p, const RawPair<Raw<T, V>, Raw<T, V>>& raw) {
      float g[V], xhat[V];
      normalise(p, raw, g, xhat);
      if (stash_g) {
        stash_g.put(p, g);
        stash_xhat.put(p, xhat);
      }
      for (int j = 0; j < V; ++j) {
        sum += g[j];
        product += g[j] * xhat[j];
      }
    });
    const float a = group.sum(sum) * share, b = group.sum(product) * share;
    over_packs(group, rows, [&](int p) {
      float g[V], xhat[V];
      if (stash_g) {
        stash_g.get(p, g);
        stash_xhat.get(p, xhat);
      } else {
        normalise(p, read(p), g, xhat);
      }
      for (int j = 0; j < V; ++j) g[j] = rstd * (g[j] - a - xhat[j] * b);
      if (valid) store(dx, row * rows.n + static_cast<int64_t>(p) * V, g);
    });
  });
}

/// dgamma and dbeta as sums over the rows.
template <class T>
struct ParameterTerm {
  static constexpr int kSums = 2;
  Ref<T> dy, x;
  Ref<Mixed> means, rstds;
  SumOutput dgamma, dbeta;

  template <int V>
  __device__ int begin(int64_t) const {
    return 0;
  }
  template <int V>
  struct Fetched {
    Raw<T, V> dy, x;
    float mean, rstd;
  };
  template <int V>
  __device__ Fetched<V> fetch(int64_t at, uint32_t row) const {
    return {trainctl::fetch<V>(dy, at), trainctl::fetch<V>(x, at), value(means, row), value(rstds, row)};
  }
  template <int V>
  __device__ void terms(int64_t, const Fetched<V>& f, int, float (&v)[2][V]) const {
    unpack(f.x, v[0]);
    unpack(f.dy, v[1]);
#pragma unroll
    for (int j = 0; j < V; ++j) v[0][j] = v[1][j] * ((v[0][j] - f.mean) * f.rstd);
  }
  __device__ void finish(int64_t k, const double (&total)[2]) const {
    dgamma.write(k, total[0]);
    dbeta.write(k, total[1]);
  }
};

// Launchers

Parameter parameter(const CudaKernelCall& call, size_t input, int pack) {
  if (input >= call.in.size()) return {};
  const TensorArg& arg = call.in[input];
  return {ref<Mixed>(arg), pack > 1 && packs_are_aligned({&arg}) ? Along::packs : Along::elements};
}

int64_t rows_of(const TensorArg& x) { return x.shape.back() == 0 ? 0 : x.size() / x.shape.back(); }

}  // namespace

CudaKernel prepare_layer_norm_cuda(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &y = call.out[0];
  return with_common_type({&x, &y}, [&](auto t) {
    using T = decltype(t);
    return with_row_pack<T>(x.shape.back(), {&x, &y}, [&](auto pack) {
      const RowsLaunch how(rows_of(x), x.shape.back(), pack, 1);
      return launch_rows(layer_norm_kernel<pack, T>, how, "layer_norm", how.rows, ref<T>(x), parameter(call, 1, pack),
                         parameter(call, 2, pack), ref<T>(y), ref<Mixed>(call.out[1]), ref<Mixed>(call.out[2]),
                         static_cast<float>(call.attrs.number("eps", 1e-5)));
    });
  });
}

CudaKernel prepare_layer_norm_grad_cuda(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1], &dx = call.out[0];
  return with_common_type({&dy, &x, &dx}, [&](auto t) {
    using T = decltype(t);
    return with_row_pack<T>(x.shape.back(), {&dy, &x, &dx}, [&](auto pack) {
      const RowsLaunch how(rows_of(x), x.shape.back(), pack, 2);
      return launch_rows(layer_norm_grad_kernel<pack, T>, how, "layer_norm_grad", how.rows, ref<T>(dy), ref<T>(x),
                         ref<Mixed>(call.in[2]), ref<Mixed>(call.in[3]), parameter(call, 4, pack), ref<T>(dx));
    });
  });
}

CudaKernel prepare_layer_norm_param_grad_cuda(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1];
  const int64_t n = x.shape.back();
  return with_common_type({&dy, &x}, [&](auto t) {
    using T = decltype(t);
    const ParameterTerm<T> term{ref<T>(dy),
                                ref<T>(x),
                                ref<Mixed>(call.in[2]),
                                ref<Mixed>(call.in[3]),
                                SumOutput::of(call, 0, 1.0),
                                SumOutput::of(call, 1, 1.0)};
    return prepare_column_sums<kPack<T>>(call, rows_of(x), n, {&dy, &x}, term, "layer_norm_param_grad");
  });
}

}  // namespace trainctl
