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
  __device__ float operator()(float p, float l) const { return grad(p, l); }
};

template <class Loss>
CudaKernel prepare_pair_loss(const CudaKernelCall& call) {
  return prepare_pair_loss(call, ScaledLoss<Loss>(call), Loss::kName);
}
template <class Loss>
CudaKernel prepare_pair_loss_grad(const CudaKernelCall& call) {
  return map_mixed_binary(call.in[0], call.in[1], call.out[0], ScaledLoss<Loss>(call), Loss::kGrad);
}
template <class Loss>
CudaKernel prepare_with_grad(const CudaKernelCall& call) {
  return prepare_pair_loss(call, ScaledLoss<Loss>(call), Loss::kWithGrad);
}

}  // namespace

extern const CudaKernels pair_loss_cuda = {{"mae", prepare_pair_loss<Mae>},
                                           {"mae_grad", prepare_pair_loss_grad<Mae>},
                                           {"mae_with_grad", prepare_with_grad<Mae>},
                                           {"mse", prepare_pair_loss<Mse>},
                                           {"mse_grad", prepare_pair_loss_grad<Mse>},
                                           {"mse_with_grad", prepare_with_grad<Mse>},
                                           {"smooth_l1", prepare_pair_loss<SmoothL1>},
                                           {"smooth_l1_grad", prepare_pair_loss_grad<SmoothL1>},
                                           {"smooth_l1_with_grad", prepare_with_grad<SmoothL1>},
                                           {"binary_cross_entropy", prepare_pair_loss<BinaryCrossEntropy>},
                                           {"binary_cross_entropy_grad", prepare_pair_loss_grad<BinaryCrossEntropy>},
                                           {"binary_cross_entropy_with_grad", prepare_with_grad<BinaryCrossEntropy>},
                                           {"huber", prepare_pair_loss<Huber>},
                                           {"huber_grad", prepare_pair_loss_grad<Huber>},
                                           {"huber_with_grad", prepare_with_grad<Huber>},
                                           {"quantile", prepare_pair_loss<Quantile>},
                                           {"quantile_grad", prepare_pair_loss_grad<Quantile>},
                                           {"quantile_with_grad", prepare_with_grad<Quantile>},
                                           {"log_cosh", prepare_pair_loss<LogCosh>},
                                           {"log_cosh_grad", prepare_pair_loss_grad<LogCosh>},
                                           {"log_cosh_with_grad", prepare_with_grad<LogCosh>},
                                           {"poisson", prepare_pair_loss<Poisson>},
                                           {"poisson_grad", prepare_pair_loss_grad<Poisson>},
                                           {"poisson_with_grad", prepare_with_grad<Poisson>},
                                           {"focal", prepare_pair_loss<Focal>},
                                           {"focal_grad", prepare_pair_loss_grad<Focal>},
                                           {"focal_with_grad", prepare_with_grad<Focal>},
                                           {"kl_div", prepare_pair_loss<KlDiv>},
                                           {"kl_div_grad", prepare_pair_loss_grad<KlDiv>},
                                           {"kl_div_with_grad", prepare_with_grad<KlDiv>},
                                           {"hinge", prepare_pair_loss<Hinge>},
                                           {"hinge_grad", prepare_pair_loss_grad<Hinge>},
                                           {"hinge_with_grad", prepare_with_grad<Hinge>},
                                           {"cosine_embedding", prepare_pair_loss<CosineEmbedding>},
                                           {"cosine_embedding_grad", prepare_pair_loss_grad<CosineEmbedding>},
                                           {"cosine_embedding_with_grad", prepare_with_grad<CosineEmbedding>},
                                           {"mean_value", prepare_pair_loss<MeanValue>},
                                           {"mean_value_grad", prepare_pair_loss_grad<MeanValue>},
                                           {"mean_value_with_grad", prepare_with_grad<MeanValue>}};

}  // namespace trainctl
