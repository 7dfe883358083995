// The losses of a prediction and a label of the same shape: mae, mse, smooth_l1, binary_cross_entropy, huber, quantile,
// log_cosh, poisson, focal, kl_div, hinge, cosine_embedding, mean_value. functions.h has the formulas. loss[1] = scale
// * sum of loss(p, label); dp = scale * slope(p, label). The label is f32 regardless of the prediction's type. With
// attr nan_is_no_label, terms whose label is nan are 0.
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/loss_def.h"
#include "engine/ops/op_family.h"
#include "engine/ops/pair_loss/functions.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

std::vector<TensorInfo> infer_pair_loss_grad(std::string_view op, Infos in) {
  expect_inputs(op, in, 2, 2);
  for (const TensorInfo& input : in) expect_floats(op, {&input, 1});
  expect_shape(op, "input 1", in[1], in[0].shape);
  return {in[0]};
}

std::vector<TensorInfo> infer_loss(std::string_view op, Infos in) {
  infer_pair_loss_grad(op, in);
  return {{{1}}};
}

RuleText pair_loss_rule(Infos in, const Attrs&) {
  const std::string dims = letters(in[0].shape.size());
  return {dims + "," + dims + "->()"};
}

/// The attrs of a loss besides the scale, with values of their type.
template <class Loss>
Attrs pair_loss_attrs() {
  if (std::is_same_v<Loss, SmoothL1>) return {{"beta", 1.0}};
  if (std::is_same_v<Loss, Huber>) return {{"delta", 1.0}};
  if (std::is_same_v<Loss, Quantile>) return {{"q", 0.9}};
  if (std::is_same_v<Loss, CosineEmbedding>) return {{"margin", 0.2}};
  if (std::is_same_v<Loss, Focal>) return {{"alpha", 0.25}, {"gamma", 2.0}};
  return {};
}

template <class Loss>
KernelExample pair_loss_example(const char* what) {
  KernelExample shown{
      .what = what, .inputs = {{example::kMatrix}, example::f32(example::kMatrix)}, .attrs = {{"scale", 1e-6}}};
  for (const auto& [name, value] : pair_loss_attrs<Loss>()) shown.attrs.set(name, value);
  if (std::is_same_v<Loss, BinaryCrossEntropy>) shown.optional = {{"pos_weight", 2.0}, {"label_smoothing", 0.1}};
  return shown;
}

/// The kernel that computes a loss and its gradient in one pass.
template <class Loss>
constexpr KernelDef with_grad_of() {
  return {.name = Loss::kWithGrad,
          .accumulates = 1,
          .in_place = InPlace::last_on_first,
          .row_operands =
              [](const Attrs&) {
                return RowOperands{3, 2};
              },
          .example =
              [] {
                KernelExample shown = pair_loss_example<Loss>("loss and gradient in one pass");
                shown.outputs = example::loss_and_gradient;
                return shown;
              }};
}

/// The op of a loss. `kFlops`: operations per element.
template <class Loss, int kFlops>
constexpr OpDef loss_of(const OpDef& grad, const KernelDef& with_grad) {
  return {.name = Loss::kName,
          .infer = [](Infos in, const Attrs&) { return infer_loss(Loss::kName, in); },
          .rule = pair_loss_rule,
          .backward =
              [](GradBuilder& g) {
                g.set_in_grad(0, Loss::kGrad, {g.in(0), g.in(1)}, g.attrs());
              },
          .no_gradient = 2,
          .kernel = {.name = Loss::kName,
                     .accumulates = 1,
                     .loss_grad = &grad.kernel,
                     .loss_with_grad = &with_grad,
                     .row_operands =
                         [](const Attrs&) {
                           return RowOperands{3, 0};
                         },
                     .cost = reduction_cost<kFlops>,
                     .example = [] { return pair_loss_example<Loss>("scale * sum of losses; inputs p, label"); }}};
}

/// (p, label) -> dp
template <class Loss, int kFlops>
constexpr OpDef pair_loss_grad() {
  return {.name = Loss::kGrad,
          .infer = [](Infos in, const Attrs&) { return infer_pair_loss_grad(Loss::kGrad, in); },
          .kernel = {.name = Loss::kGrad,
                     .row_operands =
                         [](const Attrs&) {
                           return RowOperands{3, 1};
                         },
                     .cost = elementwise_cost<kFlops>,
                     .example = [] { return pair_loss_example<Loss>("scale * slopes; inputs p, label"); }}};
}

}  // namespace

extern const KernelDef mae_with_grad_kernel = with_grad_of<Mae>(), mse_with_grad_kernel = with_grad_of<Mse>(),
                       smooth_l1_with_grad_kernel = with_grad_of<SmoothL1>(),
                       binary_cross_entropy_with_grad_kernel = with_grad_of<BinaryCrossEntropy>(),
                       huber_with_grad_kernel = with_grad_of<Huber>(),
                       quantile_with_grad_kernel = with_grad_of<Quantile>(),
                       log_cosh_with_grad_kernel = with_grad_of<LogCosh>(),
                       poisson_with_grad_kernel = with_grad_of<Poisson>(),
                       focal_with_grad_kernel = with_grad_of<Focal>(), kl_div_with_grad_kernel = with_grad_of<KlDiv>(),
                       hinge_with_grad_kernel = with_grad_of<Hinge>(),
                       cosine_embedding_with_grad_kernel = with_grad_of<CosineEmbedding>(),
                       mean_value_with_grad_kernel = with_grad_of<MeanValue>();

extern const OpDef mae_grad_op = pair_loss_grad<Mae, 3>(), mae_op = loss_of<Mae, 3>(mae_grad_op, mae_with_grad_kernel);
extern const OpDef mse_grad_op = pair_loss_grad<Mse, 3>(), mse_op = loss_of<Mse, 3>(mse_grad_op, mse_with_grad_kernel);
extern const OpDef smooth_l1_grad_op = pair_loss_grad<SmoothL1, 5>(),
                   smooth_l1_op = loss_of<SmoothL1, 6>(smooth_l1_grad_op, smooth_l1_with_grad_kernel);
extern const OpDef binary_cross_entropy_grad_op = pair_loss_grad<BinaryCrossEntropy, 12>(),
                   binary_cross_entropy_op = loss_of<BinaryCrossEntropy, 25>(binary_cross_entropy_grad_op,
                                                                             binary_cross_entropy_with_grad_kernel);

extern const OpDef huber_grad_op = pair_loss_grad<Huber, 4>(),
                   huber_op = loss_of<Huber, 6>(huber_grad_op, huber_with_grad_kernel);
extern const OpDef quantile_grad_op = pair_loss_grad<Quantile, 4>(),
                   quantile_op = loss_of<Quantile, 5>(quantile_grad_op, quantile_with_grad_kernel);
extern const OpDef log_cosh_grad_op = pair_loss_grad<LogCosh, 14>(),
                   log_cosh_op = loss_of<LogCosh, 25>(log_cosh_grad_op, log_cosh_with_grad_kernel);
extern const OpDef poisson_grad_op = pair_loss_grad<Poisson, 12>(),
                   poisson_op = loss_of<Poisson, 13>(poisson_grad_op, poisson_with_grad_kernel);
extern const OpDef focal_grad_op = pair_loss_grad<Focal, 70>(),
                   focal_op = loss_of<Focal, 60>(focal_grad_op, focal_with_grad_kernel);
extern const OpDef kl_div_grad_op = pair_loss_grad<KlDiv, 1>(),
                   kl_div_op = loss_of<KlDiv, 14>(kl_div_grad_op, kl_div_with_grad_kernel);
extern const OpDef hinge_grad_op = pair_loss_grad<Hinge, 3>(),
                   hinge_op = loss_of<Hinge, 3>(hinge_grad_op, hinge_with_grad_kernel);
extern const OpDef cosine_embedding_grad_op = pair_loss_grad<CosineEmbedding, 2>(),
                   cosine_embedding_op =
                       loss_of<CosineEmbedding, 3>(cosine_embedding_grad_op, cosine_embedding_with_grad_kernel);
extern const OpDef mean_value_grad_op = pair_loss_grad<MeanValue, 0>(),
                   mean_value_op = loss_of<MeanValue, 1>(mean_value_grad_op, mean_value_with_grad_kernel);

extern const LossDef mae_loss = {
    .name = "mae",
    .doc = "mean absolute error, mean |p - l|",
    .op = &mae_op,
};

extern const LossDef mse_loss = {
    .name = "mse",
    .doc = "mean squared error, mean (p - l)^2",
    .op = &mse_op,
};

extern const LossDef smooth_l1_loss = {
    .name = "smooth_l1",
    .doc = "mean of (p - l)^2 / (2 beta) where |p - l| < beta, else of |p - l| - beta / 2",
    .fields = {number("beta", "Error at which the loss changes from quadratic to linear; 0: the same as mae.")
                   .defaults(1.0)
                   .at_least(0)},
    .op = &smooth_l1_op,
};

extern const LossDef binary_cross_entropy_loss = {
    .name = "binary_cross_entropy",
    .doc = "mean -l log s - (1 - l) log(1 - s), s = sigmoid(p): the prediction is a logit",
    .fields = {number("label_smoothing",
                      "Label smoothing: a label l is replaced by (1 - label_smoothing) * l + label_smoothing / 2.")
                   .at_least(0)
                   .at_most(1),
               number("pos_weight", "Weight of the term that contains l, for rare positive labels.").above(0)},
    .op = &binary_cross_entropy_op,
};

extern const LossDef huber_loss = {
    .name = "huber",
    .doc = "mean of (p - l)^2 / 2 where |p - l| < delta, else of delta (|p - l| - delta / 2)",
    .fields = {number("delta", "Error at which the loss changes from quadratic to linear.").defaults(1.0).above(0)},
    .op = &huber_op,
};

extern const LossDef quantile_loss = {
    .name = "quantile",
    .doc = "mean of q (l - p) where l > p, else of (1 - q) (p - l): p is the q-quantile of l",
    .fields = {number("q", "Quantile to predict. 0.5: the median.").defaults(0.5).above(0).below(1)},
    .op = &quantile_op,
};

extern const LossDef log_cosh_loss = {
    .name = "log_cosh",
    .doc = "mean log cosh(p - l)",
    .op = &log_cosh_op,
};

extern const LossDef poisson_loss = {
    .name = "poisson",
    .doc = "mean e^p - l p: the prediction is the logarithm of the rate of a count",
    .op = &poisson_op,
};

extern const LossDef focal_loss = {
    .name = "focal",
    .doc = "mean binary cross-entropy of a logit, times (1 - t)^gamma with t the probability of the label",
    .fields = {number("alpha",
                      "Weight of positive labels; negative labels have the weight 1 - alpha. If alpha is negative, "
                      "labels are not weighted.")
                   .defaults(0.25)
                   .at_most(1),
               number("gamma", "Exponent of the focusing factor (1 - t)^gamma. 0: all terms count equally.")
                   .defaults(2.0)
                   .at_least(0)},
    .op = &focal_op,
};

extern const LossDef kl_div_loss = {
    .name = "kl_div",
    .doc = "mean l (log l - p): the prediction is the logarithm of a probability, the label a probability",
    .op = &kl_div_op,
};

extern const LossDef hinge_loss = {
    .name = "hinge",
    .doc = "mean of 1 - l p where that is positive: labels are 1 and -1",
    .op = &hinge_op,
};

extern const OpFamily pair_loss_family = {
    .ops = {&mae_op,
            &mae_grad_op,
            &mse_op,
            &mse_grad_op,
            &smooth_l1_op,
            &smooth_l1_grad_op,
            &binary_cross_entropy_op,
            &binary_cross_entropy_grad_op,
            &huber_op,
            &huber_grad_op,
            &quantile_op,
            &quantile_grad_op,
            &log_cosh_op,
            &log_cosh_grad_op,
            &poisson_op,
            &poisson_grad_op,
            &focal_op,
            &focal_grad_op,
            &kl_div_op,
            &kl_div_grad_op,
            &hinge_op,
            &hinge_grad_op,
            &cosine_embedding_op,
            &cosine_embedding_grad_op,
            &mean_value_op,
            &mean_value_grad_op},
    .kernels = {&mae_with_grad_kernel, &mse_with_grad_kernel, &smooth_l1_with_grad_kernel,
                &binary_cross_entropy_with_grad_kernel, &huber_with_grad_kernel, &quantile_with_grad_kernel,
                &log_cosh_with_grad_kernel, &poisson_with_grad_kernel, &focal_with_grad_kernel,
                &kl_div_with_grad_kernel, &hinge_with_grad_kernel, &cosine_embedding_with_grad_kernel,
                &mean_value_with_grad_kernel},
    .losses = {&mae_loss, &mse_loss, &smooth_l1_loss, &binary_cross_entropy_loss, &huber_loss, &quantile_loss,
               &log_cosh_loss, &poisson_loss, &focal_loss, &kl_div_loss, &hinge_loss}};

}  // namespace trainctl
