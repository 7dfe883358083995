// Packs and unpacks optimizer states, a thread per element; for codes, 256 threads are one block with its scale.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/optimizer_cuda.cuh"
#include "engine/ops/pack_states/packed_state.h"
#include "engine/ops/placed_parameters.h"

namespace trainctl {
namespace {

constexpr int kPackThreads = static_cast<int>(kStateBlock);

__device__ int64_t state_element() { return static_cast<int64_t>(blockIdx.x) * kPackThreads + threadIdx.x; }

__global__ void __launch_bounds__(kPackThreads) unpack_bf16_states(Ref<bf16> in, float* out, int64_t n) {
  wait_for_kernel_before();
  let_next_kernel_start();
  if (state_element() < n) out[state_element()] = value(in, state_element());
}

__global__ void __launch_bounds__(kPackThreads)
    unpack_state_codes(const uint8_t* codes, const float* scales, float* out, StateCodes values, int64_t n) {
  wait_for_kernel_before();
  let_next_kernel_start();
  if (state_element() < n) out[state_element()] = values.values[codes[state_element()]] * scales[blockIdx.x];
}

__global__ void __launch_bounds__(kPackThreads)
    pack_bf16_states(const float* in, uint16_t* out, PlacedParameter p, PlacedRange range, uint64_t seed, int64_t state,
                     const StepScalars* scalars) {
  wait_for_kernel_before();
  let_next_kernel_start();
  if (state_element() >= range.end - range.begin) return;
  const RoundingBits bits = RoundingBits::of(seed, p.key, state, scalars->step);
  const int64_t at = range.at + state_element();
  out[at] = round_at_random(in[at], bits.at(p.whole_index(range.begin + state_element())));
}

__global__ void __launch_bounds__(kPackThreads)
    pack_state_codes(const float* in, uint8_t* codes, float* scales, StateCodes values, int64_t n, CudaClip clip) {
  wait_for_kernel_before();
  let_next_kernel_start();
  __shared__ float most[kPackThreads];
  if (clip.skips()) return;
  const float x = state_element() < n ? in[state_element()] : 0;
  most[threadIdx.x] = fabsf(x);
  __syncthreads();
  for (int half = kPackThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) most[threadIdx.x] = fmaxf(most[threadIdx.x], most[threadIdx.x + half]);
    __syncthreads();
  }
  if (threadIdx.x == 0) scales[blockIdx.x] = most[0];
  if (state_element() < n) codes[state_element()] = values.nearest(most[0] > 0 ? x / most[0] : 0);
}

// Launchers

unsigned pack_blocks_of(int64_t n) { return static_cast<unsigned>(std::max<int64_t>(1, ceil_div(n, kPackThreads))); }

CudaKernel prepare_unpack_states(const CudaKernelCall& call) {
  const int64_t n = call.out[0].size();
  float* const out = call.out[0].as<float>();
  if (call.in[0].dtype == DType::bf16)
    return [=, in = ref<bf16>(call.in[0])](CudaStream stream) {
      launch(unpack_bf16_states, pack_blocks_of(n), kPackThreads, 0, stream, "unpack_states", in, out, n);
    };
  return [=, codes = call.in[0].as<const uint8_t>(), scales = call.in[1].as<const float>(),
          values = StateCodes::of(!call.attrs.flag("squares"))](CudaStream stream) {
    launch(unpack_state_codes, pack_blocks_of(n), kPackThreads, 0, stream, "unpack_states", codes, scales, out, values,
           n);
  };
}

/// Packs f32 states as bf16, with stochastic rounding by parameter and element, or as int8 codes and scales of blocks.
CudaKernel prepare_pack_states(const CudaKernelCall& call) {
  const int64_t n = call.in[0].size();
  const auto* const in = call.in[0].as<const float>();
  if (call.out[0].dtype == DType::bf16)
    return [=, out = call.out[0].as<uint16_t>(), parameters = placed_parameters(call.attrs),
            first = call.attrs.integer("first"), state = call.attrs.integer("state"), seed = call.seed,
            scalars = call.scalars](CudaStream stream) {
      for (const PlacedParameter& p : parameters) {
        const PlacedRange range = placed_range(p, first, n);
        if (range.size() > 0)
          launch(pack_bf16_states, pack_blocks_of(range.size()), kPackThreads, 0, stream, "pack_states", in, out, p,
                 range, seed, state, scalars);
      }
    };
  return [=, codes = call.out[0].as<uint8_t>(), scales = call.out[1].as<float>(),
          values = StateCodes::of(!call.attrs.flag("squares")), clip = CudaClip::of(call)](CudaStream stream) {
    launch(pack_state_codes, pack_blocks_of(n), kPackThreads, 0, stream, "pack_states", in, codes, scales, values, n,
           clip);
  };
}

}  // namespace

extern const CudaKernels pack_states_cuda = {{"unpack_states", prepare_unpack_states},
                                             {"pack_states", prepare_pack_states}};

}  // namespace trainctl
