// loss = scale * sum of loss(p, l).  dp = scale * slope(p, l).
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/unary_cuda.cuh"
#include "engine/ops/pair_loss/functions.h"
#include "engine/ops/pair_loss/pair_term_cuda.cuh"

namespace trainctl {
namespace {

template <class Loss>
struct ScaledLoss {
  Loss f;
  float scale;
  const StepScalars* scalars;
  bool skips;
  explicit ScaledLoss(const CudaKernelCall& call)
      : f(call.attrs),
        scale(static_cast<float>(call.attrs.number("scale", 1.0))),
        scalars(call.scalars),
        skips(call.attrs.flag("nan_is_no_label")) {}

  __device__ float loss(float p, float l) const { return skips && l != l ? 0.0f : f.template loss<CudaMaths>(p, l); }
  __device__ float grad(float p, float l) const {
    return scale * scalars->loss_scale * f.template slope<CudaMaths>(p, l);
  }
};

template <class Loss>
CudaKernel prepare_pair_loss(const CudaKernelCall& call) {
  return prepare_pair_loss(call, ScaledLoss<Loss>(call), true, false, Loss::kName);
}
template <class Loss>
CudaKernel prepare_pair_loss_grad(const CudaKernelCall& call) {
  return prepare_pair_loss(call, ScaledLoss<Loss>(call), false, true, Loss::kGrad);
}
template <class Loss>
CudaKernel prepare_with_grad(const CudaKernelCall& call) {
  return prepare_pair_loss(call, ScaledLoss<Loss>(call), true, true, Loss::kWithGrad);
}

}  // namespace

extern const CudaKernels pair_loss_cuda = {
    {"mae", prepare_pair_loss<Mae>, kTakesF16},
    {"mae_grad", prepare_pair_loss_grad<Mae>, kTakesF16},
    {"mae_with_grad", prepare_with_grad<Mae>, kTakesF16},
    {"mse", prepare_pair_loss<Mse>, kTakesF16},
    {"mse_grad", prepare_pair_loss_grad<Mse>, kTakesF16},
    {"mse_with_grad", prepare_with_grad<Mse>, kTakesF16},
    {"smooth_l1", prepare_pair_loss<SmoothL1>, kTakesF16},
    {"smooth_l1_grad", prepare_pair_loss_grad<SmoothL1>, kTakesF16},
    {"smooth_l1_with_grad", prepare_with_grad<SmoothL1>, kTakesF16},
    {"binary_cross_entropy", prepare_pair_loss<BinaryCrossEntropy>, kTakesF16},
    {"binary_cross_entropy_grad", prepare_pair_loss_grad<BinaryCrossEntropy>, kTakesF16},
    {"binary_cross_entropy_with_grad", prepare_with_grad<BinaryCrossEntropy>, kTakesF16},
    {"huber", prepare_pair_loss<Huber>, kTakesF16},
    {"huber_grad", prepare_pair_loss_grad<Huber>, kTakesF16},
    {"huber_with_grad", prepare_with_grad<Huber>, kTakesF16},
    {"quantile", prepare_pair_loss<Quantile>, kTakesF16},
    {"quantile_grad", prepare_pair_loss_grad<Quantile>, kTakesF16},
    {"quantile_with_grad", prepare_with_grad<Quantile>, kTakesF16},
    {"log_cosh", prepare_pair_loss<LogCosh>, kTakesF16},
    {"log_cosh_grad", prepare_pair_loss_grad<LogCosh>, kTakesF16},
    {"log_cosh_with_grad", prepare_with_grad<LogCosh>, kTakesF16},
    {"poisson", prepare_pair_loss<Poisson>, kTakesF16},
    {"poisson_grad", prepare_pair_loss_grad<Poisson>, kTakesF16},
    {"poisson_with_grad", prepare_with_grad<Poisson>, kTakesF16},
    {"focal", prepare_pair_loss<Focal>, kTakesF16},
    {"focal_grad", prepare_pair_loss_grad<Focal>, kTakesF16},
    {"focal_with_grad", prepare_with_grad<Focal>, kTakesF16},
    {"kl_div", prepare_pair_loss<KlDiv>, kTakesF16},
    {"kl_div_grad", prepare_pair_loss_grad<KlDiv>, kTakesF16},
    {"kl_div_with_grad", prepare_with_grad<KlDiv>, kTakesF16},
    {"hinge", prepare_pair_loss<Hinge>, kTakesF16},
    {"hinge_grad", prepare_pair_loss_grad<Hinge>, kTakesF16},
    {"hinge_with_grad", prepare_with_grad<Hinge>, kTakesF16},
    {"cosine_embedding", prepare_pair_loss<CosineEmbedding>, kTakesF16},
    {"cosine_embedding_grad", prepare_pair_loss_grad<CosineEmbedding>, kTakesF16},
    {"cosine_embedding_with_grad", prepare_with_grad<CosineEmbedding>, kTakesF16},
    {"mean_value", prepare_pair_loss<MeanValue>, kTakesF16},
    {"mean_value_grad", prepare_pair_loss_grad<MeanValue>, kTakesF16},
    {"mean_value_with_grad", prepare_with_grad<MeanValue>, kTakesF16}};

}  // namespace trainctl
