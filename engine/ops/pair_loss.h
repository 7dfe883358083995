// Parts of the losses of (prediction, label), both of one shape, summed to [1]: mae, mse. The label is f32 whatever the
// prediction is.
#pragma once

#include <string_view>
#include <vector>

#include "engine/ops/expect.h"

namespace trainctl {

std::vector<TensorInfo> infer_pair_loss(std::string_view op, Infos in);
/// Its gradient: like the prediction.
std::vector<TensorInfo> infer_pair_loss_grad(std::string_view op, Infos in);
RuleText pair_loss_rule(Infos in, const Attrs& attrs);
Cost pair_loss_cost(Infos in, Infos out, const Attrs& attrs);

}  // namespace trainctl
