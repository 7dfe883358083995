// Applies muon_rule.h to the matrices of a bucket, one by one. Products are in bf16, as published.
//
// Between the products X lacks the factor s = a^step, so that the sum a X + (b A + c A A) X is one product with X as
// its residual: with A' of the X' = X / s that is kept, X' += ((b s^2 A' + c s^4 A' A') / a) X', and then s *= a.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/kernels_in_order_cuda.h"
#include "engine/ops/cuda/layerwise_cuda.cuh"
#include "engine/ops/matmul/product_cuda.h"
#include "engine/ops/muon/muon_rule.h"

namespace trainctl {
namespace {

struct MuonOperands {
  const void* gradient = nullptr;
  bool is_bf16 = false;
  float* m = nullptr;
  int64_t size = 0;

  __device__ float grad(int64_t i) const {
    return is_bf16 ? __bfloat162float(static_cast<const bf16*>(gradient)[i]) : static_cast<const float*>(gradient)[i];
  }
};

/// Moves the momentum; parts: squares of the direction, by block.
__global__ void __launch_bounds__(kLayerwiseThreads)
    muon_momentum(MuonOperands of, MuonSettings settings, CudaClip clip, double* parts) {
  wait_for_kernel_before();
  let_next_kernel_start();
  __shared__ double shared[kLayerwiseThreads];
  const float scale = clip.scale();
  const bool skips = clip.skips();
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kLayerwiseThreads;
  double squares = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kLayerwiseThreads + threadIdx.x; i < of.size; i += stride) {
    const float g = scale * clip.bounded(of.grad(i)), m = settings.moved(g, of.m[i]);
    if (!skips) of.m[i] = m;
    const double u = settings.direction(g, m);
    squares += u * u;
  }
  const double total = layerwise_total(squares, shared);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

/// x = direction / its norm.
__global__ void __launch_bounds__(kLayerwiseThreads)
    muon_start(MuonOperands of, MuonSettings settings, CudaClip clip, const double* parts, bf16* x) {
  wait_for_kernel_before();
  let_next_kernel_start();
  __shared__ double shared[kLayerwiseThreads];
  double squares = 0;
  for (unsigned b = threadIdx.x; b < gridDim.x; b += kLayerwiseThreads) squares += parts[b];
  const double total = layerwise_total(squares, shared);
  const float inverse = 1.0f / fmaxf(static_cast<float>(sqrt(total)), kMuonLeastNorm), scale = clip.scale();
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kLayerwiseThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kLayerwiseThreads + threadIdx.x; i < of.size; i += stride) {
    const float g = scale * clip.bounded(of.grad(i));
    x[i] = __float2bfloat16(settings.direction(g, of.m[i]) * inverse);
  }
}

/// factor = b gram + c factor
__global__ void __launch_bounds__(kLayerwiseThreads)
    muon_factor(const bf16* gram, bf16* factor, float b, float c, int64_t size) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kLayerwiseThreads + threadIdx.x;
  if (i < size) factor[i] = __float2bfloat16(b * __bfloat162float(gram[i]) + c * __bfloat162float(factor[i]));
}

/// copy: null if there is none.
__global__ void __launch_bounds__(kLayerwiseThreads)
    muon_descend(float* w, bf16* copy, const bf16* x, float factor, float decay, CudaClip clip,
                 const StepScalars* scalars, float rate_scale, int64_t size) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kLayerwiseThreads + threadIdx.x;
  if (i >= size) return;
  const float rate = scalars->learning_rate * rate_scale;
  // A factor 1 - rate * decay would be rounded in each step.
  const float weight = clip.skips() ? w[i] : w[i] - (rate * decay * w[i] + rate * factor * __bfloat162float(x[i]));
  w[i] = weight;
  if (copy != nullptr) copy[i] = __float2bfloat16(weight);
}

unsigned blocks_of(int64_t size) { return static_cast<unsigned>(ceil_div(size, kLayerwiseThreads)); }

CudaKernel muon_product(cuda::Product product, CudaScratch& scratch) {
  product.operands = product.result = DType::bf16;
  const std::optional<CudaKernel> kernel = cuda::prepare_product(product, scratch);
  check(kernel.has_value(), "no kernel computes a plain matrix product");
  return *kernel;
}

/// The five steps of a matrix, from x0 to x1.
void add_iteration(const WholeParameter& p, bf16* work, CudaScratch& scratch, std::vector<CudaKernel>& kernels) {
  const MuonSpace space(p);
  const int64_t side = std::min(p.rows, p.cols);
  const bool is_wide = p.rows <= p.cols;
  bf16 *const gram = work + space.gram, *const factor = work + space.factor;
  float s = 1;
  for (int i = 0; i < kMuonSteps; ++i) {
    bf16 *const x = work + (i % 2 == 0 ? space.x0 : space.x1), *const next = work + (i % 2 == 0 ? space.x1 : space.x0);
    cuda::Product of_gram{.m = side, .n = side, .k = is_wide ? p.cols : p.rows, .a = x, .b = x, .c = gram};
    (is_wide ? of_gram.transpose_b : of_gram.transpose_a) = true;
    kernels.push_back(muon_product(of_gram, scratch));
    kernels.push_back(muon_product({.m = side, .n = side, .k = side, .a = gram, .b = gram, .c = factor}, scratch));
    kernels.push_back([gram, factor, s, side](CudaStream stream) {
      launch(muon_factor, blocks_of(side * side), kLayerwiseThreads, 0, stream, "muon_update",
             static_cast<const bf16*>(gram), factor, kMuonB * s * s / kMuonA, kMuonC * s * s * s * s / kMuonA,
             side * side);
    });
    cuda::Product of_x{.m = p.rows, .n = p.cols, .k = side, .c = next};
    of_x.a = is_wide ? factor : x;
    of_x.b = is_wide ? x : factor;
    of_x.residual = x;
    kernels.push_back(muon_product(of_x, scratch));
    s *= kMuonA;
  }
}

/// For each parameter: the momentum, its start as a normalized matrix, the iteration that orthogonalizes it, and the
/// descent.
CudaKernel prepare_muon_update(const CudaKernelCall& call) {
  check(call.out.size() > 2 && call.out[2].dtype == DType::i32, "muon has a momentum and work space");
  call.scratch->need(kMostLayerwiseBlocks * static_cast<int64_t>(sizeof(double)));
  const MuonSettings settings = MuonSettings::of(call.attrs);
  const CudaClip clip = CudaClip::of(call);
  auto* const work = static_cast<bf16*>(call.out[2].data);
  const bool has_copy = call.out.back().dtype == DType::bf16;
  const auto rate_scale = static_cast<float>(call.attrs.number("learning_rate_scale", 1.0));
  const float grown = kMuonA * kMuonA * kMuonA * kMuonA * kMuonA;
  std::vector<CudaKernel> kernels;
  for (const WholeParameter& p : whole_parameters(call)) {
    const bool is_bf16 = call.in[0].dtype == DType::bf16;
    const MuonOperands of{static_cast<const std::byte*>(call.in[0].data) + p.first * (is_bf16 ? 2 : 4), is_bf16,
                          call.out[1].as<float>() + p.first, p.size()};
    const auto blocks = static_cast<unsigned>(
        std::clamp<int64_t>(ceil_div(p.size(), kLayerwiseThreads * kLayerwiseElements), 1, kMostLayerwiseBlocks));
    kernels.push_back([=, scratch = call.scratch](CudaStream stream) {
      auto* const parts = static_cast<double*>(scratch->memory());
      launch(muon_momentum, blocks, kLayerwiseThreads, 0, stream, "muon_update", of, settings, clip, parts);
      launch(muon_start, blocks, kLayerwiseThreads, 0, stream, "muon_update", of, settings, clip,
             static_cast<const double*>(parts), work);
    });
    add_iteration(p, work, *call.scratch, kernels);
    const bf16* const x = work + MuonSpace(p).x1;
    kernels.push_back([=, w = call.out[0].as<float>() + p.first,
                       copy = has_copy ? call.out.back().as<bf16>() + p.first : nullptr,
                       scalars = call.scalars](CudaStream stream) {
      launch(muon_descend, blocks_of(p.size()), kLayerwiseThreads, 0, stream, "muon_update", w, copy, x,
             settings.adjust(p) * grown, settings.decay, clip, scalars, rate_scale, p.size());
    });
  }
  return cuda::in_order(std::move(kernels));
}

}  // namespace

extern const CudaKernels muon_cuda = {{"muon_update", prepare_muon_update}};

}  // namespace trainctl
