// The loss of distillation and its gradient (distillation_cpu.cpp has the formulas). A block takes a row and writes its
// loss to scratch; a second kernel adds them in a fixed order.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/data_check_cuda.cuh"
#include "engine/ops/cuda/sums_cuda.cuh"
#include "engine/ops/softmax_cross_entropy/targets.h"

namespace trainctl {
namespace {

constexpr int kDistillThreads = 256;

/// logits and dx [rows, classes], labels [rows], teacher and ids [rows, k].
struct DistilledRows {
  const int32_t* labels;
  const float* teacher;
  const int32_t* ids;  ///< null: k == classes
  int64_t rows;
  int classes, k;
  Targets targets;
  const StepScalars* scalars;
  double scale, temperature, alpha;
};

// Kernels

__device__ inline float most_of_block(float v) {
  __shared__ float of_warp[32];
  for (int away = 16; away > 0; away /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, away));
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x % 32 < kDistillThreads / 32 ? of_warp[threadIdx.x % 32] : -INFINITY;
  for (int away = 16; away > 0; away /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, away));
  return v;
}

/// One row of logits and of the teacher's.
template <class T>
struct DistilledRow {
  const T* x;
  const float* t;      ///< [k]
  const int32_t* ids;  ///< the classes of t; null: all, in order
  int32_t label;
  float warm;  ///< 1 / temperature
  float top = -INFINITY, teacher_top = -INFINITY;
  double sum = 0, warm_sum = 0, teacher_sum = 0;  ///< sums of exponentials relative to the tops
};

template <class T>
__device__ __forceinline__ void sum_exponentials(const DistilledRows& of, DistilledRow<T>& row) {
  for (int c = static_cast<int>(threadIdx.x); c < of.classes; c += kDistillThreads)
    row.top = fmaxf(row.top, to_f32(row.x[c]));
  for (int j = static_cast<int>(threadIdx.x); j < of.k; j += kDistillThreads)
    row.teacher_top = fmaxf(row.teacher_top, row.t[j]);
  row.top = most_of_block(row.top);
  row.teacher_top = most_of_block(row.teacher_top);
  for (int c = static_cast<int>(threadIdx.x); c < of.classes; c += kDistillThreads) {
    const float off = to_f32(row.x[c]) - row.top;
    row.sum += expf(off);
    row.warm_sum += expf(off * row.warm);
  }
  for (int j = static_cast<int>(threadIdx.x); j < of.k; j += kDistillThreads)
    row.teacher_sum += expf((row.t[j] - row.teacher_top) * row.warm);
  row.sum = sum_of_group(row.sum, kDistillThreads);
  row.warm_sum = sum_of_group(row.warm_sum, kDistillThreads);
  row.teacher_sum = sum_of_group(row.teacher_sum, kDistillThreads);
}

template <class T>
__device__ __forceinline__ void write_loss(const DistilledRows& of, const DistilledRow<T>& row, float correct,
                                           double* loss) {
  double divergence = 0;
  for (int j = static_cast<int>(threadIdx.x); j < of.k; j += kDistillThreads) {
    const int c = row.ids == nullptr ? j : row.ids[j];
    if (c < 0 || c >= of.classes) data_is_wrong("distillation: the data contains teacher_ids that are out of range");
    const double share = expf((row.t[j] - row.teacher_top) * row.warm) / row.teacher_sum;
    if (share > 0)
      divergence +=
          share * (((double{row.t[j]} - row.teacher_top) - (double{to_f32(row.x[c])} - row.top)) / of.temperature -
                   log(row.teacher_sum) + log(row.warm_sum));
  }
  divergence = sum_of_group(divergence, kDistillThreads);
  if (threadIdx.x == 0)
    *loss = (1 - of.alpha) * (log(row.sum) + (double{row.top} - correct)) +
            of.alpha * of.temperature * of.temperature * divergence;
}

template <class T>
__device__ __forceinline__ void write_gradient(const DistilledRows& of, const DistilledRow<T>& row, T* out) {
  const double scale = of.scale * of.targets.weight(of.scalars) * of.scalars->loss_scale;
  const auto of_label = static_cast<float>(scale * (1 - of.alpha));
  const auto of_teacher = static_cast<float>(scale * of.alpha * of.temperature);
  const auto cool = static_cast<float>(of_label / row.sum), warmed = static_cast<float>(of_teacher / row.warm_sum);
  const auto teacher_share = static_cast<float>(of_teacher / row.teacher_sum);
  for (int c = static_cast<int>(threadIdx.x); c < of.classes; c += kDistillThreads) {
    const float off = to_f32(row.x[c]) - row.top;
    float slope = cool * expf(off) + warmed * expf(off * row.warm) - (c == row.label ? of_label : 0.0f);
    if (row.ids == nullptr) {
      slope -= teacher_share * expf((row.t[c] - row.teacher_top) * row.warm);
    } else {
      for (int j = 0; j < of.k; ++j)
        if (row.ids[j] == c) slope -= teacher_share * expf((row.t[j] - row.teacher_top) * row.warm);
    }
    out[c] = from_f32<T>(slope);
  }
}

/// losses [rows]: null if not wanted. dx: null if not wanted.
template <class T>
__global__ void __launch_bounds__(kDistillThreads)
    distill_kernel(DistilledRows of, const T* logits, double* losses, T* dx) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t r = blockIdx.x;
  const int32_t label = of.labels[r];
  T* const out = dx == nullptr ? nullptr : dx + r * of.classes;
  if (!of.targets.counts(label)) {  // the same for all threads
    if (out != nullptr)
      for (int c = static_cast<int>(threadIdx.x); c < of.classes; c += kDistillThreads) out[c] = from_f32<T>(0.0f);
    if (losses != nullptr && threadIdx.x == 0) losses[r] = 0;
    return;
  }
  if (label < 0 || label >= of.classes) data_is_wrong("distillation: the data contains a label that is out of range");
  DistilledRow<T> row{logits + r * of.classes, of.teacher + r * of.k, of.ids == nullptr ? nullptr : of.ids + r * of.k,
                      label, static_cast<float>(1 / of.temperature)};
  sum_exponentials(of, row);
  const float correct = to_f32(row.x[label]);
  if (losses != nullptr) write_loss(of, row, correct, losses + r);
  if (out == nullptr) return;
  __syncthreads();  // the gradient may overwrite the logits
  write_gradient(of, row, out);
}

__global__ void __launch_bounds__(kDistillThreads)
    add_losses_kernel(DistilledRows of, const double* losses, bool adds, float* loss) {
  wait_for_kernel_before();
  let_next_kernel_start();
  double sum = 0;
  for (int64_t r = threadIdx.x; r < of.rows; r += kDistillThreads) sum += losses[r];
  sum = sum_of_group(sum, kDistillThreads);
  if (threadIdx.x == 0)
    *loss = static_cast<float>((adds ? double{*loss} : 0.0) + of.scale * of.targets.weight(of.scalars) * sum);
}

// Launchers

/// The losses of rows, whose sum goes to `loss`, and their gradients, which go to `dx`; each may be null.
CudaKernel prepare_distilled(const CudaKernelCall& call, const char* name, const TensorArg* loss, const TensorArg* dx) {
  const DistilledRows of{call.in[1].as<int32_t>(),
                         call.in[2].as<float>(),
                         call.in.size() > 3 ? call.in[3].as<int32_t>() : nullptr,
                         call.in[1].size(),
                         static_cast<int>(call.in[0].shape.back()),
                         static_cast<int>(call.in[2].shape.back()),
                         Targets::of(call.attrs),
                         call.scalars,
                         call.attrs.number("scale", 1.0),
                         call.attrs.number("temperature", 1.0),
                         call.attrs.number("alpha", 1.0)};
  CudaScratch* const scratch = call.scratch;
  float* const to = loss == nullptr ? nullptr : loss->as<float>();
  const bool adds = loss != nullptr && loss->accumulate;
  if (loss != nullptr) scratch->need(of.rows * static_cast<int64_t>(sizeof(double)));
  return with_float_type(call.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return CudaKernel([=, x = static_cast<const T*>(call.in[0].as<T>()),
                       out = dx == nullptr ? nullptr : dx->as<T>()](CudaStream stream) {
      double* const losses = to == nullptr ? nullptr : static_cast<double*>(scratch->memory());
      if (of.rows > 0)
        launch(distill_kernel<T>, static_cast<unsigned>(of.rows), kDistillThreads, 0, stream, name, of, x, losses, out);
      if (to != nullptr) launch(add_losses_kernel, 1, kDistillThreads, 0, stream, name, of, losses, adds, to);
    });
  });
}

CudaKernel prepare_distillation(const CudaKernelCall& call) {
  return prepare_distilled(call, "distillation", &call.out[0], nullptr);
}
CudaKernel prepare_distillation_grad(const CudaKernelCall& call) {
  return prepare_distilled(call, "distillation_grad", nullptr, &call.out[0]);
}
CudaKernel prepare_distillation_with_grad(const CudaKernelCall& call) {
  return prepare_distilled(call, "distillation_with_grad", &call.out[0], &call.out[1]);
}

}  // namespace

extern const CudaKernels distillation_cuda = {{"distillation", prepare_distillation},
                                              {"distillation_grad", prepare_distillation_grad},
                                              {"distillation_with_grad", prepare_distillation_with_grad}};

}  // namespace trainctl
