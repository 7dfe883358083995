// loss = scale * sum over rows of sum_c t[c] * (log(sum_c e^x[c]) - x[c]).  dx = scale * (softmax(x) * sum_c t[c] - t).
// A group of threads, at most a warp, takes a row; the last block adds the blocks' losses.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/sums_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kSoftThreads = 256;

// Kernels

/// The target that label_smoothing computes from a label: own * label + each.
struct SoftTargets {
  float own = 1, each = 0;
  bool skips = false;  ///< attr nan_is_no_label: rows whose label begins with NaN do not count
};

__device__ inline float largest_of_group(float v, int group) {
  for (int away = group / 2; away > 0; away /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, away));
  return v;
}

/// x [rows, classes], labels [rows, classes] f32. The gradient may overwrite x: a row is read twice before it is
/// written.
template <class T, bool kLoss, bool kGrad>
__global__ void __launch_bounds__(kSoftThreads)
    soft_loss_kernel(Ref<T> x, const float* labels, int64_t rows, int classes, int group, SoftTargets targets,
                     SumOutput loss, Parts parts, Ref<T> dx, float scale, const StepScalars* scalars) {
  wait_for_kernel_before();
  let_next_kernel_start();
  if constexpr (kGrad) scale *= scalars->loss_scale;
  const int lane = static_cast<int>(threadIdx.x) % group, groups = kSoftThreads / group;
  double total = 0;
  // All threads of a warp make the same number of iterations, because they exchange sums.
  for (int64_t first = int64_t{blockIdx.x} * groups; first < rows; first += int64_t{gridDim.x} * groups) {
    const int64_t row = first + threadIdx.x / group, start = row * classes;
    const bool valid = row < rows;
    const bool counts = valid && !(targets.skips && labels[start] != labels[start]);
    const int end = counts ? classes : 0;
    float top = -INFINITY;
    for (int c = lane; c < end; c += group) top = fmaxf(top, value(x, start + c));
    top = largest_of_group(top, group);
    double sum = 0, of_targets = 0, below = 0;
    for (int c = lane; c < end; c += group) {
      const float v = value(x, start + c), target = targets.own * labels[start + c] + targets.each;
      sum += expf(v - top);
      of_targets += target;
      below += double{target} * (double{top} - v);
    }
    sum = sum_of_group(sum, group);
    of_targets = sum_of_group(of_targets, group);
    below = sum_of_group(below, group);
    if (kLoss && counts && lane == 0) total += of_targets * log(sum) + below;
    if constexpr (kGrad) {
      if (!valid) continue;
      const float share = counts ? static_cast<float>(of_targets / sum) : 0.0f;
      for (int c = lane; c < classes; c += group) {
        const float target = targets.own * labels[start + c] + targets.each;
        set(dx, start + c, counts ? scale * (expf(value(x, start + c) - top) * share - target) : 0.0f);
      }
    }
  }
  if constexpr (!kLoss) return;
  total = sum_of_group(total, kSoftThreads);
  if (gridDim.x > 1) {
    if (threadIdx.x == 0) parts.memory[blockIdx.x] = total;
    if (!ends_last(parts.tickets, gridDim.x)) return;
    total = sum_of_parts(parts);
  }
  if (threadIdx.x == 0) loss.write(0, total);
}

// Launchers

/// The cross-entropy of logits with class probabilities as labels: with kLoss its sum, with kGrad the gradient of the
/// logits.
template <bool kLoss, bool kGrad>
CudaKernel prepare_soft_loss(const CudaKernelCall& call, const char* name) {
  const TensorArg &logits = call.in[0], &labels = call.in[1], &dlogits = kGrad ? call.out.back() : logits;
  check(labels.dtype == DType::f32 && labels.size() == logits.size(), "labels must be class probabilities in f32");
  if (logits.size() == 0) {
    if (kLoss && !call.out[0].accumulate) return find_cuda_kernel("zero")->prepare(call);
    return [](CudaStream) {};
  }
  const int64_t classes = logits.shape.back(), rows = logits.size() / classes;
  int group = 1;
  while (group < 32 && group < classes) group *= 2;
  const double smoothing = call.attrs.number("label_smoothing", 0);
  const SoftTargets targets{static_cast<float>(1 - smoothing),
                            static_cast<float>(smoothing / static_cast<double>(classes)),
                            call.attrs.flag("nan_is_no_label")};
  return with_common_type({&logits, &dlogits}, [&](auto t) {
    using T = decltype(t);
    const auto kernel = soft_loss_kernel<T, kLoss, kGrad>;
    const double scale = call.attrs.number("scale", 1.0);
    const SumOutput loss = kLoss ? SumOutput::of(call, 0, scale) : SumOutput{};
    const int64_t at_once = blocks_at_once(kernel, kSoftThreads, 0, name);
    const int64_t wanted = std::min<int64_t>(at_once, ceil_div(rows * group, kSoftThreads));
    const Split split(call, kLoss ? wanted : 1, 1, 1);
    const auto blocks = static_cast<unsigned>(kLoss ? split.splits : wanted);
    return CudaKernel([=, x = ref<T>(logits), shares = labels.as<float>(), dx = ref<T>(dlogits),
                       scalars = call.scalars](CudaStream stream) {
      launch(kernel, blocks, kSoftThreads, 0, stream, name, x, shares, rows, static_cast<int>(classes), group, targets,
             loss, split.parts(1), dx, static_cast<float>(scale), scalars);
    });
  });
}

CudaKernel prepare_soft_cross_entropy(const CudaKernelCall& call) {
  return prepare_soft_loss<true, false>(call, "soft_cross_entropy");
}
CudaKernel prepare_soft_cross_entropy_grad(const CudaKernelCall& call) {
  return prepare_soft_loss<false, true>(call, "soft_cross_entropy_grad");
}
CudaKernel prepare_soft_cross_entropy_with_grad(const CudaKernelCall& call) {
  return prepare_soft_loss<true, true>(call, "soft_cross_entropy_with_grad");
}

}  // namespace

extern const CudaKernels soft_cross_entropy_cuda = {
    {"soft_cross_entropy", prepare_soft_cross_entropy, kTakesF16},
    {"soft_cross_entropy_grad", prepare_soft_cross_entropy_grad, kTakesF16},
    {"soft_cross_entropy_with_grad", prepare_soft_cross_entropy_with_grad, kTakesF16}};

}  // namespace trainctl
