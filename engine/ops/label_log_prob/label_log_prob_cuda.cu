// y = x[label] - log sum_c e^x[c].  dx = dy * ((c == label) - softmax(x)). A group of threads, at most a warp, takes a
// row.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/sums_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kLabelThreads = 256;

// Kernels

__device__ inline float most_in_group(float v, int group) {
  for (int away = group / 2; away > 0; away /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, away));
  return v;
}

/// x, dx [rows, classes], labels [rows] i32, y and dy [rows] f32.
template <class T, bool kGrad>
__global__ void __launch_bounds__(kLabelThreads)
    label_log_prob_kernel(Ref<T> x, const int32_t* labels, const float* dy, int64_t rows, int classes, int group,
                          float* y, Ref<T> dx) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int lane = static_cast<int>(threadIdx.x) % group, groups = kLabelThreads / group;
  // All threads of a warp make the same number of turns: they exchange sums.
  for (int64_t first = int64_t{blockIdx.x} * groups; first < rows; first += int64_t{gridDim.x} * groups) {
    const int64_t row = first + threadIdx.x / group, start = row * classes;
    const bool valid = row < rows;
    const int label = valid ? labels[row] : -1;
    const int end = label >= 0 ? classes : 0;
    float top = -INFINITY;
    for (int c = lane; c < end; c += group) top = fmaxf(top, value(x, start + c));
    top = most_in_group(top, group);
    double sum = 0;
    for (int c = lane; c < end; c += group) sum += expf(value(x, start + c) - top);
    sum = sum_of_group(sum, group);
    if constexpr (kGrad) {
      if (!valid) continue;
      const float slope = label >= 0 ? dy[row] : 0.0f, share = label >= 0 ? static_cast<float>(1 / sum) : 0.0f;
      for (int c = lane; c < classes; c += group)
        set(dx, start + c,
            label >= 0 ? slope * ((c == label ? 1.0f : 0.0f) - expf(value(x, start + c) - top) * share) : 0.0f);
    } else if (valid && lane == 0) {
      y[row] = label >= 0 ? static_cast<float>(double{value(x, start + label)} - top - log(sum)) : 0.0f;
    }
  }
}

// Launchers

/// log softmax(logits)[label] of each row, or with kGrad the gradient of the logits.
template <bool kGrad>
CudaKernel prepare_label_kernel(const CudaKernelCall& call, const char* name) {
  const TensorArg &logits = call.in[0], &labels = call.in[1], &out = call.out[0];
  const int64_t rows = labels.size(), classes = logits.shape.back();
  if (logits.size() == 0) return [](CudaStream) {};
  int group = 1;
  while (group < 32 && group < classes) group *= 2;
  return with_common_type({&logits, kGrad ? &out : &logits}, [&](auto t) {
    using T = decltype(t);
    const auto kernel = label_log_prob_kernel<T, kGrad>;
    const int64_t wanted =
        std::min<int64_t>(blocks_at_once(kernel, kLabelThreads, 0, name), ceil_div(rows * group, kLabelThreads));
    const float* dy = kGrad ? call.in[2].as<float>() : nullptr;
    float* y = kGrad ? nullptr : out.as<float>();
    const Ref<T> dx = ref<T>(kGrad ? out : logits);
    return CudaKernel([=, x = ref<T>(logits), ids = labels.as<int32_t>()](CudaStream stream) {
      launch(kernel, static_cast<unsigned>(wanted), kLabelThreads, 0, stream, name, x, ids, dy, rows,
             static_cast<int>(classes), group, y, dx);
    });
  });
}

CudaKernel prepare_label_log_prob(const CudaKernelCall& call) {
  return prepare_label_kernel<false>(call, "label_log_prob");
}
CudaKernel prepare_label_log_prob_grad(const CudaKernelCall& call) {
  return prepare_label_kernel<true>(call, "label_log_prob_grad");
}

}  // namespace

extern const CudaKernels label_log_prob_cuda = {{"label_log_prob", prepare_label_log_prob, kTakesF16},
                                                {"label_log_prob_grad", prepare_label_log_prob_grad, kTakesF16}};

}  // namespace trainctl
