// Shared parts of the losses mae and mse: (prediction, label) of the same shape, summed to [1]. The label is f32
// regardless of the prediction's type.
#pragma once

#include <string_view>
#include <vector>

#include "engine/ops/expect.h"

namespace trainctl {

std::vector<TensorInfo> infer_pair_loss(std::string_view op, Infos in);
/// The gradient of a pair loss: like the prediction.
std::vector<TensorInfo> infer_pair_loss_grad(std::string_view op, Infos in);
RuleText pair_loss_rule(Infos in, const Attrs& attrs);
Cost pair_loss_cost(Infos in, Infos out, const Attrs& attrs);

}  // namespace trainctl
