// Muon: momentum whose matrices are made orthogonal; the formula is in muon_rule.h. It suits weights of matrix products
// and convolutions; adamw updates all other parameters.
#include "engine/ops/adam/adam_scalars.h"
#include "engine/ops/cuda/cuda_scratch.h"
#include "engine/ops/examples.h"
#include "engine/ops/muon/muon_rule.h"
#include "engine/ops/op_family.h"
#include "engine/ops/optimizer_def.h"

namespace trainctl {
namespace {

int64_t muon_work(const std::vector<Ints>& parameters) {
  int64_t most = 0;
  for (const Ints& shard : parameters)
    for (const WholeParameter& p : whole_parameters(shard)) most = std::max(most, MuonSpace(p).end);
  return most;
}

/// The cost on the rank with the most work. The products of a step are X X^T, A A, and one with X.
Cost muon_cost(Infos in, Infos out, const Attrs& attrs) {
  double most = 0;
  for (const Ints& shard : attrs.int_lists("parameters")) {
    double flops = 0;
    for (const WholeParameter& p : whole_parameters(shard)) {
      const auto side = static_cast<double>(std::min(p.rows, p.cols)), size = static_cast<double>(p.size());
      flops += kMuonSteps * (4 * side * size + 2 * side * side * side);
    }
    most = std::max(most, flops);
  }
  double bytes = 0;
  for (const TensorInfo& info : in) bytes += static_cast<double>(bytes_of(info));
  for (const TensorInfo& info : out) bytes += 2 * static_cast<double>(bytes_of(info));
  return {.flops = most, .bytes = bytes};
}

}  // namespace

/// in: gradient, (clip norm^2 [1]); out: weight, momentum, work space, (bf16 copy of the weight).
extern const KernelDef muon_update_kernel = {
    .name = "muon_update",
    .updates_outputs = true,
    .has_products = true,
    .cost = muon_cost,
    .most_cuda_scratch = [](const std::vector<Shape>&, const std::vector<Shape>&) { return kProductWorkspace + 256; },
    .example =
        [] {
          using namespace example;
          return KernelExample{
              .what = "weights, momentum from gradients (, squared norm), by Newton-Schulz steps",
              .inputs = {f32(kFlat)},
              .attrs = {{"momentum", 0.95},
                        {"nesterov", true},
                        {"matches_adamw", true},
                        {"weight_decay", 0.0},
                        {"clip_norm", 0.0},
                        {"parameters", std::vector<Ints>{{0, kRows, kCols}}}},
              .optional = optimizer_options(),
              .outputs = [](Infos in, const Attrs& attrs, DType dtype) {
                std::vector<TensorInfo> out = updated(in, 1, dtype);
                out.insert(out.begin() + 2, TensorInfo{{muon_work(attrs.int_lists("parameters"))}, DType::i32});
                return out;
              }};
        },
};

extern const OptimizerDef adamw_optimizer;

extern const OptimizerDef muon_optimizer = {
    .name = "muon",
    .fields =
        {weight_decay_field(),
         number("momentum", "Momentum factor: fraction of the previous update to add.")
             .defaults(0.95)
             .at_least(0)
             .below(1),
         flag("nesterov", true, "Use Nesterov momentum."),
         flag("match_adamw", true,
              "Scale the updates of matrices to the size of adamw's, so that both use one learning rate; false: "
              "by sqrt(max(1, rows / columns))."),
         flag("adamw", false, "Update these parameters with adamw: for groups, e.g. the last layer."),
         numbers("betas", "Decay rates of the first and second moment of adamw.")
             .defaults(std::vector<double>{0.9, 0.999})
             .items(2)
             .at_least(0)
             .below(1),
         number("eps", "Small constant in the denominator of adamw for numerical stability.").defaults(1e-8).above(0)},
    .same_in_groups = {"betas"},  // the bias corrections of a step follow from them
    .kernel = &muon_update_kernel,
    .kernel_attrs = [](const Attrs& settings) -> Attrs {
      return {{"weight_decay", settings.number("weight_decay")},
              {"momentum", settings.number("momentum")},
              {"nesterov", settings.flag("nesterov")},
              {"matches_adamw", settings.flag("match_adamw")}};
    },
    .states = [](const Attrs&) -> std::vector<std::string> { return {"momentum"}; },
    .needs_whole_parameters = [](const Attrs&) { return true; },
    .companion = &adamw_optimizer,
    .suits = [](const Attrs& settings, const Shape& shape,
                bool is_product) { return is_product && shape.size() >= 2 && !settings.flag("adamw"); },
    .work_elements = muon_work,
    .fill_scalars = fill_bias_corrections,
};

extern const OpFamily muon_family = {.ops = {}, .kernels = {&muon_update_kernel}, .optimizers = {&muon_optimizer}};

}  // namespace trainctl
