// Lists the tensors whose largest magnitudes delayed scales keep from step to step.
#include "engine/compile/fp8_states.h"

#include <algorithm>

#include "engine/ops/matmul/fp8_factors.h"
#include "engine/ops/op_def.h"
#include "engine/ops/quantise/tensor_scale.h"

namespace trainctl {

std::vector<Fp8State> fp8_states(const Graph& graph, const Plan& plan) {
  std::vector<Fp8State> states;
  if (!plan.numerics.fp8 || plan.numerics.fp8->recipe != Fp8Recipe::delayed) return states;
  const auto add = [&](TensorId tensor, int stage) {
    auto at = std::find_if(states.begin(), states.end(), [&](const Fp8State& s) { return s.tensor == tensor; });
    if (at == states.end()) at = states.insert(states.end(), {tensor, {}});
    const auto place = std::lower_bound(at->stages.begin(), at->stages.end(), stage);
    if (place == at->stages.end() || *place != stage) at->stages.insert(place, stage);
  };
  for (const Node& node : graph.nodes) {
    const auto layer = static_cast<size_t>(node.layer);
    if (!plan.numerics.narrow_layers[layer]) continue;
    const auto factors = fp8_factors(get_op(node.op).kernel, node.attrs);
    if (!factors) continue;
    const int stage = plan.layers[layer].virtual_stage % plan.num_stages;
    for (const Fp8Factor& factor : {factors->a, factors->b}) add(node.inputs[factor.input], stage);
  }
  return states;
}

Shape fp8_state_shape(const Plan& plan) { return {kHistoryPlace + plan.numerics.fp8->amax_history_len}; }

}  // namespace trainctl
