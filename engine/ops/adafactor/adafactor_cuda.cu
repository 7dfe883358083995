// Adafactor on GPUs (adafactor_rule.h): sums of rows by a block each, of columns by a thread each, and of parameters as
// in layerwise_cuda.cuh. Each sum has a fixed order.
#include "engine/ops/adafactor/adafactor_rule.h"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/layerwise_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kAdafactorThreads = kLayerwiseThreads;

/// The gradients and weights of the elements of one parameter: operand element i is element i + shift of its part.
template <class G>
struct Elements {
  AdafactorPlace place;
  PlacedRange range;
  Ref<G> gradient;
  CudaClip clip;

  __device__ float grad(int64_t element, float scale) const {
    return scale * clip.bounded(value(gradient, element - range.begin + range.at));
  }
};

__global__ void zero_sums(float* out, int64_t n) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 0;
}

/// One block per row that has elements in the range.
template <class G>
__global__ void __launch_bounds__(kAdafactorThreads) adafactor_rows(Elements<G> e, int64_t first_row, float* sums) {
  wait_for_kernel_before();
  let_next_kernel_start();
  __shared__ double shared[kAdafactorThreads];
  const int64_t width = e.place.p.local_cols(), row = first_row + blockIdx.x;
  const float scale = e.clip.scale();
  const int64_t begin = max(row * width, e.range.begin), end = min((row + 1) * width, e.range.end);
  double squares = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kAdafactorThreads) {
    const double g = e.grad(i, scale);
    squares += g * g;
  }
  const double total = layerwise_total(squares, shared);
  if (threadIdx.x == 0) sums[e.place.sums + e.place.p.whole_row(row)] += static_cast<float>(total);
}

/// One thread per column of each matrix of this rank's part.
template <class G>
__global__ void __launch_bounds__(kAdafactorThreads) adafactor_columns(Elements<G> e, int64_t columns, float* sums) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kAdafactorThreads + threadIdx.x;
  if (at >= columns) return;
  const PlacedParameter& p = e.place.p;
  const int64_t width = p.local_cols(), rows = p.local_rows(), matrix = at / width, col = at % width;
  const float scale = e.clip.scale();
  double squares = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t i = (matrix * rows + r) * width + col;
    if (i < e.range.begin || i >= e.range.end) continue;
    const double g = e.grad(i, scale);
    squares += g * g;
  }
  const int64_t whole = p.whole_row(matrix * rows) / p.rows();
  sums[e.place.sums + p.matrices() * p.rows() + whole * p.cols() + p.first_col() + col] += static_cast<float>(squares);
}

__global__ void __launch_bounds__(kAdafactorThreads) adafactor_weights(Ref<float> w, int64_t n, double* parts) {
  wait_for_kernel_before();
  let_next_kernel_start();
  __shared__ double shared[kAdafactorThreads];
  double squares = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kAdafactorThreads + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * kAdafactorThreads)
    squares += static_cast<double>(value(w, i)) * value(w, i);
  const double total = layerwise_total(squares, shared);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

/// Adds up the parts of the blocks before.
__global__ void __launch_bounds__(kAdafactorThreads) add_adafactor_parts(const double* parts, int count, float* out) {
  wait_for_kernel_before();
  let_next_kernel_start();
  __shared__ double shared[kAdafactorThreads];
  double sum = 0;
  for (int b = static_cast<int>(threadIdx.x); b < count; b += kAdafactorThreads) sum += parts[b];
  const double total = layerwise_total(sum, shared);
  if (threadIdx.x == 0) *out += static_cast<float>(total);
}

__global__ void __launch_bounds__(kAdafactorThreads)
    adafactor_states(AdafactorPlace place, const float* sums, float* states, CudaClip clip,
                     const StepScalars* scalars) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kAdafactorThreads + threadIdx.x;
  if (i >= place.state_elements() || clip.skips()) return;
  const bool is_row = i < place.p.matrices() * place.p.rows();
  const float mean = sums[place.sums + i] / static_cast<float>(is_row ? place.p.cols() : place.p.rows());
  float& state = states[place.states + i];
  state += scalars->square_rate * (mean - state);
}

/// One block per matrix.
__global__ void __launch_bounds__(kAdafactorThreads)
    adafactor_means(AdafactorPlace place, const float* states, float* means) {
  wait_for_kernel_before();
  let_next_kernel_start();
  __shared__ double shared[kAdafactorThreads];
  const int64_t R = place.p.rows();
  double sum = 0;
  for (int64_t r = threadIdx.x; r < R; r += kAdafactorThreads) sum += states[place.states + blockIdx.x * R + r];
  const double total = layerwise_total(sum, shared);
  if (threadIdx.x == 0) means[place.means + blockIdx.x] = static_cast<float>(total / static_cast<double>(R));
}

struct CudaVariances {
  AdafactorRule rule;
  const float* states;  ///< states of rows and columns, or of elements before this step
  const float* means;

  /// `g`: after clipping; `operand`: the element in the operands.
  __device__ float at(const AdafactorPlace& place, int64_t element, int64_t operand, float g, float rate) const {
    if (!place.is_factored()) return states[operand] + rate * (g * g - states[operand]);
    const PlacedParameter& p = place.p;
    const int64_t width = p.local_cols(), row = p.whole_row(element / width), matrix = row / p.rows();
    const int64_t col = element % width + p.first_col();
    return rule.variance(states[place.states + row],
                         states[place.states + p.matrices() * p.rows() + matrix * p.cols() + col],
                         means[place.means + matrix]);
  }
};

template <class G>
__global__ void __launch_bounds__(kAdafactorThreads)
    adafactor_changes(Elements<G> e, CudaVariances variances, const StepScalars* scalars, double* parts) {
  wait_for_kernel_before();
  let_next_kernel_start();
  __shared__ double shared[kAdafactorThreads];
  const float scale = e.clip.scale(), rate = scalars->square_rate;
  double squares = 0;
  for (int64_t i = e.range.begin + static_cast<int64_t>(blockIdx.x) * kAdafactorThreads + threadIdx.x; i < e.range.end;
       i += static_cast<int64_t>(gridDim.x) * kAdafactorThreads) {
    const float g = e.grad(i, scale);
    const double u = variances.rule.change(g, variances.at(e.place, i, i - e.range.begin + e.range.at, g, rate));
    squares += u * u;
  }
  const double total = layerwise_total(squares, shared);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

/// Updates the weights of one parameter from its gradients, its variances and the norm of its change. Without factors,
/// also writes the variance of each element.
template <class G>
__global__ void __launch_bounds__(kAdafactorThreads)
    adafactor_update(Elements<G> e, CudaVariances variances, const float* sums, const float* norms, Ref<float> weight,
                     Ref<float> variance_to, const StepScalars* scalars, float rate_scale) {
  wait_for_kernel_before();
  let_next_kernel_start();
  if (e.clip.skips()) return;
  const float scale = e.clip.scale(), rate = scalars->square_rate, lr = scalars->learning_rate * rate_scale;
  const float decaying = lr * variances.rule.decay;  // a factor 1 - decaying would be rounded in each step
  const float step = variances.rule.step(sums[e.place.weight_sum()], norms[e.place.index], e.place.p.whole_size(),
                                         fminf(lr, scalars->relative_rate));
  for (int64_t i = e.range.begin + static_cast<int64_t>(blockIdx.x) * kAdafactorThreads + threadIdx.x; i < e.range.end;
       i += static_cast<int64_t>(gridDim.x) * kAdafactorThreads) {
    const int64_t at = i - e.range.begin + e.range.at;
    const float g = e.grad(i, scale);
    const float variance = variances.at(e.place, i, at, g, rate);
    if (variance_to.p != nullptr) set(variance_to, at, variance);
    set(weight, at, value(weight, at) - (decaying * value(weight, at) + step * variances.rule.change(g, variance)));
  }
}

__global__ void __launch_bounds__(kAdafactorThreads) copy_weights(Ref<float> weight, Ref<bf16> copy, int64_t n) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kAdafactorThreads + threadIdx.x;
  if (i < n) set(copy, i, value(weight, i));
}

// Launchers

unsigned adafactor_blocks(int64_t elements, int64_t of_thread = 1) {
  return static_cast<unsigned>(std::max<int64_t>(1, ceil_div(elements, kAdafactorThreads * of_thread)));
}
unsigned few_blocks(int64_t elements) {
  return std::min<unsigned>(adafactor_blocks(elements, kLayerwiseElements), kMostLayerwiseBlocks);
}

/// The parameters that have elements in the operands.
template <class G>
std::vector<Elements<G>> elements_of(const CudaKernelCall& call, int64_t n) {
  std::vector<Elements<G>> all;
  for (const AdafactorPlace& place : adafactor_places(call.attrs)) {
    const PlacedRange range = placed_range(place.p, call.attrs.integer("first"), n);
    if (range.size() > 0) all.push_back({place, range, ref<G>(call.in[0]), CudaClip::of(call)});
  }
  return all;
}

/// sums [out]: for each factored parameter the squares of its gradients by row and by column; for each parameter the
/// sum of the squares of its weights.
CudaKernel prepare_adafactor_sums(const CudaKernelCall& call) {
  call.scratch->need(kMostLayerwiseBlocks * static_cast<int64_t>(sizeof(double)));
  return with_float_type(call.in[0].dtype, [&](auto g) -> CudaKernel {
    using G = decltype(g);
    return [all = elements_of<G>(call, call.in[0].size()), weight = ref<float>(call.in.back()),
            sums = call.out[0].as<float>(), n = call.out[0].size(), adds = call.out[0].accumulate,
            scratch = call.scratch](CudaStream stream) {
      auto* const parts = static_cast<double*>(scratch->memory());
      if (!adds) launch(zero_sums, adafactor_blocks(n), kAdafactorThreads, 0, stream, "adafactor_sums", sums, n);
      for (const Elements<G>& e : all) {
        const PlacedParameter& p = e.place.p;
        const int64_t width = p.local_cols(), first_row = e.range.begin / width;
        const int64_t rows = (e.range.end - 1) / width - first_row + 1;
        const int64_t columns = p.size() / p.local_rows();
        if (e.place.is_factored()) {
          launch(adafactor_rows<G>, static_cast<unsigned>(rows), kAdafactorThreads, 0, stream, "adafactor_sums", e,
                 first_row, sums);
          launch(adafactor_columns<G>, adafactor_blocks(columns), kAdafactorThreads, 0, stream, "adafactor_sums", e,
                 columns, sums);
        }
        const unsigned blocks = few_blocks(e.range.size());
        launch(adafactor_weights, blocks, kAdafactorThreads, 0, stream, "adafactor_sums",
               Ref<float>{weight.p + e.range.at}, e.range.size(), parts);
        launch(add_adafactor_parts, 1, kAdafactorThreads, 0, stream, "adafactor_sums",
               static_cast<const double*>(parts), static_cast<int>(blocks), sums + e.place.weight_sum());
      }
    };
  });
}

CudaKernel prepare_adafactor_states(const CudaKernelCall& call) {
  return [places = adafactor_places(call.attrs), sums = call.in[0].as<const float>(), states = call.out[0].as<float>(),
          means = call.out[1].as<float>(), scalars = call.scalars, clip = CudaClip::of(call)](CudaStream stream) {
    for (const AdafactorPlace& place : places) {
      launch(adafactor_states, adafactor_blocks(place.state_elements()), kAdafactorThreads, 0, stream,
             "adafactor_states", place, sums, states, clip, scalars);
      launch(adafactor_means, static_cast<unsigned>(place.p.matrices()), kAdafactorThreads, 0, stream,
             "adafactor_states", place, static_cast<const float*>(states), means);
    }
  };
}

bool has_factors(const CudaKernelCall& call) {
  const std::vector<AdafactorPlace> places = adafactor_places(call.attrs);
  return !places.empty() && places[0].is_factored();
}

/// norms [out]: for each parameter the sum of the squares of its change before it is limited.
CudaKernel prepare_adafactor_norms(const CudaKernelCall& call) {
  call.scratch->need(kMostLayerwiseBlocks * static_cast<int64_t>(sizeof(double)));
  const size_t last = call.in.size() - 1;
  const bool factored = has_factors(call);
  const CudaVariances variances{AdafactorRule::of(call.attrs), call.in[factored ? last - 1 : last].as<const float>(),
                                factored ? call.in[last].as<const float>() : nullptr};
  return with_float_type(call.in[0].dtype, [&](auto g) -> CudaKernel {
    using G = decltype(g);
    return [=, all = elements_of<G>(call, call.in[0].size()), out = call.out[0].as<float>(), n = call.out[0].size(),
            adds = call.out[0].accumulate, scalars = call.scalars, scratch = call.scratch](CudaStream stream) {
      auto* const parts = static_cast<double*>(scratch->memory());
      if (!adds) launch(zero_sums, adafactor_blocks(n), kAdafactorThreads, 0, stream, "adafactor_norms", out, n);
      for (const Elements<G>& e : all) {
        const unsigned blocks = few_blocks(e.range.size());
        launch(adafactor_changes<G>, blocks, kAdafactorThreads, 0, stream, "adafactor_norms", e, variances, scalars,
               parts);
        launch(add_adafactor_parts, 1, kAdafactorThreads, 0, stream, "adafactor_norms",
               static_cast<const double*>(parts), static_cast<int>(blocks), out + e.place.index);
      }
    };
  });
}

/// Updates the weights, and writes their bf16 copy if there is one. Inputs from `sums_at` on: sums, norms, and with
/// factors the states of rows and columns.
CudaKernel prepare_adafactor_update(const CudaKernelCall& call) {
  const bool factored = has_factors(call);
  const size_t sums_at = call.in.size() - (factored ? 4 : 2);
  const Ref<float> own = factored ? Ref<float>{} : ref<float>(call.out[1]);
  const CudaVariances variances{AdafactorRule::of(call.attrs),
                                factored ? call.in[sums_at + 2].as<const float>() : own.p,
                                factored ? call.in[sums_at + 3].as<const float>() : nullptr};
  const Ref<bf16> copy = call.out.back().dtype == DType::bf16 ? ref<bf16>(call.out.back()) : Ref<bf16>{};
  return with_float_type(call.in[0].dtype, [&](auto g) -> CudaKernel {
    using G = decltype(g);
    return [=, all = elements_of<G>(call, call.out[0].size()), weight = ref<float>(call.out[0]), n = call.out[0].size(),
            sums = call.in[sums_at].as<const float>(), norms = call.in[sums_at + 1].as<const float>(),
            scalars = call.scalars,
            rate_scale = static_cast<float>(call.attrs.number("learning_rate_scale", 1.0))](CudaStream stream) {
      for (const Elements<G>& e : all)
        launch(adafactor_update<G>, few_blocks(e.range.size()), kAdafactorThreads, 0, stream, "adafactor_update", e,
               variances, sums, norms, weight, own, scalars, rate_scale);
      if (copy.p != nullptr && n > 0)
        launch(copy_weights, adafactor_blocks(n), kAdafactorThreads, 0, stream, "adafactor_update", weight, copy, n);
    };
  });
}

}  // namespace

extern const CudaKernels adafactor_cuda = {{"adafactor_sums", prepare_adafactor_sums},
                                           {"adafactor_states", prepare_adafactor_states},
                                           {"adafactor_norms", prepare_adafactor_norms},
                                           {"adafactor_update", prepare_adafactor_update}};

}  // namespace trainctl
