// A block per row of the batch and a thread per state of a step (ctc_lattice.h). alpha of all steps is in scratch
// memory. The shares of equal labels are summed by the thread of the first of them, in order.
#include "engine/ops/ctc/ctc_lattice.h"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/data_check_cuda.cuh"
#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/cuda/sums_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kCtcThreads = 128, kCtcWarp = 32;

/// The scratch memory of a row.
struct CtcMemory {
  double *alpha, *log_sums, *beta, *after, *shares;
  int32_t* next;  ///< for each label the next equal one, or -1; after those, whether it is the first

  __device__ CtcMemory(const CtcCall& c, double* scratch, int64_t row) {
    const int64_t states = c.most_states();
    alpha = scratch + row * (states * (c.steps + 5) + c.steps);
    log_sums = alpha + states * c.steps;
    beta = log_sums + c.steps;
    after = beta + states;
    shares = after + states;
    next = reinterpret_cast<int32_t*>(shares + states);
  }
};

template <class T>
struct CtcBlock {
  CtcCall c;
  const T* x;
  const int32_t* labels;
  CtcMemory memory;
  int64_t steps, count, states;

  __device__ CtcBlock(const CtcCall& call, const T* logits, double* scratch)
      : c(call), memory(call, scratch, blockIdx.x) {
    const int64_t row = blockIdx.x;
    x = logits + row * c.steps * c.classes;
    labels = c.labels + row * c.most;
    steps = c.steps_of(row);
    count = c.labels_of(row);
    states = 2 * count + 1;
    if (steps < 0 || steps > c.steps) data_is_wrong("ctc: an input length is not between 0 and the steps");
    if (count < 0 || count > c.most) data_is_wrong("ctc: a label length is not between 0 and the labels");
    for (int64_t i = threadIdx.x; i < count; i += kCtcThreads)
      if (!c.is_class(labels[i])) data_is_wrong("ctc: a label is not a class");
  }

  __device__ double log_probability(int64_t t, int64_t state) const {
    return static_cast<double>(to_f32(x[t * c.classes + c.class_of(labels, state)])) - memory.log_sums[t];
  }

  /// log(sum of e^logit) of each step: a warp per step.
  __device__ void add_up_steps() const {
    const int lane = static_cast<int>(threadIdx.x) % kCtcWarp;
    for (int64_t t = threadIdx.x / kCtcWarp; t < steps; t += kCtcThreads / kCtcWarp) {
      float top = -INFINITY;
      for (int64_t k = lane; k < c.classes; k += kCtcWarp) top = fmaxf(top, to_f32(x[t * c.classes + k]));
      for (int away = kCtcWarp / 2; away > 0; away /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, away));
      double sum = 0;
      for (int64_t k = lane; k < c.classes; k += kCtcWarp) sum += expf(to_f32(x[t * c.classes + k]) - top);
      sum = sum_of_group(sum, kCtcWarp);
      if (lane == 0) memory.log_sums[t] = static_cast<double>(top) + log(sum);
    }
    __syncthreads();
  }

  /// -log p; all threads get it.
  __device__ double forwards() const {
    add_up_steps();
    for (int64_t t = 0; t < steps; ++t) {
      double* const alpha = memory.alpha + t * states;
      for (int64_t s = threadIdx.x; s < states; s += kCtcThreads) {
        const double before = t > 0 ? c.arriving(labels, alpha - states, s) : s < 2 ? 0.0 : -INFINITY;
        alpha[s] = before + log_probability(t, s);
      }
      __syncthreads();
    }
    if (steps == 0) return count == 0 ? 0.0 : INFINITY;
    const double* last = memory.alpha + (steps - 1) * states;
    return -(count > 0 ? ctc_log_add(last[states - 1], last[states - 2]) : last[0]);
  }

  __device__ void link_equal_labels() const {
    for (int64_t i = threadIdx.x; i < count; i += kCtcThreads) {
      int64_t next = i + 1, before = i - 1;
      while (next < count && labels[next] != labels[i]) ++next;
      while (before >= 0 && labels[before] != labels[i]) --before;
      memory.next[i] = next < count ? static_cast<int32_t>(next) : -1;
      memory.next[c.most + i] = before < 0 ? 1 : 0;
    }
    __syncthreads();
  }

  __device__ void step_back(int64_t t, double loss) const {
    for (int64_t s = threadIdx.x; s < states; s += kCtcThreads) {
      const double beta =
          t == steps - 1 ? (s + 2 >= states ? 0.0 : -INFINITY) : c.leaving(labels, memory.after, s, states);
      memory.beta[s] = beta;
      memory.shares[s] = exp(memory.alpha[t * states + s] + beta + loss);
    }
    __syncthreads();
    for (int64_t s = threadIdx.x; s < states; s += kCtcThreads)
      memory.after[s] = memory.beta[s] + log_probability(t, s);
  }

  /// dx of a step, after step_back(). Warp 0 sums the shares of the blank.
  __device__ void write_step(int64_t t, double slope, T* dx) const {
    const auto gradient = [&](int64_t k, double share) {
      const double p = exp(static_cast<double>(to_f32(x[t * c.classes + k])) - memory.log_sums[t]);
      dx[t * c.classes + k] = from_f32<T>(static_cast<float>(slope * (p - share)));
    };
    for (int64_t k = threadIdx.x; k < c.classes; k += kCtcThreads) gradient(k, 0);
    __syncthreads();
    if (threadIdx.x < kCtcWarp) {
      double sum = 0;
      for (int64_t s = 2 * threadIdx.x; s < states; s += 2 * kCtcWarp) sum += memory.shares[s];
      sum = sum_of_group(sum, kCtcWarp);
      if (threadIdx.x == 0) gradient(c.blank, sum);
    }
    for (int64_t i = threadIdx.x; i < count; i += kCtcThreads) {
      if (memory.next[c.most + i] == 0) continue;
      double sum = 0;
      for (int64_t j = i; j >= 0; j = memory.next[j]) sum += memory.shares[2 * j + 1];
      gradient(labels[i], sum);
    }
    __syncthreads();
  }
};

template <class T>
__global__ void __launch_bounds__(kCtcThreads) ctc_kernel(CtcCall c, const T* logits, double* scratch, float* y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const CtcBlock<T> block(c, logits, scratch);
  const double loss = block.forwards();
  if (threadIdx.x == 0)
    y[blockIdx.x] = isinf(loss) && c.zero_infinity ? 0.0f : static_cast<float>(loss * c.factor(block.count));
}

/// dlogits [batch, steps, classes], one block per row of the batch: alpha forwards in scratch memory, then beta and the
/// gradients backwards step by step.
template <class T>
__global__ void __launch_bounds__(kCtcThreads)
    ctc_grad_kernel(CtcCall c, const T* logits, double* scratch, const float* dy, T* dlogits) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const CtcBlock<T> block(c, logits, scratch);
  const double loss = block.forwards();
  T* const dx = dlogits + static_cast<int64_t>(blockIdx.x) * c.steps * c.classes;
  const bool none = isinf(loss);
  const int64_t from = none ? 0 : block.steps * c.classes;
  for (int64_t i = from + threadIdx.x; i < c.steps * c.classes; i += kCtcThreads)
    dx[i] = from_f32<T>(none && !c.zero_infinity ? NAN : 0.0f);
  if (none) return;
  block.link_equal_labels();
  const double slope = static_cast<double>(dy[blockIdx.x]) * c.factor(block.count);
  for (int64_t t = block.steps - 1; t >= 0; --t) {
    block.step_back(t, loss);
    block.write_step(t, slope, dx);
  }
}

int64_t lattice_bytes(const CtcCall& c) { return 8 * c.rows * (c.most_states() * (c.steps + 5) + c.steps); }

CudaKernel prepare_ctc(const CudaKernelCall& call) {
  const CtcCall c = CtcCall::of(call);
  if (c.rows == 0) return [](CudaStream) {};
  call.scratch->need(lattice_bytes(c));
  return with_float_type(call.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return CudaKernel([=, x = static_cast<const T*>(call.in[0].as<T>()), y = call.out[0].as<float>(),
                       scratch = call.scratch](CudaStream stream) {
      launch(ctc_kernel<T>, static_cast<unsigned>(c.rows), kCtcThreads, 0, stream, "ctc", c, x,
             static_cast<double*>(scratch->memory()), y);
    });
  });
}

CudaKernel prepare_ctc_grad(const CudaKernelCall& call) {
  const CtcCall c = CtcCall::of(call);
  if (c.rows == 0) return [](CudaStream) {};
  call.scratch->need(lattice_bytes(c));
  return with_float_type(call.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return CudaKernel([=, x = static_cast<const T*>(call.in[0].as<T>()),
                       dy = static_cast<const float*>(call.in.back().as<float>()), dx = call.out[0].as<T>(),
                       scratch = call.scratch](CudaStream stream) {
      launch(ctc_grad_kernel<T>, static_cast<unsigned>(c.rows), kCtcThreads, 0, stream, "ctc_grad", c, x,
             static_cast<double*>(scratch->memory()), dy, dx);
    });
  });
}

}  // namespace

extern const CudaKernels ctc_cuda = {{"ctc", prepare_ctc}, {"ctc_grad", prepare_ctc_grad}};

}  // namespace trainctl
