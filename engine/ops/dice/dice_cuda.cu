// The sums of a row: `parts` blocks have consecutive pixels each and sum them in double into scratch memory, and a
// second kernel adds the parts in order. The gradient: a thread per element.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/dice/overlap.h"

namespace trainctl {
namespace {

constexpr int kOverlapThreads = 256;
constexpr int64_t kPixelsOfPart = 4096, kMostParts = 64;

__host__ __device__ inline int64_t overlap_parts(int64_t pixels) {
  const int64_t parts = (pixels + kPixelsOfPart - 1) / kPixelsOfPart;
  return parts < 1 ? 1 : parts < kMostParts ? parts : kMostParts;
}

/// Block (part, row) -> sums [rows, parts, classes, 2]. A group of threads has the same class and every depth-th pixel.
template <class T>
__global__ void __launch_bounds__(kOverlapThreads) overlap_parts_kernel(OverlapCall c, const T* p, double* sums) {
  __shared__ double products[kOverlapThreads], totals[kOverlapThreads];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t parts = gridDim.x, part = blockIdx.x, row = blockIdx.y;
  const int64_t begin = row * c.pixels + c.pixels * part / parts, end = row * c.pixels + c.pixels * (part + 1) / parts;
  const int width = static_cast<int>(c.classes < kOverlapThreads ? c.classes : kOverlapThreads);
  const int depth = kOverlapThreads / width, lane = static_cast<int>(threadIdx.x) % width,
            start = static_cast<int>(threadIdx.x) / width;
  for (int64_t first = 0; first < c.classes; first += width) {
    const int64_t k = first + lane;
    double product = 0, total = 0;
    if (k < c.classes && start < depth) {
      for (int64_t pixel = begin + start; pixel < end; pixel += depth) {
        const auto v = static_cast<double>(to_f32(p[pixel * c.classes + k])),
                   g = static_cast<double>(c.label(pixel, k));
        product += v * g;
        total += c.squared ? v * v + g * g : v + g;
      }
    }
    products[threadIdx.x] = product;
    totals[threadIdx.x] = total;
    __syncthreads();
    if (start == 0 && k < c.classes) {
      for (int d = 1; d < depth; ++d) {
        product += products[d * width + lane];
        total += totals[d * width + lane];
      }
      double* const to = sums + ((row * parts + part) * c.classes + k) * 2;
      to[0] = product;
      to[1] = total;
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kOverlapThreads)
    add_parts_kernel(OverlapCall c, int64_t parts, const double* sums, float* both, float* all) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kOverlapThreads + threadIdx.x;
  if (i >= c.rows * c.classes) return;
  const int64_t row = i / c.classes, k = i - row * c.classes;
  double product = 0, total = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const double* const from = sums + ((row * parts + part) * c.classes + k) * 2;
    product += from[0];
    total += from[1];
  }
  both[i] = static_cast<float>(product);
  all[i] = static_cast<float>(total);
}

template <class T>
__global__ void __launch_bounds__(kOverlapThreads)
    overlap_grad_kernel(OverlapCall c, const T* p, const float* d_both, const float* d_all, T* dp, int64_t size) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kOverlapThreads + threadIdx.x;
  if (at >= size) return;
  const int64_t pixel = at / c.classes, k = at - pixel * c.classes, sum = pixel / c.pixels * c.classes + k;
  const float slope = c.squared ? 2.0f * to_f32(p[at]) : 1.0f;
  const float d1 = d_both != nullptr ? d_both[sum] : 0.0f, d2 = d_all != nullptr ? d_all[sum] : 0.0f;
  dp[at] = from_f32<T>(d1 * c.label(pixel, k) + slope * d2);
}

CudaKernel prepare_overlap(const CudaKernelCall& call) {
  const OverlapCall c = OverlapCall::of(call);
  if (c.rows * c.classes == 0) return [](CudaStream) {};
  const int64_t parts = overlap_parts(c.pixels);
  call.scratch->need(16 * c.rows * c.classes * parts);
  return with_float_type(call.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return CudaKernel([=, p = static_cast<const T*>(call.in[0].as<T>()), both = call.out[0].as<float>(),
                       all = call.out[1].as<float>(), scratch = call.scratch](CudaStream stream) {
      auto* const sums = static_cast<double*>(scratch->memory());
      launch(overlap_parts_kernel<T>, dim3(static_cast<unsigned>(parts), static_cast<unsigned>(c.rows)),
             kOverlapThreads, 0, stream, "overlap", c, p, sums);
      launch(add_parts_kernel, static_cast<unsigned>(ceil_div(c.rows * c.classes, kOverlapThreads)), kOverlapThreads, 0,
             stream, "overlap", c, parts, sums, both, all);
    });
  });
}

CudaKernel prepare_overlap_grad(const CudaKernelCall& call) {
  const OverlapCall c = OverlapCall::of(call);
  const int64_t size = call.out[0].size();
  if (size == 0) return [](CudaStream) {};
  return with_float_type(call.out[0].dtype, [&](auto t) {
    using T = decltype(t);
    return CudaKernel([=, p = static_cast<const T*>(call.in[0].as<T>()), d_both = OverlapCall::gradient_of(call, 0),
                       d_all = OverlapCall::gradient_of(call, 1), dp = call.out[0].as<T>()](CudaStream stream) {
      launch(overlap_grad_kernel<T>, static_cast<unsigned>(ceil_div(size, kOverlapThreads)), kOverlapThreads, 0, stream,
             "overlap_grad", c, p, d_both, d_all, dp, size);
    });
  });
}

}  // namespace

extern const CudaKernels dice_cuda = {{"overlap", prepare_overlap}, {"overlap_grad", prepare_overlap_grad}};

}  // namespace trainctl
