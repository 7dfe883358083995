// The state of train.on_spike in checkpoints (Program::other_states).
#pragma once

#include <string_view>

namespace trainctl {

/// The state belongs to no parameter. In checkpoints it has kGradientNorms as parameter name and kNormsSlot as slot.
inline constexpr std::string_view kGradientNorms = "gradients", kNormsSlot = "last_norms";

}  // namespace trainctl
