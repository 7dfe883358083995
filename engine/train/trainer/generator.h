// Generates the texts of a request on rank 0, and writes them as they are generated.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "engine/train/files/metrics.h"
#include "engine/train/trainer/generation_request.h"
#include "engine/train/trainer/token_steps.h"

namespace trainctl {

/// Throws EnvError unless each token of the prompts is in the vocabulary of the network.
void require_known_tokens(const PlannedJob& job, const GenerationRequest& request);

/// `write` receives the output in the request's format. Throws the same errors as TokenSteps, and EnvError for the
/// tokenizer.
void generate(const GenerationRequest& request, TokenSteps& steps, const std::function<void(std::string_view)>& write);

/// Returns the texts instead, one per prompt.
std::vector<ValidationText> generate_texts(const GenerationRequest& request, TokenSteps& steps);

}  // namespace trainctl
