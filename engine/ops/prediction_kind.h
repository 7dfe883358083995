// Tells how a loss reads the output of the network.
#pragma once

#include <cstdint>
#include <string_view>

namespace trainctl {

/// values: numbers to compare with the label. log_values: their logarithms. logit: the logit of a yes or no.
/// class_logits: a logit for each class.
enum class PredictionKind : uint8_t { values, log_values, logit, class_logits };

/// `loss`: the name of a loss.
PredictionKind prediction_kind(std::string_view loss);

}  // namespace trainctl
