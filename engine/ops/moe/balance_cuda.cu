// Counts and balances the loads of the experts on GPUs; see balance.cpp. A warp computes a row of logits.
#include <algorithm>

#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/moe/expert_load.h"

namespace trainctl {
namespace {

constexpr int kBalanceWarps = 4, kBalanceLanes = 32, kLoadThreads = 256, kLoadWarps = kLoadThreads / 32;

__device__ inline float sum_of_lanes(float v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
  return v;
}

/// The sum over a block, in thread 0.
__device__ inline float sum_of_block(float v) {
  __shared__ float sums[kLoadWarps];
  v = sum_of_lanes(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
  __syncthreads();
  float total = 0;
  if (threadIdx.x == 0)
    for (int w = 0; w < kLoadWarps; ++w) total += sums[w];
  return total;
}

/// Sums over a row of logits: the logarithm of the sum of e^logit, and the sum of the scores.
struct RouterRowOnGpu {
  float log_sum, total;
  bool sigmoid;

  __device__ float score(float logit) const { return 1.0f / (1.0f + expf(-logit)); }
  __device__ float p(float logit) const { return sigmoid ? score(logit) / total : expf(logit - log_sum); }
};

__device__ RouterRowOnGpu router_row(bool sigmoid, Ref<Mixed> logits, int64_t first, int n) {
  const int lane = static_cast<int>(threadIdx.x);
  float top = -INFINITY, sum = 0, total = 0;
  for (int e = lane; e < n; e += kBalanceLanes) top = fmaxf(top, value(logits, first + e));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
  for (int e = lane; e < n; e += kBalanceLanes) {
    const float logit = value(logits, first + e);
    sum += expf(logit - top);
    if (sigmoid) total += 1.0f / (1.0f + expf(-logit));
  }
  return {top + logf(sum_of_lanes(sum)), sum_of_lanes(total), sigmoid};
}

/// rows_of [rows, 3]: log_sum, total and entropy of each row.
__global__ void __launch_bounds__(kBalanceWarps* kBalanceLanes)
    router_rows_kernel(bool sigmoid, Ref<Mixed> logits, int n, int64_t rows, float* rows_of) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kBalanceWarps + threadIdx.y;
  if (row >= rows) return;
  const RouterRowOnGpu of_row = router_row(sigmoid, logits, row * n, n);
  float entropy = 0;
  for (int e = static_cast<int>(threadIdx.x); e < n; e += kBalanceLanes) {
    const float p = of_row.p(value(logits, row * n + e));
    if (p > 0) entropy -= p * logf(p);
  }
  entropy = sum_of_lanes(entropy);
  if (threadIdx.x != 0) return;
  rows_of[3 * row] = of_row.log_sum;
  rows_of[3 * row + 1] = of_row.total;
  rows_of[3 * row + 2] = entropy;
}

/// Block e < n adds up the pairs and probabilities of expert e, block n the rest.
__global__ void __launch_bounds__(kLoadThreads)
    expert_load_kernel(LoadPlaces at, bool sigmoid, Ref<Mixed> logits, const int32_t* ids, const int32_t* kept,
                       const float* rows_of, int64_t rows, int top_k, float* load) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t pairs = rows * top_k, own = blockIdx.x;
  float first = 0, second = 0, third = 0;
  if (own < at.experts) {
    for (int64_t i = threadIdx.x; i < pairs; i += kLoadThreads) first += ids[i] == own ? 1.0f : 0.0f;
    for (int64_t r = threadIdx.x; r < rows; r += kLoadThreads)
      second += RouterRowOnGpu{rows_of[3 * r], rows_of[3 * r + 1], sigmoid}.p(value(logits, r * at.experts + own));
  } else {
    for (int64_t r = threadIdx.x; r < rows; r += kLoadThreads) {
      first += rows_of[3 * r + 2];
      second += rows_of[3 * r] * rows_of[3 * r];
    }
    if (kept != nullptr)
      for (int64_t i = threadIdx.x; i < pairs; i += kLoadThreads) third += kept[i] < 0 ? 1.0f : 0.0f;
  }
  first = sum_of_block(first);
  second = sum_of_block(second);
  third = sum_of_block(third);
  if (threadIdx.x != 0) return;
  load[own < at.experts ? own : at.entropy()] = first;
  load[own < at.experts ? at.probability(own) : at.square()] = second;
  if (own == at.experts) load[at.dropped()] = third;
}

/// A block counts the pairs of one expert in one sequence.
__global__ void __launch_bounds__(kLoadThreads) sequence_load_kernel(const int32_t* ids, int64_t pairs, float* load) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int32_t* const of_sequence = ids + blockIdx.y * pairs;
  float count = 0;
  for (int64_t i = threadIdx.x; i < pairs; i += kLoadThreads)
    count += of_sequence[i] == static_cast<int32_t>(blockIdx.x) ? 1.0f : 0.0f;
  count = sum_of_block(count);
  if (threadIdx.x == 0) load[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = count;
}

__global__ void __launch_bounds__(kLoadThreads)
    count_load_kernel(const float* load, float* state, int64_t n, bool is_first) {
  wait_for_kernel_before();
  let_next_kernel_start();
  for (int64_t i = threadIdx.x; i < n; i += kLoadThreads) state[i] = is_first ? load[i] : state[i] + load[i];
}

/// One block.
__global__ void __launch_bounds__(kLoadThreads)
    balance_bias_kernel(float* bias, const float* load, float* now, int n, float speed, bool updates) {
  __shared__ float pairs;
  wait_for_kernel_before();
  let_next_kernel_start();
  float sum = 0;
  for (int e = static_cast<int>(threadIdx.x); e < n; e += kLoadThreads) sum += load[e];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) pairs = sum;
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < n; e += kLoadThreads) {
    const double missing = static_cast<double>(pairs) - static_cast<double>(load[e]) * n;
    if (updates && missing != 0) bias[e] += missing > 0 ? speed : -speed;
    now[e] = bias[e];
  }
}

__global__ void __launch_bounds__(kLoadThreads) balance_kernel(Ref<Mixed> weights, Ref<Mixed> to, int64_t n) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kLoadThreads + threadIdx.x;
  if (i < n) set(to, i, value(weights, i));
}

/// dlogits [rows, experts] of the balance loss and the z-loss: one warp per row. `load`: how often each expert was
/// chosen, [experts] or [sequences, experts]; null: only the z-loss.
__global__ void __launch_bounds__(kBalanceWarps* kBalanceLanes)
    balance_grad_kernel(BalanceTerm term, const StepScalars* scalars, Ref<Mixed> logits, const float* load,
                        Ref<Mixed> dlogits, int64_t rows, int64_t of_sequence) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const float scale = scalars->loss_scale;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kBalanceWarps + threadIdx.y;
  if (row >= rows) return;
  const int n = static_cast<int>(term.experts), lane = static_cast<int>(threadIdx.x);
  const RouterRowOnGpu of_row = router_row(term.sigmoid, logits, row * n, n);
  const float* const own = load == nullptr || !term.by_sequence ? load : load + row / of_sequence * n;
  const auto tokens = static_cast<float>(term.rows);
  const float pair = term.per_pair();
  float mean = 0;
  if (own != nullptr)
    for (int e = lane; e < n; e += kBalanceLanes) mean += pair * own[e] * of_row.p(value(logits, row * n + e));
  mean = sum_of_lanes(mean);
  const float square = scale * 2 * term.z_loss / tokens * of_row.log_sum;
  for (int e = lane; e < n; e += kBalanceLanes) {
    const float logit = value(logits, row * n + e);
    float d = own == nullptr ? 0.0f : scale * term.coefficient / tokens * of_row.p(logit) * (pair * own[e] - mean);
    if (term.sigmoid) d *= 1 - of_row.score(logit);
    set(dlogits, row * n + e, d + square * expf(logit - of_row.log_sum));
  }
}

/// A block computes one sequence: for each expert its pairs are counted from the front.
__global__ void __launch_bounds__(kLoadThreads)
    drop_pairs_kernel(const int32_t* ids, int32_t* kept, int64_t pairs, int experts, int64_t most) {
  extern __shared__ int drop_counts[];
  __shared__ int chosen[kLoadThreads];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t begin = blockIdx.x * pairs;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kLoadThreads) drop_counts[e] = 0;
  for (int64_t first = 0; first < pairs; first += kLoadThreads) {
    const int64_t i = first + threadIdx.x;
    const int id = i < pairs ? ids[begin + i] : -1;
    __syncthreads();
    chosen[threadIdx.x] = id;
    __syncthreads();
    int before = 0, all = 0;
    for (int t = 0; t < kLoadThreads; ++t) {
      const bool same = chosen[t] == id;
      before += same && t < static_cast<int>(threadIdx.x);
      all += same;
    }
    const int counted = id < 0 ? 0 : drop_counts[id];
    __syncthreads();
    if (id >= 0 && before + 1 == all) drop_counts[id] = counted + all;
    if (i < pairs) kept[begin + i] = counted + before < most ? id : -1;
  }
}

unsigned rows_of_warps(int64_t rows) { return static_cast<unsigned>(ceil_div(rows, kBalanceWarps)); }

}  // namespace

CudaKernel prepare_expert_load(const CudaKernelCall& call) {
  const int64_t n = call.in[0].shape.back(), rows = call.in[0].size() / n;
  const bool sigmoid = call.attrs.text("score", "softmax") == "sigmoid";
  call.scratch->need(3 * 4 * rows);
  return [=, k = static_cast<int>(call.in[1].shape.back()), logits = ref<Mixed>(call.in[0]),
          ids = static_cast<const int32_t*>(call.in[1].as<int32_t>()),
          kept = static_cast<const int32_t*>(call.in.size() > 2 ? call.in[2].as<int32_t>() : nullptr),
          load = call.out[0].as<float>(), scratch = call.scratch](CudaStream stream) {
    auto* const rows_of = static_cast<float*>(scratch->memory());
    if (rows > 0)
      launch(router_rows_kernel, rows_of_warps(rows), dim3(kBalanceLanes, kBalanceWarps), 0, stream, "expert_load",
             sigmoid, logits, static_cast<int>(n), rows, rows_of);
    launch(expert_load_kernel, static_cast<unsigned>(n + 1), kLoadThreads, 0, stream, "expert_load", LoadPlaces{n},
           sigmoid, logits, ids, kept, static_cast<const float*>(rows_of), rows, k, load);
  };
}

CudaKernel prepare_sequence_load(const CudaKernelCall& call) {
  const int64_t n = call.attrs.integer("experts"), sequences = call.in[0].shape[0];
  if (sequences == 0) return [](CudaStream) {};
  check(sequences <= 65535, "a GPU counts the load of at most 65,535 sequences at once");
  return [=, pairs = call.in[0].size() / sequences, ids = static_cast<const int32_t*>(call.in[0].as<int32_t>()),
          load = call.out[0].as<float>()](CudaStream stream) {
    launch(sequence_load_kernel, dim3(static_cast<unsigned>(n), static_cast<unsigned>(sequences)), kLoadThreads, 0,
           stream, "sequence_load", ids, pairs, load);
  };
}

CudaKernel prepare_count_load(const CudaKernelCall& call) {
  return [load = static_cast<const float*>(call.in[0].as<float>()), state = call.in[1].as<float>(),
          n = call.in[0].size(), is_first = call.micro_batch == 0](CudaStream stream) {
    launch(count_load_kernel, 1, kLoadThreads, 0, stream, "count_load", load, state, n, is_first);
  };
}

CudaKernel prepare_balance_bias(const CudaKernelCall& call) {
  return [bias = call.in[0].as<float>(), load = static_cast<const float*>(call.in[1].as<float>()),
          now = call.out[0].as<float>(), n = static_cast<int>(call.in[0].size()),
          speed = static_cast<float>(call.attrs.number("speed", 0.001)),
          updates = call.micro_batch == 0](CudaStream stream) {
    launch(balance_bias_kernel, 1, kLoadThreads, 0, stream, "balance_bias", bias, load, now, n, speed, updates);
  };
}

CudaKernel prepare_balance(const CudaKernelCall& call) {
  const int64_t n = call.out[0].size();
  if (n == 0) return [](CudaStream) {};
  return [=, from = ref<Mixed>(call.in[0]), to = ref<Mixed>(call.out[0])](CudaStream stream) {
    launch(balance_kernel, static_cast<unsigned>(ceil_div(n, kLoadThreads)), kLoadThreads, 0, stream, "balance_losses",
           from, to, n);
  };
}

CudaKernel prepare_balance_grad(const CudaKernelCall& call) {
  const int64_t n = call.in[0].shape.back(), rows = call.in[0].size() / n;
  if (rows == 0) return [](CudaStream) {};
  const BalanceTerm term = BalanceTerm::of(call.attrs, n);
  return [=, logits = ref<Mixed>(call.in[0]), of_sequence = std::max<int64_t>(1, rows / call.in[0].shape[0]),
          load = static_cast<const float*>(call.in.size() > 1 ? call.in[1].as<float>() : nullptr),
          dlogits = ref<Mixed>(call.out[0]), scalars = call.scalars](CudaStream stream) {
    launch(balance_grad_kernel, rows_of_warps(rows), dim3(kBalanceLanes, kBalanceWarps), 0, stream,
           "balance_losses_grad", term, scalars, logits, load, dlogits, rows, of_sequence);
  };
}

CudaKernel prepare_drop_pairs(const CudaKernelCall& call) {
  const int64_t n = call.attrs.integer("experts"), most = call.attrs.integer("most"), sequences = call.in[0].shape[0];
  if (sequences == 0) return [](CudaStream) {};
  check(n <= 8192, "a router of a GPU that drops pairs has at most 8,192 experts");
  return [=, pairs = call.in[0].size() / sequences, ids = static_cast<const int32_t*>(call.in[0].as<int32_t>()),
          kept = call.out[0].as<int32_t>()](CudaStream stream) {
    launch(drop_pairs_kernel, static_cast<unsigned>(sequences), kLoadThreads, static_cast<size_t>(4 * n), stream,
           "drop_pairs", ids, kept, pairs, static_cast<int>(n), most);
  };
}

}  // namespace trainctl
