// State of delayed scales (fp8.recipe: delayed): for each tensor that products read in 8 bits, its last largest
// magnitudes (ops/quantise/tensor_scale.h). All ranks of its stages have it. It is in checkpoints
// (Program::other_states).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/plan.h"

namespace trainctl {

inline constexpr std::string_view kFp8Slot = "fp8_scale";

struct Fp8State {
  TensorId tensor = -1;
  std::vector<int> stages;  ///< the stages whose products read the tensor, ascending
};

/// Returns the states in the order of the nodes that read them; empty unless scales are delayed.
std::vector<Fp8State> fp8_states(const Graph& graph, const Plan& plan);
/// Returns the shape of one state.
Shape fp8_state_shape(const Plan& plan);

}  // namespace trainctl
