// A block computes all steps of a sample; a warp a unit. The gradient of the weight is a launch of its own: a thread an
// element.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/recurrent/cells.h"

namespace trainctl {
namespace {

constexpr int kRecurrentThreads = 256, kRecurrentWarps = kRecurrentThreads / 32;

__device__ inline float warp_total_of(float v) {
  for (int away = 16; away > 0; away /= 2) v += __shfl_xor_sync(~0u, v, away);
  return v;
}

/// shared: h and the state of each unit, twice h.
template <class Cell, class T>
__global__ void __launch_bounds__(kRecurrentThreads)
    recurrent_forward(Ref<T> gx, Ref<T> w, Ref<T> bias, Ref<T> y, float* states, float* kept, RecurrentSize s,
                      bool reverse) {
  extern __shared__ float recurrent_memory[];
  wait_for_kernel_before();
  let_next_kernel_start();
  float *h = recurrent_memory, *next = h + s.h, *const state = next + s.h;
  for (int64_t u = threadIdx.x; u < s.h; u += kRecurrentThreads) h[u] = state[u] = 0.0f;
  __syncthreads();
  const int64_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int64_t i = 0; i < s.t; ++i) {
    const int64_t row = blockIdx.x * s.t + (reverse ? s.t - 1 - i : i);
    for (int64_t u = warp; u < s.h; u += kRecurrentWarps) {
      float of_x[Cell::kGates], of_h[Cell::kGates], of_kept[Cell::kKept];
      for (int g = 0; g < Cell::kGates; ++g) {
        float sum = 0.0f;
        for (int64_t k = lane; k < s.h; k += 32) sum += h[k] * value(w, (g * s.h + u) * s.h + k);
        of_h[g] = warp_total_of(sum);
        of_x[g] = value(gx, (row * Cell::kGates + g) * s.h + u);
      }
      if (lane == 0) {
        float c = state[u];
        const float made = Cell::forward(of_x, of_h, bias.p == nullptr ? 0.0f : value(bias, u), h[u], c, of_kept);
        next[u] = made;
        state[u] = c;
        set(y, row * s.h + u, made);
        if (states != nullptr) states[row * s.h + u] = c;
        for (int k = 0; k < Cell::kKept; ++k) kept[(row * Cell::kKept + k) * s.h + u] = of_kept[k];
      }
    }
    __syncthreads();
    float* const last = h;
    h = next;
    next = last;
  }
}

/// shared: the gradients of h and of the state, then those of W h.
template <class Cell, class T>
__global__ void __launch_bounds__(kRecurrentThreads)
    recurrent_backward(Ref<T> dy, Ref<T> y, const float* states, const float* kept, Ref<T> w, Ref<T> dgx,
                       RecurrentSize s, bool reverse) {
  extern __shared__ float recurrent_memory[];
  wait_for_kernel_before();
  let_next_kernel_start();
  float *const dh = recurrent_memory, *const dstate = dh + s.h, *const gates = dstate + s.h;
  for (int64_t u = threadIdx.x; u < s.h; u += kRecurrentThreads) dh[u] = dstate[u] = 0.0f;
  for (int64_t i = s.t - 1; i >= 0; --i) {
    const int64_t t = reverse ? s.t - 1 - i : i, before = reverse ? t + 1 : t - 1;
    const int64_t row = blockIdx.x * s.t + t, row_before = blockIdx.x * s.t + before;
    __syncthreads();
    for (int64_t u = threadIdx.x; u < s.h; u += kRecurrentThreads) {
      float of_kept[Cell::kKept], of_x[Cell::kGates], of_h[Cell::kGates];
      for (int k = 0; k < Cell::kKept; ++k) of_kept[k] = kept[(row * Cell::kKept + k) * s.h + u];
      const float h_before = i == 0 ? 0.0f : value(y, row_before * s.h + u);
      const float state = states == nullptr ? 0.0f : states[row * s.h + u];
      const float state_before = states == nullptr || i == 0 ? 0.0f : states[row_before * s.h + u];
      float d = dstate[u];
      dh[u] = Cell::backward(dh[u] + value(dy, row * s.h + u), d, state, state_before, h_before, of_kept, of_x, of_h);
      dstate[u] = d;
      for (int g = 0; g < Cell::kGates; ++g) {
        set(dgx, (row * Cell::kGates + g) * s.h + u, of_x[g]);
        gates[g * s.h + u] = of_h[g];
      }
    }
    __syncthreads();
    for (int64_t k = threadIdx.x; k < s.h; k += kRecurrentThreads) {
      float sum = 0.0f;
      for (int64_t r = 0; r < Cell::kGates * s.h; ++r) sum += gates[r] * value(w, r * s.h + k);
      dh[k] += sum;
    }
  }
}

/// dw[g u, k] = sum over samples and steps of the gradient of gate g of unit u times the output k before the step;
/// column h of a GRU's last gate is db. The gradient of W h in the last gate of a GRU is that of gx times r.
template <class Cell, class T>
__global__ void __launch_bounds__(kRecurrentThreads)
    recurrent_weight_grad(Ref<T> dgx, Ref<T> y, const float* kept, Ref<Mixed> dw, bool adds, Ref<Mixed> db,
                          bool adds_bias, RecurrentSize s, bool reverse) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t columns = s.h + (Cell::kHasState ? 0 : 1);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRecurrentThreads + threadIdx.x;
  if (i >= Cell::kGates * s.h * columns) return;
  const int64_t r = i / columns, k = i % columns, g = r / s.h, u = r % s.h;
  const bool is_bias = k == s.h;
  if (is_bias && g != Cell::kGates - 1) return;
  double sum = 0;
  for (int64_t n = 0; n < s.n; ++n) {
    for (int64_t t = 0; t < s.t; ++t) {
      const int64_t before = reverse ? t + 1 : t - 1, row = n * s.t + t;
      if (!is_bias && (before < 0 || before >= s.t)) continue;
      float d = value(dgx, row * Cell::kGates * s.h + r);
      if (!Cell::kHasState && g == Cell::kGates - 1) d *= kept[row * Cell::kKept * s.h + u];
      sum += static_cast<double>(d) * (is_bias ? 1.0f : value(y, (n * s.t + before) * s.h + k));
    }
  }
  if (is_bias)
    set(db, u, static_cast<float>(sum + (adds_bias ? value(db, u) : 0.0f)));
  else
    set(dw, r * s.h + k, static_cast<float>(sum + (adds ? value(dw, r * s.h + k) : 0.0f)));
}

RecurrentSize recurrent_size_of(const TensorArg& y) { return {y.shape[0], y.shape[1], y.shape[2]}; }

/// Compilers read the last value of an odd number with the word after it, so that word must exist.
size_t shared_bytes(int64_t values) { return static_cast<size_t>(ceil_div(values, 4)) * 4 * sizeof(float); }

/// More shared memory than 48 KiB must be asked for.
template <class Kernel>
void allow_shared(Kernel kernel, size_t bytes, const char* name) {
  constexpr size_t kUsual = 48 << 10;
  if (bytes > kUsual)
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
               name);
}

template <class Cell>
CudaKernel prepare_recurrent(const CudaKernelCall& call) {
  const RecurrentSize s = recurrent_size_of(call.out[0]);
  return with_float_type(call.out[0].dtype, [&](auto type) -> CudaKernel {
    using T = decltype(type);
    const size_t shared = shared_bytes(3 * s.h);
    allow_shared(recurrent_forward<Cell, T>, shared, "lstm and gru");
    return
        [=, gx = ref<T>(call.in[0]), w = ref<T>(call.in[1]), bias = Cell::kHasState ? Ref<T>{} : ref<T>(call.in.back()),
         y = ref<T>(call.out[0]), states = Cell::kHasState ? call.out[1].as<float>() : nullptr,
         kept = call.out.back().as<float>(), reverse = call.attrs.flag("reverse")](CudaStream stream) {
          if (s.n * s.t == 0) return;
          launch(recurrent_forward<Cell, T>, static_cast<unsigned>(s.n), kRecurrentThreads, shared, stream, "recurrent",
                 gx, w, bias, y, states, kept, s, reverse);
        };
  });
}

/// The gradient of the input products (a block per sequence, step by step backwards), then those of the recurrent
/// weights.
template <class Cell>
CudaKernel prepare_recurrent_grad(const CudaKernelCall& call) {
  const RecurrentSize s = recurrent_size_of(call.in[1]);
  return with_float_type(call.in[1].dtype, [&](auto type) -> CudaKernel {
    using T = decltype(type);
    const size_t shared = shared_bytes((2 + Cell::kGates) * s.h);
    allow_shared(recurrent_backward<Cell, T>, shared, "gradient of lstm and gru");
    const int64_t elements = Cell::kGates * s.h * (s.h + (Cell::kHasState ? 0 : 1));
    const TensorArg &dw = call.out[1], &db = call.out.back();
    return [=, dy = ref<T>(call.in[0]), y = ref<T>(call.in[1]),
            states = Cell::kHasState ? call.in[2].as<const float>() : nullptr,
            kept = static_cast<const float*>(call.in[call.in.size() - 2].as<float>()), w = ref<T>(call.in.back()),
            dgx = ref<T>(call.out[0]), to = ref<Mixed>(dw), adds = dw.accumulate,
            to_bias = Cell::kHasState ? Ref<Mixed>{} : ref<Mixed>(db), adds_bias = db.accumulate,
            reverse = call.attrs.flag("reverse")](CudaStream stream) {
      if (s.n * s.t > 0)
        launch(recurrent_backward<Cell, T>, static_cast<unsigned>(s.n), kRecurrentThreads, shared, stream,
               "recurrent_grad", dy, y, states, kept, w, dgx, s, reverse);
      launch(recurrent_weight_grad<Cell, T>, static_cast<unsigned>(ceil_div(elements, kRecurrentThreads)),
             kRecurrentThreads, 0, stream, "recurrent_grad", dgx, y, kept, to, adds, to_bias, adds_bias, s, reverse);
    };
  });
}

}  // namespace

extern const CudaKernels recurrent_cuda = {{"lstm", prepare_recurrent<LstmCell>},
                                           {"lstm_grad", prepare_recurrent_grad<LstmCell>},
                                           {"gru", prepare_recurrent<GruCell>},
                                           {"gru_grad", prepare_recurrent_grad<GruCell>}};

}  // namespace trainctl
