// The state of train.on_spike in checkpoints (Program::other_states).
#pragma once

#include <string_view>

namespace trainctl {

/// The name in place of a parameter's, and the slot.
inline constexpr std::string_view kGradientNorms = "gradients", kNormsSlot = "last_norms";

}  // namespace trainctl
