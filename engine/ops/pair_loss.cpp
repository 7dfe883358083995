// Shared parts of mae and mse; see pair_loss.h.
#include "engine/ops/pair_loss.h"

#include "engine/ops/elementwise.h"

namespace trainctl {

std::vector<TensorInfo> infer_pair_loss(std::string_view op, Infos in) {
  infer_pair_loss_grad(op, in);
  return {{{1}}};
}

std::vector<TensorInfo> infer_pair_loss_grad(std::string_view op, Infos in) {
  expect_inputs(op, in, 2, 2);
  for (const TensorInfo& input : in) expect_floats(op, {&input, 1});
  expect_shape(op, "input 1", in[1], in[0].shape);
  return {in[0]};
}

RuleText pair_loss_rule(Infos in, const Attrs&) {
  const std::string dims = letters(in[0].shape.size());
  return {dims + "," + dims + "->()"};
}

Cost pair_loss_cost(Infos in, Infos out, const Attrs&) {
  Cost cost = traffic_cost(in, out, 0);
  cost.flops = 3.0 * static_cast<double>(num_elements(in[0].shape));
  return cost;
}

}  // namespace trainctl
